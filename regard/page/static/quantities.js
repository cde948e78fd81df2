/** What the numbers of heads are called, in the server's order, and their units. */

import { signed } from "./format.js";

/** The scores that heads are sorted by. @type {Score[]} */
export const SCORES = [
  "resting",
  "previous_token",
  "first_token",
  "current_token",
  "induction",
  "duplicate_token",
  "separator",
  "next_token",
  "entropy",
  "distance",
];
/** A head's readouts along the text. */
export const READOUTS = ["entropy", "distance", "first_token", "received"];

/** @type {Record<string, string>} */
const UNITS = { entropy: "nats", distance: "tokens" };

export const unitOf = (/** @type {string} */ name) => UNITS[name] ?? "";

export const wordsFor = (/** @type {string} */ name) => name.replaceAll("_", " ");

/** A head's score as it is written; it is exact, also where the vectors were kept in few bits. */
export const scoreOf = (/** @type {string} */ name, /** @type {number|null|undefined} */ value) =>
  signed(value, name === "distance" ? 1 : 2, 2);

/** One readout among all of them. */
export function readoutOf(/** @type {string} */ name, /** @type {Float32Array} */ values) {
  const length = values.length / READOUTS.length;
  const first = READOUTS.indexOf(name) * length;
  return values.subarray(first, first + length);
}
