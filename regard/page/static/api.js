/** Talking to the server: one view asks for one thing at a time, and a newer question ends the older: `Api` of types.d.ts. */
import { Replaced, ServerError } from "./errors.js";
import * as requests from "./request.js";

const client = Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join("");
/** @type {Map<string, AbortController>} */
const asking = new Map();
/**
 * Answers that will be wanted again: hovering back and forth asks for the same rows.
 * @type {Map<string, Floats>}
 */
const kept = new Map();
const KEPT = 400;
const KEPT_NUMBERS = 8e6;
let numbers = 0;

let offlineListener = () => {};
/** @type {Api["onLoading"]} The server has the model. */
export const onLoading = () => {};
/** @param {() => void} listener called when the server does not answer */
export const onOffline = (listener) => {
  offlineListener = listener;
};

export const update = requests.update;
const addressOf = (/** @type {string} */ path) =>
  update == null ? path : `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ update })}`;

/**
 * @param {string} path @param {RequestOptions} [options] @param {boolean} [again]
 * @returns {Promise<Response>}
 */
async function ask(path, { view, method = "GET", body, signal } = {}, again = true) {
  /** @type {AbortController|null} */
  let control = null;
  if (view) {
    asking.get(view)?.abort();
    const mine = new AbortController();
    asking.set(view, mine);
    if (signal?.aborted) mine.abort();
    signal?.addEventListener("abort", () => mine.abort());
    control = mine;
  }
  /** @type {Record<string, string>} */
  const headers = { "X-Client": client };
  if (view) headers["X-View"] = view;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await requests.send(addressOf(path), {
      method,
      headers,
      signal: control?.signal ?? signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw new Replaced();
    offlineListener();
    throw new ServerError("The server does not answer.", { offline: true });
  }
  if (answer.ok) return answer;
  if (answer.status === 409) {
    // An earlier request of this view can reach the server later, and replace the one that is wanted.
    const newest = view && asking.get(view) === control;
    if (newest && again) return ask(path, { view, method, body, signal }, false);
    throw new Replaced();
  }
  let sentence = `The server answered ${answer.status}.`;
  try {
    sentence = (await answer.json()).error ?? sentence;
  } catch {
    /* not JSON: the status must do */
  }
  throw new ServerError(sentence, { status: answer.status });
}

/** @type {Api["end"]} */
export const end = (view) => asking.get(view)?.abort();

/** Reading a body fails like asking does when the connection breaks, or is ended, half-way. */
async function reading(/** @type {() => Promise<any>} */ read) {
  try {
    return await read();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw new Replaced();
    throw new ServerError("The server stopped half-way through its answer.", { offline: true });
  }
}

/** @param {string} path @param {RequestOptions} [options] @returns {Promise<any>} */
async function json(path, options) {
  const answer = await ask(path, options);
  return reading(() => answer.json());
}

/** @param {string} path @param {RequestOptions} [options] @returns {Promise<Floats>} */
async function floats(path, options = {}) {
  const known = kept.get(path);
  if (known) {
    if (options.view) asking.get(options.view)?.abort();
    return known;
  }
  const answer = await ask(path, options);
  const values = new Float32Array(await reading(() => answer.arrayBuffer()));
  const number = (/** @type {string} */ name) => Number(answer.headers.get(name) ?? 0);
  const result = { values, rows: number("X-Rows"), columns: number("X-Columns"), heads: number("X-Heads") };
  kept.set(path, result);
  numbers += values.length;
  for (const [old, { values: gone }] of kept) {
    if (kept.size <= KEPT && numbers <= KEPT_NUMBERS) break;
    kept.delete(old);
    numbers -= gone.length;
  }
  return result;
}

/**
 * Calls `each` with every line of a stream of JSON lines, as it comes.
 * @param {string} path @param {(line: any) => void} each @param {RequestOptions} options
 */
async function lines(path, each, options) {
  const answer = await ask(path, options);
  const reader = /** @type {ReadableStream} */ (answer.body).pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reading(() => reader.read());
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.trim()) each(JSON.parse(part));
  }
  if (rest.trim()) each(JSON.parse(rest));
}

/** @param {string} run @param {string} [what] @param {Record<string, any>} [fields] */
const of = (run, what = "", fields) =>
  `/api/runs/${encodeURIComponent(run)}${what && `/${what}`}${fields ? `?${new URLSearchParams(fields)}` : ""}`;

/** The fields of a place; the view is left out where it is the weight. @returns {Record<string, any>} */
const at = (/** @type {Place} */ [layer, head, shows]) => ({ layer, head, ...as(shows) });
const as = (/** @type {Shows|undefined} */ shows) => (shows && shows !== "weight" ? { view: shows } : {});

/** @type {Api["health"]} */
export const health = () => json("/api/health");
/** @type {Api["about"]} */
export const about = () => json("/api/about");
/** @type {Api["open"]} */
export const open = (text, view) => json("/api/runs", { method: "POST", body: { text }, view });
/** @type {Api["fetchRun"]} */
export const fetchRun = (run, view) => json(of(run), { view });
/** @type {Api["append"]} */
export const append = (run, token, view) => json(of(run, "append"), { method: "POST", body: { token }, view });
/** @type {Api["change"]} */
export const change = (run, changes, view) => json(of(run, "changed"), { method: "POST", body: { changes }, view });
/** @type {Api["patch"]} */
export const patch = (run, other, each, signal) => lines(of(run, "patched", { other }), each, { signal });
/** @type {Api["generate"]} */
export const generate = (run, options, each, signal) =>
  lines(of(run, "generate"), each, { method: "POST", body: options, signal });
/** @type {Api["heads"]} */
export const heads = (run, each, view, first) => lines(of(run, "heads", { first }), each, { view });
/** @type {Api["effects"]} */
export const effects = (run, over, each, signal) => lines(of(run, "effects", { over }), each, { signal });
/** @type {Api["passages"]} */
export const passages = (run, spans, each, signal) =>
  lines(of(run, "passages", { spans: spans.map((span) => span.join()).join(";") }), each, { signal });
/** @type {Api["views"]} */
export const views = (run, wanted, view) => json(of(run, "views", { wanted }), { view });
/** @type {Api["writer"]} */
export const writer = (run, view) => json(of(run, "writer"), { view });
/** @type {Api["thumbnails"]} */
export const thumbnails = (run, layer, size, shows, view) =>
  floats(of(run, "thumbnails", { layer, size, ...as(shows) }), { view });
/** @type {Api["map"]} */
export const map = (run, place, { queries, keys, block }, view) =>
  floats(of(run, "map", { ...at(place), queries: queries.join(), keys: keys.join(), block }), { view });
/** @type {Api["sketch"]} */
export const sketch = (run, place, block, view) => floats(of(run, "sketch", { ...at(place), block }), { view });
/** @type {Api["row"]} */
export const row = (run, place, query, view) => floats(of(run, "row", { ...at(place), query }), { view });
/** @type {Api["column"]} */
export const column = (run, place, key, view) => floats(of(run, "column", { ...at(place), key }), { view });
/** @type {Api["cell"]} */
export const cell = (run, place, query, key, view) => json(of(run, "cell", { ...at(place), query, key }), { view });
/** @type {Api["readouts"]} */
export const readouts = async (run, place, view, { each, signal } = {}) => {
  const path = of(run, "readouts", at(place));
  if (each && !kept.has(path)) {
    let ready = false;
    const take = (/** @type {any} */ line) => {
      if (line.error) throw new ServerError(line.error);
      ready = line.ready === true;
      if (!ready) each(line);
    };
    for (let again = true; !ready; again = false) {
      const progress = lines(of(run, "readouts/progress", at(place)), take, { view, signal });
      const control = asking.get(view);
      await progress;
      // Lines that end early were replaced: as with status 409, perhaps by an earlier request.
      const newest = asking.get(view) === control && !control?.signal.aborted;
      if (!ready && !(again && newest)) throw new Replaced();
    }
  }
  return floats(path, { view, signal });
};
/** @type {Api["steps"]} */
export const steps = (run, place, query, keys, view) =>
  json(of(run, "steps", { ...at(place), query, ...keys }), { view });
/** @type {Api["training"]} */
export const training = () => json("/api/training");
/** @type {Api["trained"]} */
export const trained = (step) => floats(`/api/training/${step}/thumbnails`, { view: "trained" });
