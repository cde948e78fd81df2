/**
 * In a live report this stands in for ../api.js: `Api` of types.d.ts, answered by a worker in which the model runs.
 * A view has one request at a time: a newer one ends the older.
 */
import { Replaced, ServerError } from "../errors.js";

const text = (/** @type {string} */ name) => document.getElementById(name)?.textContent ?? "";

const ONCE = "regard reloaded";
const PATIENCE = 2000; // milliseconds

/** @typedef {{resolve: (value: any) => void, reject: (error: Error) => void, each: (line: any) => void}} Pending */

/** @type {Map<number, Pending>} */
const pending = new Map();
/** The newest request of each view. @type {Map<string, number>} */
const newest = new Map();
let count = 0;

/** @type {{about: About, first: {ids: number[], notes: string[], run?: Run}}} */
const report = JSON.parse(text("report"));
const worker = new Worker(URL.createObjectURL(new Blob([text("worker")], { type: "text/javascript" })));
/** @type {LiveStart} */
const start = {
  ...{ model: text("model"), kernels: text("kernels"), numbers: text("numbers") },
  ...{ base: report.first.run ? location.href : "", title: report.about.title, first: report.first },
};
begin();

/** A folder's service worker brings the headers with which threads share memory: the page is opened once more, then. */
async function begin() {
  if (await isToReload().catch(() => false)) location.reload();
  else worker.postMessage({ start });
}

/** Whether the service worker is there now; where it is refused, one thread and the network do. */
async function isToReload() {
  if (!report.first.run || !navigator.serviceWorker) return false;
  await navigator.serviceWorker.register("service.js");
  if (crossOriginIsolated || sessionStorage.getItem(ONCE)) {
    sessionStorage.removeItem(ONCE);
    return false;
  }
  sessionStorage.setItem(ONCE, "1");
  await Promise.race([navigator.serviceWorker.ready, new Promise((go) => setTimeout(go, PATIENCE))]);
  return true;
}

/** @type {Parameters<Api["onLoading"]>[0]} */
let tell = () => {};
let isThere = !report.first.run; // else its text is shown while the model is fetched

worker.onmessage = ({ data: { id, line, value, error, status, loading } }) => {
  if (loading !== undefined) {
    const wasThere = isThere;
    isThere = !loading?.total;
    if (isThere && !wasThere) renew();
    return tell(loading && { ...loading, kept: window.isSecureContext });
  }
  const one = pending.get(id);
  if (!one) return; // nobody waits for it any more
  if (line !== undefined) return one.each(line);
  pending.delete(id);
  if (error === undefined) one.resolve(value);
  else one.reject(new ServerError(error, { status }));
};
worker.onerror = ({ message }) => {
  for (const { reject } of pending.values())
    reject(new ServerError(`The model does not run in this browser: ${message}`));
  pending.clear();
};

/**
 * @param {string} name @param {unknown[]} args
 * @param {{view?: string, each?: (line: any) => void, signal?: AbortSignal}} [options]
 * @returns {Promise<any>}
 */
function ask(name, args, { view, each = () => {}, signal } = {}) {
  const id = ++count;
  if (view) {
    cancel(newest.get(view));
    newest.set(view, id);
  }
  signal?.addEventListener("abort", () => cancel(id));
  return new Promise((resolve, reject) => {
    pending.set(id, { resolve, reject, each });
    worker.postMessage({ id, name, args });
  });
}

/** Ends a request that nobody waits for any more. */
function cancel(/** @type {number|undefined} */ id) {
  const one = id === undefined ? undefined : pending.get(id);
  if (id === undefined || !one) return;
  pending.delete(id);
  worker.postMessage({ cancel: id });
  one.reject(new Replaced());
}

/** The first text's next words as this browser computes them: the last digits of those of Python may differ. */
async function renew() {
  const { run } = report.first;
  const own = run && (await ask("fetchRun", [run.id]).catch(() => null));
  if (own) run.next = own.next;
}

/** The first text, while the model is fetched: Python has written it down. */
function known(/** @type {(run: Run) => boolean} */ isMeant) {
  const { run } = report.first;
  return !isThere && run && isMeant(run) ? run : null;
}

/** @type {Api["end"]} */
export const end = (view) => cancel(newest.get(view));

const refuseTraining = async () => {
  throw new ServerError("A report holds no history of training; regard explore shows it.");
};

/** @type {Api["onLoading"]} */
export const onLoading = (listener) => {
  tell = listener;
};
export const onOffline = () => {};
export const update = null;
/** @type {Api["health"]} */
export const health = async () => ({ ok: true });
/** @type {Api["about"]} */
export const about = async () => report.about;
/** @type {Api["open"]} */
export const open = async (content, view) => known((run) => run.text === content) ?? ask("open", [content], { view });
/** @type {Api["fetchRun"]} */
export const fetchRun = async (run, view) => known(({ id }) => id === run) ?? ask("fetchRun", [run], { view });
/** @type {Api["append"]} */
export const append = (run, token, view) => ask("append", [run, token], { view });
/** @type {Api["change"]} */
export const change = (run, changes, view) => ask("change", [run, changes], { view });
/** @type {Api["patch"]} */
export const patch = (run, other, each, signal) => ask("patch", [run, other], { each, signal });
/** @type {Api["generate"]} */
export const generate = (run, options, each, signal) => ask("generate", [run, options], { each, signal });
/** @type {Api["heads"]} */
export const heads = (run, each, view) => ask("heads", [run], { each, view });
/** @type {Api["effects"]} */
export const effects = (run, over, each, signal) => ask("effects", [run, over], { each, signal });
/** @type {Api["passages"]} */
export const passages = (run, spans, each, signal) => ask("passages", [run, spans], { each, signal });
/** @type {Api["writer"]} */
export const writer = (run, view) => ask("writer", [run], { view });
/** @type {Api["views"]} */
export const views = async (run, _, view) => {
  const why = await ask("objections", [run], { view });
  return (report.about.views ?? []).map((one) => ({ ...one, objection: why[one.name] ?? null }));
};
/** @type {Api["thumbnails"]} */
export const thumbnails = (run, layer, size, shows, view) =>
  ask("thumbnails", [run, [layer, "mean", shows], size], { view });
/** @type {Api["map"]} */
export const map = (run, place, window, view) => ask("map", [run, place, window], { view });
/** @type {Api["sketch"]} */
export const sketch = (run, place, block, view) => ask("sketch", [run, place, block], { view });
/** @type {Api["row"]} */
export const row = (run, place, query, view) => ask("row", [run, place, query], { view });
/** @type {Api["column"]} */
export const column = (run, place, key, view) => ask("column", [run, place, key], { view });
/** @type {Api["cell"]} */
export const cell = (run, place, query, key, view) => ask("cell", [run, place, query, key], { view });
/** @type {Api["readouts"]} */
export const readouts = (run, place, view, options) => ask("readouts", [run, place], { ...options, view });
/** @type {Api["steps"]} */
export const steps = (run, place, query, keys, view) => ask("steps", [run, place, query, keys], { view });
export const training = refuseTraining;
export const trained = refuseTraining;
