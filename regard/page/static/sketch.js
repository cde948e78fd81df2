/** A first picture of a long text's map: some queries, while all of them are averaged. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { greatestOf } from "./quantities.js";

/** Tokens from which on the whole takes so long that a sketch is worth it. */
export const LONG = 4096;
/** Most queries of a first sketch, and as many cells across. */
export const FIRST = 32;
/** Those of a finer one. */
export const FINER = 256;

/**
 * Sketches a pattern; a cell is the mean of its keys' weights in the query in the middle of its queries.
 * @param {Run} run @param {Place} place @param {number} most queries @param {string} view
 * @returns {Promise<Drawn|null>}
 */
export async function sketch(run, place, most, view) {
  const block = 2 ** Math.ceil(Math.log2(run.length / most));
  const answer = await awaitAnswer(api.sketch(run.id, place, block, view));
  if (!answer) return null;
  const greatest = greatestOf(answer.values);
  /** @type {Span} */
  const all = [0, run.length];
  const key = `sketch/${run.id}/${place.join("/")}/${block}`;
  return { ...answer, queries: all, keys: all, block, key, exact: false, greatest };
}
