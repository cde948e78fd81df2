/** What a widget says: numbers, and the sentence of each step that the player shows. */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Steps} Steps */
/** @typedef {{step: keyof Steps, key?: number}} Frame */

/** A number with so many decimals, and a minus that is one. */
export function written(/** @type {number} */ number, decimals = 4) {
  if (number === -Infinity) return "−∞";
  const text = number.toFixed(decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

const vector = (/** @type {number[]} */ row) => `(${row.map((one) => written(one)).join(", ")})`;
const named = (/** @type {string} */ label) => (/^\d+$/.test(label) ? `position ${label}` : `“${label}”`);
/** A factor that may be below 0, as it stands in a product. */
const factor = (/** @type {number} */ number) => (number < 0 ? `(${written(number)})` : written(number));

/**
 * The frames of one query's computation, in order.
 * @param {State} state @param {Steps} steps @returns {Frame[]}
 */
export function framesOf(state, steps) {
  /** @type {Frame[]} */
  const products = steps.scores[0].map((_, key) => ({ step: "scores", key }));
  return ORDER.filter((step) => changes(step, state, steps)).flatMap((step) =>
    step === "scores" ? products : [{ step }],
  );
}

/** The steps in the order of the computation. @type {(keyof Steps)[]} */
export const ORDER = ["scores", "scaled", "masked", "weights", "dropped", "context"];

/** Whether a step does anything: a factor of 1, a mask that hides nothing and no dropout do not. */
export function changes(/** @type {keyof Steps} */ step, /** @type {State} */ state, /** @type {Steps} */ steps) {
  if (step === "scores") return !state.scores;
  if (step === "scaled") return steps.scaled.some((row, i) => row.some((one, j) => one !== steps.scores[i][j]));
  if (step === "masked") return state.causal;
  if (step === "dropped") return state.dropout > 0;
  return steps[step] !== null;
}

/**
 * @param {Frame} frame @param {number} query @param {string[]} labels @param {State} state @param {Steps} steps
 * @param {number} scale
 */
export function sentence({ step, key = 0 }, query, labels, state, steps, scale) {
  const who = named(labels[query]);
  const { x, query: queries = x, key: keys = x, value: values = x } = state;
  if (step === "scores") {
    const [q, k] = [queries?.[query] ?? [], keys?.[key] ?? []];
    const terms = q.map((one, at) => `${factor(one)} · ${factor(k[at])}`).join(" + ");
    return `Score of ${who} and ${named(labels[key])}: ${terms} = ${written(steps.scores[query][key])}`;
  }
  if (step === "scaled") {
    const by = scale / state.temperature;
    const [before, after] = [steps.scores[query][0], steps.scaled[query][0]];
    return `Scaled: each score times ${written(by)}. The first: ${factor(before)} · ${written(by)} = ${written(after)}`;
  }
  if (step === "masked") {
    const seen = steps.masked[query].filter((score) => score > -Infinity).length;
    const all = steps.masked[query].length;
    return `Masked: ${who} sees ${seen} of ${all} keys${seen < all ? "; the others get −∞" : ""}`;
  }
  if (step === "weights") {
    const exponentials = steps.masked[query].map(Math.exp);
    const sum = exponentials.reduce((a, b) => a + b, 0);
    const at = steps.weights[query].indexOf(Math.max(...steps.weights[query]));
    const share = `${written(exponentials[at])} / ${written(sum)} = ${written(steps.weights[query][at])}`;
    return `Weights: each exponential divided by the sum of all. The largest, on ${named(labels[at])}: ${share}`;
  }
  if (step === "dropped") {
    const left = state.survives[query].filter((one, at) => one && steps.weights[query][at] > 0).length;
    return `Dropped: ${left} weights are left, each times ${written(1 / (1 - state.dropout))}`;
  }
  const weights = steps.dropped[query];
  const terms = weights.map((w, at) => [w, at]).filter(([w]) => w > 0);
  const sum = terms.map(([w, at]) => `${written(w)} · ${vector(values?.[at] ?? [])}`).join(" + ");
  return `Context: ${sum || "nothing"} = ${vector(steps.context?.[query] ?? [])}`;
}
