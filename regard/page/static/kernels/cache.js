/** The queries, keys and values of a text's tokens in the kernels' memory, so that a model reads every token once. */

/**
 * Addresses of a layer's numbers: query (S, H·D), key and value (G, capacity, D).
 * @typedef {{query: number, key: number, value: number}} LayerCache
 */

export class Cache {
  /** @param {import("./memory.js").Kernels} kernels @param {GPTConfig} config @param {number} capacity most tokens */
  constructor(kernels, config, capacity) {
    this.kernels = kernels;
    this.config = config;
    this.length = 0;
    this.capacity = capacity;
    this.address = kernels.allocate(this.bytes); // at once, since memory takes long to grow
    const [query, key] = this.sizes();
    /** @type {LayerCache[]} */
    this.layers = Array.from({ length: config.layers }, (_, layer) => {
      const at = this.address + 4 * layer * (query + 2 * key);
      return { query: at, key: at + 4 * query, value: at + 4 * (query + key) };
    });
  }

  /** Numbers of a layer's queries, and of its keys or values. */
  sizes() {
    const { config, capacity } = this;
    return [capacity * config.heads * config.head_dim, capacity * config.groups * config.head_dim];
  }

  /** What it takes of the memory. */
  get bytes() {
    const [query, key] = this.sizes();
    return 4 * this.config.layers * (query + 2 * key);
  }

  /** A cache of the first tokens, with room for more; this one stays as it is. */
  branch(/** @type {number} */ length, /** @type {number} */ capacity) {
    const { kernels, config } = this;
    if (!this.layers.length) throw new Error("This text is not open any more; open it again.");
    const copy = new Cache(kernels, config, capacity);
    copy.length = length;
    const D = config.head_dim;
    for (const [number, { query, key, value }] of this.layers.entries()) {
      const to = copy.layers[number];
      kernels.copy(query, to.query, length * config.heads * D);
      for (let group = 0; group < config.groups; group++) {
        for (const [old, fresh] of [
          [key, to.key],
          [value, to.value],
        ])
          kernels.copy(old + 4 * group * this.capacity * D, fresh + 4 * group * capacity * D, length * D);
      }
    }
    return copy;
  }

  /** Gives the memory back; nothing can be read from it any more. */
  release() {
    if (this.layers.length) this.kernels.release(this.address);
    this.layers = [];
  }
}
