/**
 * Attention step by step, as `regard/steps.py` defines it: q·k → scale → mask → softmax → dropout → weighted sum.
 *
 * @typedef {number[][]} Table rows of numbers
 * @typedef {{query?: Table, key?: Table, scores?: Table, value?: Table, scale: number, temperature: number,
 *   causal: boolean, dropout: number, survives: boolean[][]}} Attention
 *   scores: in place of query and key; survives: which weights dropout leaves
 * @typedef {{scores: Table, scaled: Table, masked: Table, weights: Table, dropped: Table, context: Table|null}} Steps
 */

/** @returns {Steps} */
export function stepsOf(/** @type {Attention} */ attention) {
  const { query, key, value, scale, temperature, causal, dropout, survives } = attention;
  const scores = attention.scores ?? product(/** @type {Table} */ (query), transposed(/** @type {Table} */ (key)));
  const scaled = scores.map((row) => row.map((score) => (score * scale) / temperature));
  const masked = scaled.map((row, i) => row.map((score, j) => (causal && j > i ? -Infinity : score)));
  const weights = masked.map(softmax);
  const kept = 1 / (1 - dropout);
  const dropped = dropout ? weights.map((row, i) => row.map((w, j) => (survives[i][j] ? w * kept : 0))) : weights;
  return { scores, scaled, masked, weights, dropped, context: value ? product(dropped, value) : null };
}

/** Shares that sum to 1; subtracting the largest score keeps the exponentials from growing too large. */
export function softmax(/** @type {number[]} */ scores) {
  const largest = Math.max(...scores);
  const exponentials = scores.map((score) => Math.exp(score - largest));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((one) => one / sum);
}

/** @returns {Table} a @ b */
export function product(/** @type {Table} */ a, /** @type {Table} */ b) {
  return a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
}

const transposed = (/** @type {Table} */ table) => table[0].map((_, j) => table.map((row) => row[j]));
