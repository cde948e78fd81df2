/** What the numbers of heads are called, in the server's order, and their units. */

/** The scores that heads are sorted by. @type {Score[]} */
export const SCORES = [
  "previous_token",
  "first_token",
  "current_token",
  "induction",
  "duplicate_token",
  "entropy",
  "distance",
];
/** A head's readouts along the text. */
export const READOUTS = ["entropy", "distance", "first_token", "received"];

/** @type {Record<string, string>} */
const UNITS = { entropy: "nats", distance: "tokens" };

export const unitOf = (/** @type {string} */ name) => UNITS[name] ?? "";

export const wordsFor = (/** @type {string} */ name) => name.replaceAll("_", " ");

/** One readout among all of them. */
export function readoutOf(/** @type {string} */ name, /** @type {Float32Array} */ values) {
  const length = values.length / READOUTS.length;
  const first = READOUTS.indexOf(name) * length;
  return values.subarray(first, first + length);
}
