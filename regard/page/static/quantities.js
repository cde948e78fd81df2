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

/**
 * What an entry of a pattern is called in each view: beside a number, over a text, and what keys are to a token in it.
 * @type {Record<Shows, {entry: string, asks: string, gives: string, takes: string}>}
 */
export const WORDS = {
  weight: { entry: "weight", asks: "Where does it look?", gives: "it attends to", takes: "attends to it" },
  moved: { entry: "moved", asks: "What does it get?", gives: "it gets from", takes: "gets from it" },
  toward: {
    entry: "added",
    asks: "What adds to the answer?",
    gives: "adds; blue: takes",
    takes: "by it, in later tokens",
  },
  without: {
    entry: "weight",
    asks: "Where does it look beside a sink?",
    gives: "it attends to",
    takes: "attends to it",
  },
};

/** The name of a role that a text is too short to tell, as regard/lens/naming/roles.py has it. */
export const TOO_SHORT = "text too short to tell";

/** Whether the entries of a view are weights, which add up to 1. */
export const areWeights = (/** @type {Shows} */ shows) => shows === "weight" || shows === "without";

/** The entry of the greatest size, or −1 where all are 0. */
export function strongestOf(/** @type {ArrayLike<number>} */ entries) {
  let best = -1;
  for (let k = 0; k < entries.length; k++)
    if (Math.abs(entries[k]) > (best < 0 ? 0 : Math.abs(entries[best]))) best = k;
  return best;
}

/** A key is a sink of the model if so many of its heads rest on it, as regard/lens/sink_keys.py has it. */
const FEW_HEADS = 0.03;

/** The sinks of a model with the number of heads that rest on each, the most first. @param {number[][]} sinks of each head */
export function restsOf(sinks) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const key of sinks.flat()) counts.set(key, (counts.get(key) ?? 0) + 1);
  return [...counts]
    .map(([key, heads]) => ({ key, heads }))
    .filter(({ heads }) => heads >= FEW_HEADS * sinks.length)
    .sort((a, b) => b.heads - a.heads || a.key - b.key);
}

/** The greatest size of some entries. */
export function greatestOf(/** @type {ArrayLike<number>} */ entries) {
  let most = 0;
  for (let k = 0; k < entries.length; k++) if (Math.abs(entries[k]) > most) most = Math.abs(entries[k]);
  return most;
}

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
