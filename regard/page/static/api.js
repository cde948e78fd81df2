/** Talking to the server: one view asks for one thing at a time, and a newer question ends the older. */

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

/** The server refused, and why; or it did not answer at all (`offline`). */
export class ServerError extends Error {
  constructor(/** @type {string} */ message, { status = 0, offline = false } = {}) {
    super(message);
    this.status = status;
    this.offline = offline;
  }
}

/** Nobody waits for the answer any more. */
export class Replaced extends Error {}

let offlineListener = () => {};
/** @param {() => void} listener called when the server does not answer */
export const onOffline = (listener) => {
  offlineListener = listener;
};

/** The model of an earlier update is a page of its own, `/?update=200`; the newest has none. */
export const update = new URLSearchParams(location.search).get("update");
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
    control = new AbortController();
    asking.set(view, control);
    signal = control.signal;
  }
  /** @type {Record<string, string>} */
  const headers = { "X-Client": client };
  if (view) headers["X-View"] = view;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(addressOf(path), {
      method,
      headers,
      signal,
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
    if (newest && again) return ask(path, { view, method, body }, false);
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
export async function json(path, options) {
  const answer = await ask(path, options);
  return reading(() => answer.json());
}

/** @param {string} path @param {RequestOptions} [options] @returns {Promise<Floats>} */
export async function floats(path, options = {}) {
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

/** Calls `each` with every line of a stream of JSON lines, as it comes. */
export async function lines(
  /** @type {string} */ path,
  /** @type {(line: any) => void} */ each,
  /** @type {RequestOptions} */ options,
) {
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

const of = (/** @type {string} */ run) => `/api/runs/${encodeURIComponent(run)}`;
const query = (/** @type {Record<string, any>} */ fields) => new URLSearchParams(fields).toString();

export const health = () => json("/api/health");
export const about = () => json("/api/about");
export const open = (/** @type {string} */ text, view = "open") =>
  json("/api/runs", { method: "POST", body: { text }, view });
export const fetchRun = (/** @type {string} */ run, view = "open") => json(of(run), { view });
export const append = (/** @type {string} */ run, /** @type {number} */ token, view = "open") =>
  json(`${of(run)}/append`, { method: "POST", body: { token }, view });
export const heads = (/** @type {string} */ run, /** @type {(line: any) => void} */ each, view = "heads") =>
  lines(`${of(run)}/heads`, each, { view });
export const thumbnails = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number} */ size,
  view = "thumbnails",
) => floats(`${of(run)}/thumbnails?${query({ layer, size })}`, { view });
export const map = (/** @type {string} */ run, /** @type {MapQuery} */ window, /** @type {string} */ view) =>
  floats(`${of(run)}/map?${query(window)}`, { view });
export const row = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  view = "row",
) => floats(`${of(run)}/row?${query({ layer, head, query: at })}`, { view });
export const column = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  view = "column",
) => floats(`${of(run)}/column?${query({ layer, head, key: at })}`, { view });
export const cell = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  /** @type {number} */ key,
  view = "cell",
) => json(`${of(run)}/cell?${query({ layer, head, query: at, key })}`, { view });
export const readouts = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {string} */ view,
) => floats(`${of(run)}/readouts?${query({ layer, head })}`, { view });
export const training = () => json("/api/training");
export const trained = (/** @type {number} */ step) => floats(`/api/training/${step}/thumbnails`, { view: "trained" });
/** @param {{first?: number, count?: number, picked?: number}} [keys] ranks that are written out, and a key */
export const steps = (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  keys = {},
  view = "steps",
) => json(`${of(run)}/steps?${query({ layer, head, query: at, ...keys })}`, { view });
export const generate = (
  /** @type {string} */ run,
  /** @type {{tokens: number, temperature: number, seed: number|null}} */ options,
  /** @type {(line: any) => void} */ each,
  /** @type {AbortSignal} */ signal,
) => lines(`${of(run)}/generate`, each, { method: "POST", body: options, signal });
