/**
 * In a report this stands in for ../api.js: `Api` of types.d.ts, computed here from queries, keys and
 * log-sum-exps. Without a server nothing new can be read or written.
 */
import { Replaced, ServerError } from "../errors.js";
import * as attention from "../kernels/pattern.js";
import { headOf, report, runOf } from "./data.js";

const BREATH = 12; // milliseconds of computing before the page has its turn

/** @type {Map<string, symbol>} */
const asking = new Map();

const pause = () => new Promise((go) => setTimeout(go));

/**
 * Runs a generator, lets the page have its turn, and ends it when its view asks anew.
 * @template T
 * @param {string} view @param {() => Generator<StreamLine|void, T>} begin
 * @param {{each?: (line: StreamLine) => void, signal?: AbortSignal}} [options] each: called with how far it is
 * @returns {Promise<T>}
 */
async function computed(view, begin, { each, signal } = {}) {
  const mine = Symbol(view);
  if (view) asking.set(view, mine);
  const generator = begin();
  /** @type {StreamLine|void} */
  let latest = undefined;
  for (let since = performance.now(); ;) {
    const { done, value } = generator.next();
    if (done) return value;
    latest = value ?? latest;
    if (performance.now() - since < BREATH) continue;
    await pause();
    if (signal?.aborted || (view && asking.get(view) !== mine)) throw new Replaced();
    if (latest) each?.(latest);
    since = performance.now();
  }
}

/** @type {Api["end"]} */
export const end = (view) => {
  asking.delete(view);
};

/**
 * The heads that are meant: one, all of a layer, or all.
 * @param {string} run @param {Place} place
 */
async function chosen(run, [layer, head]) {
  const { layers } = known(run);
  const at = layer === "mean" ? [...layers.keys()] : [layer];
  return Promise.all(
    at.flatMap((one) =>
      head === "mean" ? layers[one].map((_, place) => headOf(run, one, place)) : [headOf(run, one, head)],
    ),
  );
}

function known(/** @type {string} */ run) {
  const packed = runOf(run);
  if (!packed) throw new ServerError("This report does not hold that text.");
  return packed;
}

const refuse = async () => {
  throw new ServerError("A report holds what was written into it; regard explore reads other texts.");
};

/** @type {Api["onLoading"]} */
export const onLoading = () => {};
export const onOffline = () => {};
/** @type {Api["health"]} */
export const health = async () => ({ ok: true });
/** @type {Api["about"]} */
export const about = async () => report.about;
/** @type {Api["fetchRun"]} */
export const fetchRun = async (run) => structuredClone(known(run).description);
export const open = refuse;
export const append = refuse;
export const generate = refuse;
export const change = refuse;
export const patch = refuse;
export const effects = refuse;
export const passages = refuse;
export const training = refuse;
export const trained = refuse;
export const update = null;

/** @type {Api["heads"]} */
export const heads = async (run, each) => known(run).scores.forEach(each);

export const writer = refuse;
/** @type {Api["views"]} */
export const views = async () => report.about.views ?? [];

/** @type {Api["thumbnails"]} */
export const thumbnails = async (run, layer, size) => {
  const all = await chosen(run, [layer, "mean"]);
  return computed("", () => attention.pictures(all, size));
};

/** @type {Api["map"]} */
export const map = async (run, place, { queries, keys, block }, view) => {
  const all = await chosen(run, place);
  return computed(view, () => attention.averaged(all, queries, keys, block));
};

/** @type {Api["sketch"]} */
export const sketch = async (run, place, block, view) => {
  const all = await chosen(run, place);
  return computed(view, () => attention.sketched(all, block));
};

/** @type {Api["row"]} */
export const row = async (run, place, query) => attention.floats(attention.row(await chosen(run, place), query));

/** @type {Api["column"]} */
export const column = async (run, place, key) => attention.floats(attention.column(await chosen(run, place), key));

/** @type {Api["cell"]} */
export const cell = async (run, place, query, key) => attention.cell(await chosen(run, place), query, key);

/** @type {Api["readouts"]} */
export const readouts = async (run, place, view, options) => {
  const all = await chosen(run, place);
  return computed(view, () => attention.readouts(all), options);
};

/** @type {Api["steps"]} */
export const steps = async (run, place, query, keys) => attention.walk((await chosen(run, place))[0], query, keys);
