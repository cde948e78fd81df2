/** What follows from a model's options; mirrors the properties of `regard.gpt.GPTConfig`. */

/** D: the width of one head's query, key and value. */
export const headDim = (/** @type {GPTConfig} */ config) => config.dim / config.heads;

/** G: the number of key/value heads. */
export const groupCount = (/** @type {GPTConfig} */ config) => config.groups ?? config.heads;

/** W of a layer; null where it sees the whole context. */
export const layerWindow = (/** @type {GPTConfig} */ { window, global_every: every }, /** @type {number} */ layer) =>
  every != null && (layer + 1) % every === 0 ? null : window;
