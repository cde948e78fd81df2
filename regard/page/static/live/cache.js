/**
 * The queries, keys and values of a text's tokens, so that a model reads every token once; mirrors
 * `regard.gpt.cache.GPTCache`, with queries and log-sum-exps beside them, from which the page has every weight.
 */
import { groupCount, headDim } from "./config.js";

/**
 * What a layer keeps of each token.
 * @typedef {{query: Float32Array, key: Float32Array, value: Float32Array, logsumexp: Float64Array}} LayerCache
 * query (S, H·D), key and value (S, G·D), logsumexp (S, H)
 */

export class Cache {
  /** @param {GPTConfig} config @param {number} capacity most tokens */
  constructor(config, capacity) {
    const [D, G] = [headDim(config), groupCount(config)];
    this.length = 0;
    this.capacity = capacity;
    /** @type {LayerCache[]} */
    this.layers = Array.from({ length: config.layers }, () => ({
      query: new Float32Array(capacity * config.heads * D),
      key: new Float32Array(capacity * G * D),
      value: new Float32Array(capacity * G * D),
      logsumexp: new Float64Array(capacity * config.heads),
    }));
  }

  /**
   * A cache of its first tokens, with room for more; this one stays as it is. Mirrors `GPTCache.branch`.
   * @param {GPTConfig} config @param {number} length @param {number} capacity
   */
  branch(config, length, capacity) {
    const copy = new Cache(config, capacity);
    copy.length = length;
    for (const [number, layer] of this.layers.entries()) {
      for (const name of /** @type {const} */ (["query", "key", "value", "logsumexp"])) {
        const width = layer[name].length / this.capacity;
        copy.layers[number][name].set(layer[name].subarray(0, length * width));
      }
    }
    return copy;
  }
}
