/**
 * A GPT in typed arrays: what `regard/gpt/model.py` computes, function by function.
 *
 * T new tokens, S tokens in the cache, these included, E model dimension, H heads, G key/value heads, D head
 * dimension, V vocabulary. A matrix lies row by row in a Float32Array; sums are taken in float64.
 *
 * @typedef {Record<string, Float32Array>} Weights by the names that they have in Python
 * @typedef {{config: GPTConfig, weights: Weights}} GPT
 */
import { attend } from "./attend.js";
import { groupCount, headDim } from "./config.js";
import { linear } from "./products.js";

const ROWS = 64; // tokens that go through all layers before the caller has its turn

/**
 * The residual stream after the last norm, of tokens that are appended to a cache; mirrors `GPT._run`.
 *
 * Pauses after every few tokens, so that other work may come between.
 * @param {GPT} model @param {ArrayLike<number>} ids (T) @param {import("./cache.js").Cache} cache
 * @param {Intervention[]} changes
 * @returns {Generator<void, Float32Array>} (T, E)
 */
export function* run(model, ids, cache, changes = []) {
  const { config } = model;
  // A mean over the rows of a call needs all of them.
  const together = changes.some((change) => change.kind === "ablate" && change.by === "mean") ? ids.length : ROWS;
  const result = new Float32Array(ids.length * config.dim);
  for (let start = 0; start < ids.length; start += together) {
    const some = Array.from(ids).slice(start, start + together);
    /** @type {Float32Array} */
    let x = embed(model, some, cache.length);
    const rotation = config.positions === "rotary" ? rotationOf(config, cache.length, some.length) : null;
    for (let layer = 0; layer < config.layers; layer++) {
      x = block(model, layer, x, some.length, rotation, cache, changes);
    }
    cache.length += some.length;
    result.set(normed(model, x), start * config.dim);
    yield;
  }
  return result;
}

/** The stream after the last norm. */
export const normed = (/** @type {GPT} */ { config, weights }, /** @type {Float32Array} */ x) =>
  norm(config, x, weights, "ln_f");

/** Logits (rows, V) of rows of the stream: the embedding again, transposed. Mirrors the end of `GPT.forward`. */
export const logitsOf = (/** @type {GPT} */ { weights }, /** @type {Float32Array} */ x, /** @type {number} */ rows) =>
  linear(x, rows, weights["wte.weight"], undefined);

/** The vectors of tokens, with those of their positions where these are learned. */
export function embed(
  /** @type {GPT} */ { config, weights },
  /** @type {number[]} */ ids,
  /** @type {number} */ first,
) {
  const { dim } = config;
  const x = new Float32Array(ids.length * dim);
  const [tokens, positions] = [weights["wte.weight"], weights["wpe.weight"]];
  ids.forEach((id, row) => {
    x.set(tokens.subarray(id * dim, (id + 1) * dim), row * dim);
    if (positions) add(x, row * dim, positions.subarray((first + row) * dim, (first + row + 1) * dim));
  });
  return x;
}

/**
 * One layer; mirrors `Block.forward`.
 * @param {GPT} model @param {number} layer @param {Float32Array} x (T, E) @param {number} rows
 * @param {Rotation|null} rotation @param {import("./cache.js").Cache} cache @param {Intervention[]} changes
 */
export function block({ config, weights }, layer, x, rows, rotation, cache, changes) {
  const name = `h.${layer}`;
  const middle = attention(
    config,
    weights,
    layer,
    norm(config, x, weights, `${name}.ln_1`),
    rows,
    rotation,
    cache,
    changes,
  );
  add(middle, 0, x);
  const result = mlp(config, weights, `${name}.mlp`, norm(config, middle, weights, `${name}.ln_2`), rows);
  add(result, 0, middle);
  return result;
}

/**
 * Causal self-attention with H heads; mirrors `Attention.forward`.
 * @param {GPTConfig} config @param {Weights} weights @param {number} layer @param {Float32Array} x (T, E)
 * @param {number} rows @param {Rotation|null} rotation @param {import("./cache.js").Cache} cache
 * @param {Intervention[]} changes
 */
function attention(config, weights, layer, x, rows, rotation, cache, changes) {
  const name = `h.${layer}.attn`;
  project(config, weights, layer, x, rows, rotation, cache);
  const context = attend(config, layer, cache, rows, changes); // (T, H·D)
  return linear(context, rows, weights[`${name}.c_proj.weight`], weights[`${name}.c_proj.bias`]);
}

/**
 * Query, key and value, with QK-norm and rotation where configured, into the cache; mirrors `Attention.project`.
 * @param {GPTConfig} config @param {Weights} weights @param {number} layer @param {Float32Array} x (T, E)
 * @param {number} rows @param {Rotation|null} rotation @param {import("./cache.js").Cache} cache
 */
function project(config, weights, layer, x, rows, rotation, cache) {
  const name = `h.${layer}.attn`;
  const [D, G] = [headDim(config), groupCount(config)];
  const widths = [config.heads * D, G * D, G * D];
  const all = linear(x, rows, weights[`${name}.c_attn.weight`], weights[`${name}.c_attn.bias`]);
  const { query, key, value } = cache.layers[layer];
  for (let row = 0, at = 0; row < rows; row++) {
    for (const [place, part] of [query, key, value].entries()) {
      part.set(all.subarray(at, at + widths[place]), (cache.length + row) * widths[place]);
      at += widths[place];
    }
  }
  for (const [part, width, gains] of /** @type {const} */ ([
    [query, widths[0], weights[`${name}.q_norm.weight`]],
    [key, widths[1], weights[`${name}.k_norm.weight`]],
  ])) {
    const rowsOfPart = part.subarray(cache.length * width, (cache.length + rows) * width);
    if (gains) normalise(rowsOfPart, D, gains, null, config.norm_eps, false);
    if (rotation) rotate(rowsOfPart, width, D, rotation);
  }
}

/**
 * Cosine and sine of each position and pair, (T, D/2); mirrors `Rotation.of`, its rounding to float32 included.
 * @typedef {{cos: Float32Array, sin: Float32Array}} Rotation
 * @returns {Rotation}
 */
export function rotationOf(/** @type {GPTConfig} */ config, /** @type {number} */ first, /** @type {number} */ rows) {
  const D = headDim(config);
  const half = D / 2;
  const frequencies = Float32Array.from({ length: half }, (_, pair) => config.rotary_base ** -((2 * pair) / D));
  const angles = Float32Array.from(
    { length: rows * half },
    (_, k) => (first + Math.floor(k / half)) * frequencies[k % half],
  );
  return { cos: angles.map(Math.cos), sin: angles.map(Math.sin) };
}

/**
 * Rotates every head of every row, in place: channels i and i + D/2 make a pair. Mirrors `Rotation.__call__`.
 * @param {Float32Array} x (T, width) @param {number} width @param {number} D @param {Rotation} rotation
 */
function rotate(x, width, D, { cos, sin }) {
  const half = D / 2;
  for (let at = 0; at < x.length; at += D) {
    const angle = Math.floor(at / width) * half;
    for (let pair = 0; pair < half; pair++) {
      const [c, s, a, b] = [cos[angle + pair], sin[angle + pair], x[at + pair], x[at + half + pair]];
      x[at + pair] = a * c - b * s;
      x[at + half + pair] = b * c + a * s;
    }
  }
}

/**
 * LayerNorm or RMSNorm of each row; mirrors `_norm`.
 * @param {GPTConfig} config @param {Float32Array} x (T, E) @param {Weights} weights @param {string} name
 */
function norm(config, x, weights, name) {
  const result = x.slice();
  const [gains, bias] = [weights[`${name}.weight`], weights[`${name}.bias`]];
  normalise(result, config.dim, gains, bias ?? null, config.norm_eps, config.norm === "layer");
  return result;
}

/**
 * Divides each row by its root mean square, in place; `centred`: after its mean was taken away.
 * @param {Float32Array} x @param {number} dim @param {Float32Array} gains @param {Float32Array|null} bias
 * @param {number} eps @param {boolean} centred
 */
function normalise(x, dim, gains, bias, eps, centred) {
  for (let at = 0; at < x.length; at += dim) {
    let mean = 0;
    if (centred) {
      for (let k = 0; k < dim; k++) mean += x[at + k];
      mean /= dim;
    }
    let squares = 0;
    for (let k = 0; k < dim; k++) squares += (x[at + k] - mean) ** 2;
    const scale = 1 / Math.sqrt(squares / dim + eps);
    for (let k = 0; k < dim; k++) x[at + k] = (x[at + k] - mean) * scale * gains[k] + (bias ? bias[k] : 0);
  }
}

/**
 * The feed-forward layer; mirrors `MLP.forward` and `SwiGLU.forward`.
 * @param {GPTConfig} config @param {Weights} weights @param {string} name @param {Float32Array} x (T, E)
 * @param {number} rows
 */
function mlp(config, weights, name, x, rows) {
  const wide = linear(x, rows, weights[`${name}.c_fc.weight`], weights[`${name}.c_fc.bias`]);
  const hidden = config.mlp === "gelu" ? gelu(wide) : swiglu(wide, rows);
  return linear(hidden, rows, weights[`${name}.c_proj.weight`], weights[`${name}.c_proj.bias`]);
}

const sigmoid = (/** @type {number} */ x) => 1 / (1 + Math.exp(-x));

/** GPT-2's GELU, the tanh form, written with a sigmoid, in place; mirrors `_gelu`. */
function gelu(/** @type {Float32Array} */ x) {
  const slope = Math.sqrt(8 / Math.PI);
  for (let k = 0; k < x.length; k++) x[k] *= sigmoid(slope * (x[k] + 0.044715 * x[k] * x[k] * x[k]));
  return x;
}

/** silu(gate) · up, of rows that hold the gates first. */
function swiglu(/** @type {Float32Array} */ x, /** @type {number} */ rows) {
  const hidden = x.length / rows / 2;
  const result = new Float32Array(rows * hidden);
  for (let row = 0; row < rows; row++) {
    for (let k = 0; k < hidden; k++) {
      const [gate, up] = [x[2 * row * hidden + k], x[(2 * row + 1) * hidden + k]];
      result[row * hidden + k] = gate * sigmoid(gate) * up;
    }
  }
  return result;
}

/** Adds numbers to those from a place on. */
function add(/** @type {Float32Array} */ x, /** @type {number} */ at, /** @type {Float32Array} */ more) {
  for (let k = 0; k < more.length; k++) x[at + k] += more[k];
}

/** Probabilities of logits, in float64. @param {ArrayLike<number>} logits */
export function softmax(logits) {
  let most = -Infinity;
  for (let k = 0; k < logits.length; k++) if (logits[k] > most) most = logits[k];
  const shares = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = shares.reduce((total, share) => total + share, 0);
  return shares.map((share) => share / sum);
}
