/** A first picture of a long text's map: some queries, read one by one, while all of them are averaged. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";

/** Tokens from which on the whole takes so long that a sketch is worth it. */
export const LONG = 4096;
/** Queries of the finest sketch, and as many cells across. */
const FINEST = 64;
const FIRST = 8;

/**
 * Sketches the pattern of a head, each time twice as fine; a cell is the mean of its keys' weights in one query.
 * @param {Run} run @param {Place} place @param {string} name of what it is of
 * @param {(drawn: Drawn) => boolean} each gives whether a finer one is wanted
 */
export async function sketch(run, place, name, each) {
  const block = Math.ceil(run.length / FINEST);
  const cells = Math.ceil(run.length / block);
  /** @type {Map<number, Float32Array>} */
  const rows = new Map();
  for (let step = FINEST / FIRST; step >= 1; step /= 2) {
    for (let row = step >> 1; row < cells; row += step) {
      if (rows.has(row)) continue;
      const query = Math.min(run.length - 1, row * block + (block >> 1));
      const answer = await awaitAnswer(api.row(run.id, place, query, `sketch-${row}`));
      if (!answer) return;
      rows.set(row, means(answer.values, block, cells));
    }
    if (!each(drawnFrom(rows, { name, block, cells, step, length: run.length }))) return;
  }
}

function means(/** @type {Float32Array} */ weights, /** @type {number} */ block, /** @type {number} */ cells) {
  return Float32Array.from({ length: cells }, (_, cell) => {
    const keys = weights.subarray(cell * block, (cell + 1) * block);
    return keys.reduce((sum, value) => sum + value, 0) / keys.length;
  });
}

/**
 * All rows, those between the known ones as the nearest known.
 * @param {Map<number, Float32Array>} rows
 * @param {{name: string, block: number, cells: number, step: number, length: number}} of
 * @returns {Drawn}
 */
function drawnFrom(rows, { name, block, cells, step, length }) {
  const known = [...rows.keys()];
  const values = new Float32Array(cells * cells);
  for (let row = 0; row < cells; row++) {
    const near = known.reduce((best, one) => (Math.abs(one - row) < Math.abs(best - row) ? one : best));
    values.set(/** @type {Float32Array} */ (rows.get(near)), row * cells);
  }
  const greatest = values.reduce((most, value) => Math.max(most, value), 0);
  /** @type {Span} */
  const all = [0, length];
  const key = `sketch/${name}/${step}`;
  return { values, rows: cells, columns: cells, heads: 1, queries: all, keys: all, block, key, exact: false, greatest };
}
