/**
 * What a widget holds: the page's numbers, and what its reader made of them.
 *
 * @typedef {import("./attention.js").Table} Table
 * @typedef {import("./attention.js").Steps} Steps
 * @typedef {{x?: Table, query?: Table, key?: Table, value?: Table, scores?: Table, survives?: Table, labels: string[],
 *   scaled: boolean, causal: boolean, dropout: number, queryAt: number}} Settings
 *   scaled: by 1/√D; survives: above 0 where dropout leaves a weight
 * @typedef {{x?: Table, query?: Table, key?: Table, value?: Table, scores?: Table, survives: boolean[][],
 *   scaled: boolean, causal: boolean, temperature: number, dropout: number}} State
 */
import { stepsOf } from "./attention.js";

const copied = (/** @type {Table|undefined} */ table) => table?.map((row) => [...row]);

/** What the page says. @returns {State} */
export function begin(/** @type {Settings} */ settings) {
  const { x, query, key, value, scores, survives, scaled, causal, dropout } = settings;
  const size = (query ?? scores ?? []).length;
  return {
    ...(x ? { x: copied(x) } : { query: copied(query), key: copied(key), value: copied(value) }),
    scores: copied(scores),
    survives: survives?.map((row) => row.map((one) => one > 0)) ?? drawn(size, dropout),
    scaled,
    causal,
    temperature: 1,
    dropout,
  };
}

/** Which weights a draw leaves, each with probability 1 − p. */
export const drawn = (/** @type {number} */ size, /** @type {number} */ p) =>
  Array.from({ length: size }, () => Array.from({ length: size }, () => Math.random() >= p));

/** The tables that may be changed, in the order of the computation. @returns {("x"|"query"|"key"|"value"|"scores")[]} */
export const inputsOf = (/** @type {Settings} */ settings) =>
  settings.x
    ? ["x"]
    : /** @type {const} */ (["query", "key", "scores", "value"]).filter((name) => settings[name] != null);

/** D, the channels of a query. */
export const dimOf = (/** @type {Settings} */ settings) => (settings.x ?? settings.query)?.[0].length ?? 1;

export const scaleOf = (/** @type {Settings} */ settings, /** @type {State} */ state) =>
  state.scaled ? 1 / Math.sqrt(dimOf(settings)) : 1;

/** @returns {Steps} */
export function compute(/** @type {Settings} */ settings, /** @type {State} */ state) {
  const { x, query = x, key = x, value = x } = state;
  return stepsOf({ ...state, query, key, value, scale: scaleOf(settings, state) });
}
