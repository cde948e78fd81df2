/** Which head writes the next token, and from where: shares of its lead over the second likeliest, which add up. */
import { row } from "../kernels/pattern.js";
import { visible } from "./labels.js";
import { largest } from "./sampling.js";
import { alongOf } from "./views.js";

const DECIDES = 0.1; // nats that are lost without a head that decides, as in regard/lens/toward.py

/**
 * E model dimension, D head dimension.
 * @param {import("./subject.js").Subject} subject @param {import("./subject.js").LiveRun} one
 * @returns {Generator<void, Writer>}
 */
export function* writerOf(subject, one) {
  const { model } = subject;
  const { layers, heads, dim: E } = model.config;
  const [token, other] = largest(one.probabilities, 2);
  const against = alongOf(model, one, other);
  const along = alongOf(model, one, token).map((number, k) => number - against[k]);
  let best = { layer: 0, head: 0, source: 0, share: -Infinity };
  for (let layer = 0; layer < layers; layer++) {
    const reads = new Float64Array(E); // by W_O, from the contexts of all heads
    const output = model.rows(`h.${layer}.attn.c_proj`, 0, E, E);
    output.forEach((number, k) => (reads[k % E] += along[Math.floor(k / E)] * number));
    for (let head = 0; head < heads; head++) {
      const { source, share } = shareOf(subject, one, layer, head, reads);
      if (share > best.share) best = { layer, head, source, share };
    }
    yield;
  }
  const loss = -(yield* effectOf(subject, one, best, token));
  const [name] = subject.tokenizer.tokens([other]);
  const margin = one.logits[token] - one.logits[other];
  return { ...best, against: visible(name), margin, loss, decides: loss >= DECIDES };
}

/**
 * What a head adds, and the token from which most of it comes.
 * @param {import("./subject.js").Subject} subject @param {import("./subject.js").LiveRun} one
 * @param {number} layer @param {number} head @param {Float64Array} reads
 */
function shareOf(subject, one, layer, head, reads) {
  const { kernels, config } = subject.model;
  const D = config.head_dim;
  const pattern = subject.head(one, layer, head);
  const { address, stride } = /** @type {import("../kernels/pattern.js").Rows} */ (pattern.head.value);
  const weights = row([pattern], one.ids.length - 1);
  let [source, most, share] = [0, 0, 0];
  weights.forEach((weight, key) => {
    const value = kernels.floats(address + 4 * key * stride, D);
    let moved = 0;
    for (let k = 0; k < D; k++) moved += value[k] * reads[head * D + k];
    share += weight * moved;
    if (Math.abs(weight * moved) > most) [source, most] = [key, Math.abs(weight * moved)];
  });
  return { source, share };
}

/**
 * By how much the log-probability of a token changes without a head.
 * @param {import("./subject.js").Subject} subject @param {import("./subject.js").LiveRun} one
 * @param {{layer: number, head: number}} place @param {number} token
 * @returns {Generator<void, number>}
 */
function* effectOf(subject, one, { layer, head }, token) {
  const changed = yield* subject.change(one, [{ kind: "off", layer, head }]);
  return Math.log(changed.probabilities[token] / one.probabilities[token]);
}
