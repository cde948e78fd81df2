/**
 * In a report this stands in for ../api.js: the same questions with the same answers, computed here
 * from queries, keys and log-sum-exps. There is no server, so nothing new can be read or written.
 */
import { averaged, column as columnOf, stepsOf, pictures, readouts as along } from "./attention.js";
import { row as rowOf, seen, walk, weight } from "./attention.js";
import { headOf, report, runOf } from "./data.js";

const BREATH = 12; // milliseconds of computing before the page has its turn

/** Why there is no answer. */
export class ServerError extends Error {
  constructor(/** @type {string} */ message, { status = 0, offline = false } = {}) {
    super(message);
    this.status = status;
    this.offline = offline;
  }
}

/** Nobody waits for the answer any more. */
export class Replaced extends Error {}

/** @type {Map<string, symbol>} */
const asking = new Map();

const pause = () => new Promise((go) => setTimeout(go));

/**
 * Runs a generator, lets the page have its turn, and ends it when its view asks anew.
 * @template T
 * @param {string} view @param {() => Generator<void, T>} begin
 * @returns {Promise<T>}
 */
async function computed(view, begin) {
  const mine = Symbol(view);
  if (view) asking.set(view, mine);
  const generator = begin();
  for (let since = performance.now(); ;) {
    const { done, value } = generator.next();
    if (done) return value;
    if (performance.now() - since < BREATH) continue;
    await pause();
    if (view && asking.get(view) !== mine) throw new Replaced();
    since = performance.now();
  }
}

/** The heads that are meant: one, all of a layer, or all. */
async function chosen(
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
) {
  const { layers } = known(run);
  const at = layer === "mean" ? [...layers.keys()] : [Number(layer)];
  return Promise.all(
    at.flatMap((one) =>
      head === "mean" ? layers[one].map((_, place) => headOf(run, one, place)) : [headOf(run, one, Number(head))],
    ),
  );
}

function known(/** @type {string} */ run) {
  const packed = runOf(run);
  if (!packed) throw new ServerError("This report does not hold that text.");
  return packed;
}

const numbers = (/** @type {ArrayLike<number>} */ values) => ({
  values: Float32Array.from(values),
  rows: 0,
  columns: 0,
  heads: 0,
});
const range = (/** @type {string} */ text) => /** @type {Span} */ (text.split(",").map(Number));
const refuse = async () => {
  throw new ServerError("A report holds what was written into it; regard explore reads other texts.");
};

export const onOffline = () => {};
export const health = async () => ({ ok: true });
export const about = async () => report.about;
export const fetchRun = async (/** @type {string} */ run) => structuredClone(known(run).described);
export const open = refuse;
export const append = refuse;
export const generate = refuse;
export const training = refuse;
export const trained = refuse;
export const update = null;

export async function heads(/** @type {string} */ run, /** @type {(line: any) => void} */ each) {
  known(run).scores.forEach(each);
}

export async function thumbnails(
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number} */ size,
) {
  const all = await chosen(run, layer, "mean");
  return computed("", () => pictures(all, size));
}

export async function map(
  /** @type {string} */ run,
  /** @type {MapQuery} */ { layer, head, queries, keys, block },
  /** @type {string} */ view,
) {
  const all = await chosen(run, layer, head);
  return computed(view, () => averaged(all, range(queries), range(keys), Number(block)));
}

export const row = async (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
) => numbers(rowOf(await chosen(run, layer, head), at));

export const column = async (
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
) => numbers(columnOf(await chosen(run, layer, head), at));

export async function cell(
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  /** @type {number} */ key,
) {
  const all = await chosen(run, layer, head);
  const shared = { weight: weight(all, at, key), visible: seen(all, at, key) };
  if (all.length > 1) return { ...shared, score: null, logsumexp: null }; // a mean has none
  const { masked } = stepsOf(all[0], at, key);
  return { ...shared, score: shared.visible ? masked : null, logsumexp: all[0].logsumexp[at] };
}

export async function readouts(
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {string} */ view,
) {
  const all = await chosen(run, layer, head);
  return computed(view, () => along(all));
}

export async function steps(
  /** @type {string} */ run,
  /** @type {number|string} */ layer,
  /** @type {number|string} */ head,
  /** @type {number} */ at,
  /** @type {{first?: number, count?: number, picked?: number}} */ options,
) {
  const [one] = await chosen(run, layer, head);
  return walk(one, at, options);
}
