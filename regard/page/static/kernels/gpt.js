/**
 * A GPT whose weights lie in the kernels' memory: its tokens are read by the kernel of generation, some at a time.
 * Its matrices are of float32, or all of them of int8 with a scale a row, or all of them in the blocks of a GGUF.
 *
 * T new tokens, E model dimension, H heads, D head dimension, V vocabulary.
 */
import { Cache } from "./cache.js";

const ROWS = 32; // tokens that are read before the caller has its turn
const NORM = " PPqd";
const LAYER = `${NORM.repeat(6)} ${"PPPP".repeat(4)} Pqqq Pqqq qqqqPPPq PPPqqqq P`;
const GPT_STEP = `${"q".repeat(13)}dddd${"P".repeat(12)}${NORM}PPPPP`;
const MLPS = ["gelu", "swiglu", "geglu"]; // by their numbers
const NONE = 0; // an address where nothing is
const FAR = 2 ** 52; // a window that no text reaches

/**
 * @typedef {{changes?: Intervention[], keep?: number[], from?: {layer: number, stream: number}}} Reading
 * changes: of the attention; keep: addresses to which the stream before each layer (T, E) is written, see also
 * `streamBehind`; from: a layer, the stream before it, in place of the tokens
 */

export class GPT {
  /**
   * @param {import("./memory.js").Kernels} kernels @param {GPTConfig} config
   * @param {Record<string, number>} weights their addresses, by the names that they have in Python
   */
  constructor(kernels, config, weights) {
    this.kernels = kernels;
    this.config = config;
    this.weights = weights;
    this.rotation = config.positions === "rotary" ? this.rotationTables() : [NONE, NONE];
    this.layers = Array.from({ length: config.layers }, (_, layer) => this.weightsOf(layer));
  }

  /** Room for so many tokens. */
  cache(/** @type {number} */ capacity) {
    return new Cache(this.kernels, this.config, capacity);
  }

  /** Cosine and sine of each position and pair, (context, D/2), rounded to float32 as in Python. */
  rotationTables() {
    const { config, kernels } = this;
    const half = config.head_dim / 2;
    const frequencies = Float32Array.from(config.rotary_frequencies ?? []);
    const angles = Float32Array.from(
      { length: config.context * half },
      (_, k) => Math.floor(k / half) * frequencies[k % half],
    );
    return [kernels.keep(angles.map(Math.cos)), kernels.keep(angles.map(Math.sin))];
  }

  /**
   * Reads tokens that are appended to a cache; the logits (V) after the last one.
   * @param {ArrayLike<number>} ids (T) @param {Cache} cache @param {Reading} [reading]
   * @returns {Generator<void, Float32Array>}
   */
  *read(ids, cache, reading = {}) {
    for (let done = 0; ; done += ROWS) {
      const some = Array.from(ids).slice(done, done + ROWS);
      const isLast = done + some.length === ids.length;
      const logits = this.kernels.during(() => this.step(some, cache, reading, done, isLast));
      cache.length += some.length;
      yield;
      if (isLast) return logits;
    }
  }

  /** @param {number[]} ids @param {Cache} cache @param {Reading} reading @param {number} done @param {boolean} isLast */
  step(ids, cache, { changes = [], keep = [], from = { layer: 0, stream: NONE } }, done, isLast) {
    const { kernels, config, weights } = this;
    const { dim, heads, layers, vocab_size: V } = config;
    const at = (/** @type {number} */ address) => address && address + 4 * done * dim;
    const [cosines, sines] = this.rotation.map((table) => table && table + 2 * cache.length * config.head_dim);
    const numbers = Array.from({ length: Math.max(layers, keep.length) - from.layer }, (_, k) => from.layer + k);
    const fields = numbers.flatMap((number) =>
      this.layer(Math.min(number, layers - 1), ids.length, cache, changes, at(keep[number] ?? NONE)),
    );
    const result = kernels.borrow(4 * V);
    const places = ids.map((_, row) => cache.length + row);
    const step = [
      ...[0, kernels.threads, ids.length, numbers.length],
      ...[dim, heads, config.groups, config.head_dim, config.hidden_dim, V],
      ...[MLPS.indexOf(config.mlp), 1, ids.length - Number(isLast), config.embedding_factor],
      ...[1 / Math.sqrt(config.head_dim), 0, 0],
      ...[at(from.stream), kernels.lendWhole(ids), kernels.lendWhole(places), NONE],
      ...[...this.linear("wte"), weights["wpe.weight"] ?? NONE, cosines, sines],
      ...[kernels.struct(LAYER.repeat(numbers.length), fields), ...this.norm("ln_f")],
      ...[...this.linear(this.unembedding), result],
    ];
    kernels.call("gpt_step", kernels.struct(GPT_STEP, step));
    return kernels.floats(result, V).slice();
  }

  /** The stream (E) behind the last layer at the last of some tokens, which a cache holds. */
  streamBehind(/** @type {number[]} */ ids, /** @type {Cache} */ cache) {
    const { kernels, config } = this;
    const own = cache.branch(ids.length - 1, ids.length);
    try {
      return kernels.during(() => {
        // It is kept before one layer more, in whose place the last one is computed again, to no purpose.
        const result = kernels.borrow(4 * config.dim);
        const keep = [...new Array(config.layers).fill(NONE), result];
        this.step(ids.slice(-1), own, { keep }, 0, false);
        return kernels.floats(result, config.dim).slice();
      });
    } finally {
      own.release();
    }
  }

  /**
   * A layer's addresses, its part of the cache, and what is changed in it.
   * @param {number} layer @param {number} rows @param {Cache} cache @param {Intervention[]} changes
   * @param {number} keep
   */
  layer(layer, rows, cache, changes, keep) {
    const { config, kernels } = this;
    const D = config.head_dim;
    const { query, key, value } = cache.layers[layer];
    const here = changes.filter((change) => (change.layer ?? layer) === layer);
    const { norms, input, mlp } = this.layers[layer];
    const output = [...this.layers[layer].output];
    const put = here.find((change) => change.kind === "replace");
    if (put) output[1] = kernels.lend(this.biasWith(put, output[1], cache.length));
    return [
      ...[...norms, ...new Array(8).fill(NONE), ...input, ...output, ...mlp],
      ...[key, 0, cache.capacity * D, D, value, 0, cache.capacity * D, D],
      ...[cache.length + rows, 0, config.windows[layer] ?? FAR, 0],
      ...[keep, query + 4 * cache.length * config.heads * D, NONE, 0],
      ...this.spans(here, rows, cache.length),
      here.some(({ kind }) => kind !== "knock_out") ? kernels.lend(this.kept(here)) : NONE,
    ];
  }

  /** The addresses of a layer's norms, and of the maps of its attention and its MLP. */
  weightsOf(/** @type {number} */ layer) {
    const norm = (/** @type {string} */ name) => this.norm(`h.${layer}.${name}`);
    const linear = (/** @type {string} */ name) => this.linear(`h.${layer}.${name}`);
    return {
      norms: ["ln_1", "attn.q_norm", "attn.k_norm", "ln_2"].flatMap(norm),
      input: linear("attn.c_attn"),
      output: linear("attn.c_proj"),
      mlp: [...linear("mlp.c_fc"), ...linear("mlp.c_proj")],
    };
  }

  /** The keys that are knocked out, as tables of those that each query loses in each head. */
  spans(/** @type {Intervention[]} */ changes, /** @type {number} */ rows, /** @type {number} */ first) {
    const { kernels, config } = this;
    const cuts = changes.flatMap((change) => (change.kind === "knock_out" ? [change] : []));
    if (!cuts.length) return [NONE, NONE, NONE, 0, 0, 0, 0];
    const table = (/** @type {0|1} */ end) =>
      kernels.lendWhole(
        cuts.flatMap(({ head, queries, keys }) =>
          Array.from({ length: rows * config.heads }, (_, k) => {
            const query = first + Math.floor(k / config.heads);
            const isMeant = !queries || (query >= queries[0] && query < queries[1]);
            return isMeant && (head ?? k % config.heads) === k % config.heads ? Math.min(keys[end], first + rows) : 0;
          }),
        ),
      );
    const added = kernels.lend(new Array(cuts.length).fill(-Infinity));
    return [table(0), table(1), added, cuts.length, rows * config.heads, config.heads, 1];
  }

  /**
   * The bias of W_O with what is put in the place of a head at a position, (E): positions are then read one by one.
   * @param {Replacement} put @param {number} bias its address @param {number} position
   */
  biasWith({ added }, bias, position) {
    const { dim } = this.config;
    const own = bias === NONE ? null : this.kernels.floats(bias, dim);
    return Float32Array.from({ length: dim }, (_, k) => added[position * dim + k] + (own?.[k] ?? 0));
  }

  /** 0 for each channel of the contexts of heads that are switched off or replaced, else 1, (H·D). */
  kept(/** @type {Intervention[]} */ changes) {
    const D = this.config.head_dim;
    return Array.from({ length: this.config.heads * D }, (_, channel) =>
      Number(
        !changes.some(
          ({ kind, head }) => kind !== "knock_out" && (head ?? Math.floor(channel / D)) === Math.floor(channel / D),
        ),
      ),
    );
  }

  /** The addresses of a linear map: matrix, bias, scales if it is of int8, and the table of its blocks in its place. */
  linear(/** @type {string} */ name) {
    const { weights } = this;
    const matrix = weights[`${name}.weight`] ?? weights[`${name}.int8_weight`];
    return [matrix, ...["bias", "scale", "blocks"].map((part) => weights[`${name}.${part}`])].map((one) => one ?? NONE);
  }

  /** The matrix of which logits are made. */
  get unembedding() {
    return this.config.tied ? "wte" : "lm_head";
  }

  /** Some rows (R, inputs) of a matrix. @param {string} name @param {number} first @param {number} last @param {number} inputs */
  rows(name, first, last, inputs) {
    const { kernels } = this;
    const count = (last - first) * inputs;
    return kernels.during(() => {
      const result = kernels.borrow(4 * count);
      kernels.call("read_rows", kernels.struct("PPPP", this.linear(name)), inputs, first, last, result);
      return kernels.floats(result, count).slice();
    });
  }

  norm(/** @type {string} */ name) {
    const { norm, norm_eps: epsilon } = this.config;
    const isRMS = norm === "rms" || name.endsWith("_norm"); // those of queries and keys always are
    return [this.weights[`${name}.weight`] ?? NONE, this.weights[`${name}.bias`] ?? NONE, Number(isRMS), epsilon];
  }
}
