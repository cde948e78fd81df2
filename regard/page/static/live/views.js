/** The views of a head other than its weights, as regard/lens/views.py defines them. */
import { Pattern } from "../kernels/pattern.js";

/**
 * S keys, E model dimension, D head dimension.
 * @typedef {import("../kernels/gpt.js").GPT} GPT
 */

const FACTORS = "PPPq Pqqq Pqqq";
const NONE = 0; // an address where nothing is

/** A head whose entries are its weights times a number a key. */
class Weighted extends Pattern {
  /** @param {Pattern} base @param {ArrayLike<number>} factors (S) */
  constructor(base, factors) {
    super(base.kernels, base.head);
    this.base = base;
    this.address = base.kernels.keep(factors);
  }

  factors() {
    return this.kernels.struct(FACTORS, [NONE, NONE, this.address, 0, NONE, 0, 0, 0, NONE, 0, 0, 0]);
  }

  logsumexps(/** @type {Span} */ queries) {
    return /** @type {Pattern} */ (this.base).logsumexps(queries);
  }

  release() {
    this.kernels.release(this.address);
    this.length = 0;
  }
}

/** The weights beside the keys that the head rests on, which are cut from all queries. */
export function without(/** @type {Pattern} */ { kernels, head, length }, /** @type {number[]} */ sinks) {
  const cuts = sinks.map((key) => ({
    queries: /** @type {Span} */ ([0, length]),
    keys: /** @type {Span} */ ([key, key + 1]),
  }));
  return new Pattern(kernels, { ...head, cuts: [...head.cuts, ...cuts] });
}

/** The weights times the lengths of the values behind W_O. @param {Pattern} weights @param {Float32Array} output (E, D) */
export function moved(weights, output) {
  const E = output.length / weights.head.valueDim;
  const arriving = products(weights, output);
  const norm = (/** @type {Float32Array} */ vector) => Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));
  return new Weighted(
    weights,
    Array.from({ length: weights.length }, (_, key) => norm(arriving.subarray(key * E, (key + 1) * E))),
  );
}

/** What each key adds to a logit. @param {Pattern} weights @param {number} head @param {Float64Array} reads (H·D), of `readsOf` */
export function toward(weights, head, reads) {
  const D = weights.head.valueDim;
  return new Weighted(weights, products(weights, reads.subarray(head * D, (head + 1) * D)));
}

/** What reads a logit from the contexts of a layer's heads (H·D), through W_O. @param {GPT} model @param {number} layer @param {Float64Array} along (E), of `alongOf` */
export function readsOf(model, layer, along) {
  const { dim: E, heads, head_dim: D } = model.config;
  const reads = new Float64Array(heads * D);
  model
    .rows(`h.${layer}.attn.c_proj`, 0, E, reads.length)
    .forEach((number, k) => (reads[k % reads.length] += along[Math.floor(k / reads.length)] * number));
  return reads;
}

/** The values (S, D) times each row of a matrix (O, D): (S, O). @param {Pattern} weights @param {ArrayLike<number>} matrix */
function products({ kernels, head, length }, matrix) {
  const D = head.valueDim;
  const outputs = matrix.length / D;
  return kernels.during(() => {
    const result = kernels.borrow(4 * length * outputs);
    const { address } = /** @type {{address: number}} */ (head.value);
    const operands = [address, kernels.lend(matrix), NONE, NONE, NONE, result];
    kernels.call("multiply", kernels.struct("qqqqqPPPPPP", [0, 1, length, D, outputs, ...operands]));
    return kernels.floats(result, length * outputs).slice();
  });
}

/** A head's part of W_O, (E, D). @param {GPT} model @param {number} layer @param {number} head */
export function outputOf(model, layer, head) {
  const { dim: E, heads, head_dim: D } = model.config;
  const width = heads * D;
  const whole = model.rows(`h.${layer}.attn.c_proj`, 0, E, width);
  const part = new Float32Array(E * D);
  for (let row = 0; row < E; row++)
    part.set(whole.subarray(row * width + head * D, row * width + (head + 1) * D), row * D);
  return part;
}

/**
 * What reads the logit of a token, or its lead over another's, from the stream (E) at the last token, whose scale the
 * final norm keeps.
 * @param {GPT} model @param {import("./subject.js").LiveRun} run @param {number} token @param {number} [other]
 */
export function alongOf(model, { ids, cache }, token, other) {
  const { kernels, config, weights } = model;
  const { dim: E, norm, norm_eps: epsilon } = config;
  const stream = centred(Float64Array.from(model.streamBehind(ids, cache)), norm);
  const scale = 1 / Math.sqrt(stream.reduce((sum, x) => sum + x * x, 0) / E + epsilon);
  const logitOf = (/** @type {number} */ id) => model.rows(model.unembedding, id, id + 1, E);
  const row = logitOf(token);
  if (other !== undefined) logitOf(other).forEach((number, k) => (row[k] -= number));
  const gain = kernels.floats(weights["ln_f.weight"], E);
  return centred(
    Float64Array.from(row, (number, k) => scale * gain[k] * number),
    norm,
  );
}

/** A vector as a norm of this kind centres it. @param {Float64Array} vector @param {"layer"|"rms"} norm */
function centred(vector, norm) {
  const mean = norm === "rms" ? 0 : vector.reduce((sum, x) => sum + x, 0) / vector.length;
  return vector.map((x) => x - mean);
}
