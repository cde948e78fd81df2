/** A model and the texts that are open under it. */
import { ServerError } from "../errors.js";
import { Pattern, row } from "../kernels/pattern.js";
import { restsOf } from "../quantities.js";
import { interventionsOf } from "./changes.js";
import { overHeads, overKeys, overPassages } from "./effects.js";
import { overPatches } from "./patches.js";
import { readable, visible } from "./labels.js";
import { figuresOf, marked } from "./heads.js";
import { anySeed, draw, largest, softmax } from "./sampling.js";
import { writerOf } from "./writer.js";
import * as views from "./views.js";

/**
 * A run over a text.
 * @typedef {{name: string, ids: number[], notes: string[], cache: Cache, changes: Intervention[],
 *   logits: Float32Array, probabilities: Float64Array, plain: LiveRun|null, effects: Map<string, object>,
 *   heads: Map<string, Pattern>, figures: ReturnType<typeof figuresOf>[][], marks?: [number[], number[]],
 *   along?: Float64Array, writer?: Writer,
 *   known?: import("./effects.js").KnownEffects}} LiveRun
 * along: what reads the logit of the likeliest next token from the stream, once it is asked for; known: effects of
 * heads as far as they are measured
 * @typedef {import("../kernels/cache.js").Cache} Cache
 */

const LIKELIEST = 10;
const CHARACTERS = 200_000;
const GENERATED = 500; // most tokens that are generated at a time
const SLOW = 1; // seconds from which on it is said how long the model takes
const KEPT = 16; // runs that stay open
const ROOM = 2 ** 29; // bytes of their queries, keys and values

export class Subject {
  /** @param {import("../kernels/gpt.js").GPT} model @param {import("./tokenizer.js").Tokenizer} tokenizer @param {string} title */
  constructor(model, tokenizer, title) {
    this.model = model;
    this.tokenizer = tokenizer;
    this.title = title;
    /** @type {Map<string, LiveRun>} by what they are runs of, the last used last */
    this.runs = new Map();
    this.count = 0;
    this.pace = 0; // milliseconds that the model took for a token of the last text
    /** Hears how many seconds the model will take for a text, where that is long; null once it has. @type {(seconds: number|null) => void} */
    this.tell = () => {};
    /** @type {string|null} */
    this.first = null;
  }

  /** An open run, by its name. */
  run(/** @type {string} */ name) {
    for (const [key, one] of this.runs) {
      if (one.name !== name) continue;
      if (one.plain) this.run(one.plain.name); // which is generated from
      this.runs.delete(key); // what is used stays open longest
      this.runs.set(key, one);
      return one;
    }
    throw new ServerError("This text is not open any more; open it again.", { status: 404 });
  }

  /** Runs the model over a text. @returns {Generator<void, LiveRun>} */
  *read(/** @type {string} */ text) {
    if (!text) throw new ServerError("The text is empty; give at least one character.");
    const { length } = Array.from(text);
    if (length > CHARACTERS)
      throw new ServerError(
        `The text has ${length.toLocaleString("en")} characters; at most ${CHARACTERS.toLocaleString("en")} are taken at a time.`,
      );
    const ids = this.tokenizer.encode(text);
    const { context } = this.model.config;
    const note = `the text has ${ids.length.toLocaleString("en")} tokens; these are the first ${context}, the model's context`;
    return yield* this.open(ids.slice(0, context), ids.length > context ? [note] : []);
  }

  /** Runs over the same tokens and one more. @returns {Generator<void, LiveRun>} */
  *append(/** @type {LiveRun} */ { ids }, /** @type {number} */ token) {
    const { vocab_size: V } = this.model.config;
    if (!(token >= 0 && token < V)) throw new ServerError(`Token ${token} is not one of 0 … ${V - 1}.`);
    return yield* this.openLast([...ids, token]);
  }

  /** Runs over the same tokens with some attention changed. @returns {Generator<void, LiveRun>} */
  *change(/** @type {LiveRun} */ plain, /** @type {Change[]} */ changes) {
    if (plain.plain) throw new ServerError("This run is changed already; change the text as it is.");
    const interventions = interventionsOf(changes, this.model.config, plain.ids.length);
    return yield* this.open(plain.ids, plain.notes, interventions, plain);
  }

  /**
   * Draws tokens one by one, a line each, and at last the run over all of them. Past the context the oldest quarter is
   * dropped and the rest read again, as `regard.gpt.generate` does.
   * @param {LiveRun} from @param {{tokens: number, temperature: number, seed: number|null}} options
   */
  *generate(from, { tokens, temperature, seed }) {
    if (!(tokens >= 1 && tokens <= GENERATED))
      throw new ServerError(`tokens is ${tokens}; 1 … ${GENERATED} are drawn at a time.`);
    const { context } = this.model.config;
    const sampling = { temperature, seed: seed == null ? anySeed() : BigInt(seed) };
    const { ids: idsBefore, cache: cacheBefore, logits: logitsBefore } = from.plain ?? from;
    const ids = [...idsBefore];
    const cache = cacheBefore.branch(idsBefore.length, Math.min(context, idsBefore.length + tokens));
    let [start, logits] = [0, logitsBefore];
    try {
      for (let step = 0; step < tokens; step++) {
        const token = draw(logits, sampling, step, ids);
        ids.push(token);
        const [piece] = this.tokenizer.tokens([token]);
        yield { token, text: readable(piece), label: visible(piece) };
        if (step + 1 === tokens) break;
        if (ids.length - start > context) {
          start += Math.max(1, Math.floor(context / 4));
          cache.length = 0;
        }
        logits = yield* this.model.read(ids.slice(start + cache.length), cache);
      }
      yield { run: this.describe(yield* this.openLast(ids, start ? null : cache)) };
    } finally {
      if (![...this.runs.values()].some((one) => one.cache === cache)) cache.release();
    }
  }

  /**
   * The last tokens that the context holds.
   * @param {number[]} ids @param {Cache|null} [cache] of the first ones, which becomes the run's
   * @returns {Generator<void, LiveRun>}
   */
  *openLast(ids, cache = null) {
    const { context } = this.model.config;
    if (ids.length <= context) return yield* this.open(ids, [], [], null, cache);
    const note = `the context is full: these are the last ${context} tokens`;
    return yield* this.open(ids.slice(-context), [note]);
  }

  /**
   * Opens a run, which may be open already.
   * @param {number[]} ids @param {string[]} notes @param {Intervention[]} changes @param {LiveRun|null} plain
   * @param {Cache|null} own of the first tokens, which becomes the run's
   * @returns {Generator<void, LiveRun>}
   */
  *open(ids, notes, changes = [], plain = null, own = null) {
    const { vocab_size: V } = this.model.config;
    const unknown = ids.find((id) => id >= V);
    if (unknown != null) throw new ServerError(`Token ${unknown} of this text is not one of the model's ${V}.`);
    const key = JSON.stringify([ids, changes]);
    const existing = this.runs.get(key);
    if (existing) return this.run(existing.name);
    const cache = own ?? (plain ? this.model.cache(ids.length) : this.prefixOf(ids));
    const name = `${++this.count}`;
    try {
      const logits = yield* this.readTimed(ids.slice(cache.length), cache, changes);
      const meanwhile = this.runs.get(key);
      if (meanwhile) return this.run(meanwhile.name); // another request was for the same
      const probabilities = softmax(logits);
      if (probabilities.some(Number.isNaN))
        throw new ServerError("The model's logits are not numbers; its weights are damaged.");
      this.first ??= name;
      const fresh = { name, ids, notes, cache, changes, logits, probabilities, plain };
      this.runs.set(key, { ...fresh, effects: new Map(), heads: new Map(), figures: [] });
    } finally {
      if (this.runs.get(key)?.cache !== cache && !own) cache.release(); // it is not needed any more
    }
    const staying = [this.first, name, plain?.name];
    const rest = [...this.runs].filter(([, one]) => !staying.includes(one.name)).reverse();
    let [count, room] = [0, ROOM - cache.bytes];
    for (const [old, one] of rest) if (++count >= KEPT || (room -= one.cache.bytes) < 0) this.close(old);
    return this.run(name);
  }

  /**
   * Reads tokens, and tells how long it will take.
   * @param {number[]} ids @param {Cache} cache @param {Intervention[]} changes
   */
  *readTimed(ids, cache, changes) {
    const expected = (ids.length * this.pace) / 1000;
    if (expected > SLOW) this.tell(expected);
    const since = performance.now();
    const logits = yield* this.model.read(ids, cache, { changes });
    this.pace = (performance.now() - since) / ids.length;
    if (expected > SLOW) this.tell(null);
    return logits;
  }

  /** Gives back the memory of a run, and of those that change it; reading them afterwards is an error. */
  close(/** @type {string} */ key) {
    const run = this.runs.get(key);
    this.runs.delete(key);
    if (!run) return;
    for (const pattern of run.heads.values()) pattern.release();
    run.cache.release();
    for (const [changed, { plain }] of [...this.runs]) if (plain === run) this.close(changed);
  }

  /** The cache of the open run that begins as this text does, as far as that goes; the last token is always read. */
  prefixOf(/** @type {number[]} */ ids) {
    /** @type {[number, Cache|null]} */
    let [length, best] = [0, null];
    for (const { ids: other, cache, plain } of this.runs.values()) {
      if (plain) continue;
      const differs = ids.findIndex((id, place) => id !== other[place]);
      const shared = Math.min(differs < 0 ? ids.length : differs, ids.length - 1);
      if (shared > length) [length, best] = [shared, cache];
    }
    return best ? best.branch(length, ids.length) : this.model.cache(ids.length);
  }

  /** What the page shows first of a run. @returns {Run} */
  describe(/** @type {LiveRun} */ one) {
    const { config } = this.model;
    const { length } = one.ids;
    const pieces = this.tokenizer.tokens(one.ids);
    const { prefix } = this.tokenizer;
    const added = prefix.every((id, place) => id === one.ids[place]) ? prefix.length : 0;
    const layers = Array.from({ length: config.layers }, (_, index) => index);
    const causal = config.windows.every((keys) => (keys ?? length) >= length);
    return {
      id: one.name,
      title: this.title,
      text: this.tokenizer.decode(one.ids.slice(added)),
      tokens: pieces.map((piece, place) => ({
        ...{ text: readable(piece), label: visible(piece) },
        ...(place < added && { added: true }),
      })),
      length,
      causal,
      layers: layers.map((index) => ({
        index,
        name: `h.${index}.attn`,
        heads: Array.from({ length: config.heads }, (_, head) => head),
      })),
      next: this.following(one),
      notes: one.notes,
      labels: [],
      letters: 0,
    };
  }

  /** The likeliest next tokens; of a changed run also what was likely before, so that both stand beside each other. */
  following(/** @type {LiveRun} */ { probabilities, plain }) {
    const before = plain?.probabilities;
    const most = before ? probabilities.map((share, token) => Math.max(share, before[token])) : probabilities;
    const top = largest(most, LIKELIEST);
    const pieces = this.tokenizer.tokens(top);
    return top.map((token, place) => ({
      token,
      text: readable(pieces[place]),
      label: visible(pieces[place]),
      probability: probabilities[token],
      ...(before && { before: before[token] }),
    }));
  }

  /**
   * The head that adds most to the lead of the likeliest next token over the second, and what is lost without it, as
   * `regard.lens.leading_head` finds it. It is kept.
   * @returns {Generator<void, Writer>}
   */
  *writer(/** @type {LiveRun} */ one) {
    if (one.plain) throw new ServerError("This run is changed; who writes the answer is found of the text as it is.");
    one.writer ??= yield* writerOf(this, one);
    return one.writer;
  }

  /**
   * One head of a run, in a view.
   * @param {LiveRun} one @param {number} layer @param {number} head @param {Shows} [shows] @returns {Pattern}
   */
  head(one, layer, head, shows = "weight") {
    const key = `${layer}/${head}/${shows}`;
    const known = one.heads.get(key);
    if (known) return known;
    const result =
      shows === "weight"
        ? this.pattern(one, layer, head)
        : this.inView(one, layer, head, this.head(one, layer, head), shows);
    one.heads.set(key, result);
    return result;
  }

  /** Why a run has not some of the views, in a clause each. @returns {Partial<Record<Shows, string>>} */
  objections(/** @type {LiveRun} */ { plain }) {
    return plain ? { toward: "the answer is that of the text as it is; take the changes back" } : {};
  }

  /** @param {LiveRun} one @param {number} layer @param {number} head @param {Pattern} weights @param {Shows} shows */
  inView(one, layer, head, weights, shows) {
    const why = this.objections(one)[shows];
    if (why) throw new ServerError(`No such view: ${why}.`, { status: 422 });
    if (shows === "without") return views.without(weights, this.figures(one, layer, head).sinks);
    if (shows === "moved") return views.moved(weights, views.outputOf(this.model, layer, head));
    one.along ??= views.alongOf(this.model, one, this.following(one)[0].token);
    return views.toward(weights, head, views.readsOf(this.model, layer, one.along));
  }

  /** @param {LiveRun} run @param {number} layer @param {number} head */
  pattern({ cache, changes, ids: { length } }, layer, head) {
    const { kernels, config } = this.model;
    const [D, group] = [config.head_dim, Math.floor((head * config.groups) / config.heads)];
    const { query, key, value } = cache.layers[layer];
    const rows = (/** @type {number} */ address) => ({ address: address + 4 * group * cache.capacity * D, stride: D });
    const cuts = changes.flatMap((change) =>
      change.kind === "knock_out" && (change.layer ?? layer) === layer && (change.head ?? head) === head
        ? [{ queries: change.queries ?? /** @type {Span} */ ([0, length]), keys: change.keys }]
        : [],
    );
    return new Pattern(kernels, {
      ...{ length, dim: D, valueDim: D, scale: 1 / Math.sqrt(D), softcap: null, alibi: null, sink: false },
      ...{ bounds: null, window: config.windows[layer], cuts },
      ...{ query: { address: query + 4 * head * D, stride: config.heads * D }, key: rows(key), value: rows(value) },
    });
  }

  /**
   * The scores of all heads, a line a layer.
   * @param {LiveRun} one @returns {Generator<{layer: number, heads: ReturnType<typeof figuresOf>[]}|undefined, void>}
   */
  *scores(one) {
    for (let layer = 0; layer < this.model.config.layers; layer++) {
      const heads = [];
      for (let head = 0; head < this.model.config.heads; head++) {
        heads.push(this.figures(one, layer, head));
        yield;
      }
      yield { layer, heads };
    }
  }

  /** The scores of a head, which are kept. @param {LiveRun} one @param {number} layer @param {number} head */
  figures(one, layer, head) {
    one.marks ??= this.marks(one.ids);
    one.figures[layer] ??= [];
    return (one.figures[layer][head] ??= figuresOf(head, this.head(one, layer, head), ...one.marks));
  }

  /** The tokens by the number of their names, and which of them separate others. @returns {[number[], number[]]} */
  marks(/** @type {number[]} */ ids) {
    const pieces = this.tokenizer.tokens(ids);
    const numbers = new Map([...new Set(pieces)].sort().map((piece, number) => [piece, number]));
    return [pieces.map((piece) => /** @type {number} */ (numbers.get(piece))), marked(pieces)];
  }

  /**
   * What the likeliest next token rests on: how far that is, a line each, then the effects. They are kept.
   * @param {LiveRun} one @param {"heads"|"keys"} over
   * @returns {Generator<unknown, void>}
   */
  *effects(one, over) {
    if (one.plain) throw new ServerError("This run is changed; effects are those of the text as it is.");
    const existing = one.effects.get(over);
    if (existing) {
      yield existing;
      return;
    }
    const [{ token }] = this.following(one);
    one.known ??= { layers: [], heads: Array.from({ length: this.model.config.layers }, () => []) };
    const measured =
      over === "heads" ? yield* overHeads(this.model, one, token, one.known) : yield* overKeys(this.model, one, token);
    const result = { over, token, ...measured };
    one.effects.set(over, result);
    yield result;
  }

  /**
   * What each head of another run brings of the answer's change: how far that is, a line each, then the effects.
   * @param {LiveRun} one @param {LiveRun} other
   * @returns {Generator<unknown, void>}
   */
  *patch(one, other) {
    if (one.plain || other.plain) throw new ServerError("A run with changes is not patched.");
    if (one.ids.length !== other.ids.length)
      throw new ServerError(
        `Patching needs equal positions; one text has ${one.ids.length} tokens, the other ${other.ids.length}.`,
      );
    const key = `patched ${other.name}`;
    const existing = one.effects.get(key);
    if (existing) {
      yield existing;
      return;
    }
    const answers = [one, other].map((run) => this.following(run)[0].token);
    const contextOf = (/** @type {number} */ layer, /** @type {number} */ head) =>
      this.head(this.run(other.name), layer, head); // it may have been closed meanwhile
    const result = { answers, ...(yield* overPatches(this.model, one, other, answers, contextOf)) };
    one.effects.set(key, result);
    yield result;
  }

  /**
   * Which passages the likeliest next token needs: how far that is, a line each, then the effects.
   * @param {LiveRun} one @param {Span[]} spans
   * @returns {Generator<unknown, void>}
   */
  *passages(one, spans) {
    if (one.plain) throw new ServerError("This run is changed; effects are those of the text as it is.");
    const key = `passages ${spans}`;
    const existing = one.effects.get(key);
    if (existing) {
      yield existing;
      return;
    }
    const { layers, heads } = this.model.config;
    const every = Array.from({ length: layers * heads }, (_, k) => this.head(one, Math.floor(k / heads), k % heads));
    const [{ token }] = this.following(one);
    const weights = row(every, one.ids.length - 1);
    /** @type {number[][]} */
    const sinks = [];
    for (const line of this.scores(one)) {
      sinks.push(...(line?.heads.map((head) => head.sinks) ?? []));
      yield;
    }
    const rests = restsOf(sinks).map((sink) => sink.key);
    const result = { token, ...(yield* overPassages(this.model, one, token, spans, weights, rests)) };
    one.effects.set(key, result);
    yield result;
  }
}
