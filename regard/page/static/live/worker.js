/** A worker that holds a model, and answers the requests of the page: `Api` of types.d.ts, name by name. */
import { ServerError } from "../errors.js";
import { GPT } from "../kernels/gpt.js";
import { Kernels } from "../kernels/memory.js";
import { threadedKernels } from "../kernels/threads.js";
import * as attention from "../kernels/pattern.js";
import { inflated } from "../offline/bytes.js";
import { broughtModel, folderOf } from "./pieces.js";
import { Subject } from "./subject.js";
import { tokenizerOf } from "./tokenizer.js";
import { unpack } from "./weights.js";
import { Work } from "./work.js";

const scope = /** @type {WorkerScope} */ (/** @type {unknown} */ (self));
const MOST_THREADS = 4; // a product ends with its slowest part
const [QUICK, SHOWN, ASIDE, MEASURED] = [0, 1, 2, 3];

/**
 * For each request the lane it is answered in, and its answer in steps: lines as they come, then a value.
 * @type {Record<string, [number, (subject: Subject, ...args: any[]) => Generator<unknown, unknown>]>}
 */
const ANSWERS = {
  fetchRun: [QUICK, once((subject, run) => subject.describe(subject.run(run)))],
  open: [SHOWN, (subject, text) => describeOpen(subject, subject.read(text))],
  append: [SHOWN, (subject, run, token) => describeOpen(subject, subject.append(subject.run(run), token))],
  change: [SHOWN, (subject, run, changes) => describeOpen(subject, subject.change(subject.run(run), changes))],
  generate: [SHOWN, (subject, run, options) => subject.generate(subject.run(run), options)],
  heads: [ASIDE, (subject, run) => subject.scores(subject.run(run))],
  writer: [SHOWN, (subject, run) => subject.writer(subject.run(run))],
  effects: [MEASURED, (subject, run, over) => subject.effects(subject.run(run), over)],
  patch: [MEASURED, (subject, run, other) => subject.patch(subject.run(run), subject.run(other))],
  passages: [MEASURED, (subject, run, spans) => subject.passages(subject.run(run), spans)],
  objections: [QUICK, once((subject, run) => subject.objections(subject.run(run)))],
  thumbnails: [ASIDE, ofHeads((heads, size) => attention.pictures(heads, size))],
  map: [SHOWN, ofHeads((heads, { queries, keys, block }) => attention.averaged(heads, queries, keys, block))],
  sketch: [SHOWN, ofHeads((heads, block) => attention.sketched(heads, block))],
  readouts: [SHOWN, ofHeads((heads) => attention.readouts(heads))],
  row: [QUICK, ofHeads(once((heads, query) => attention.floats(attention.row(heads, query))))],
  column: [QUICK, ofHeads(once((heads, key) => attention.floats(attention.column(heads, key))))],
  cell: [QUICK, ofHeads(once((heads, query, key) => attention.cell(heads, query, key)))],
  steps: [QUICK, ofHeads(once(([head], query, keys) => attention.walk(head, query, keys)))],
};

/** An answer in one step. @template About @param {(about: About, ...args: any[]) => unknown} answerOf */
function once(answerOf) {
  // eslint-disable-next-line require-yield -- one step is the whole
  return function* (/** @type {About} */ about, /** @type {any[]} */ ...args) {
    return answerOf(about, ...args);
  };
}

/**
 * An answer about the heads at a place: one, all of a layer, or all. Between them others have their turn, and the run
 * may be closed: a view of a head can take a pass over its weights.
 * @param {(heads: import("../kernels/pattern.js").Pattern[], ...args: any[]) => Generator<unknown, unknown>} answerOf
 */
function ofHeads(answerOf) {
  return function* (
    /** @type {Subject} */ subject,
    /** @type {string} */ run,
    /** @type {Place} */ [layer, head, shows],
    /** @type {any[]} */ ...args
  ) {
    const { layers, heads } = subject.model.config;
    const found = [];
    for (const at of numbersOf(layer, layers))
      for (const one of numbersOf(head, heads)) {
        found.push(subject.head(subject.run(run), at, one, shows));
        yield;
      }
    return yield* answerOf(found, ...args);
  };
}

/** A run as the page gets it, once it is there. */
function* describeOpen(
  /** @type {Subject} */ subject,
  /** @type {Generator<void, import("./subject.js").LiveRun>} */ opening,
) {
  return subject.describe(yield* opening);
}

const numbersOf = (/** @type {number|"mean"} */ one, /** @type {number} */ count) =>
  one === "mean" ? Array.from({ length: count }, (_, number) => number) : [one];

/** The model, with the text that is open at first. */
async function begin(/** @type {LiveStart} */ { model, kernels: module, numbers, base, title, first }) {
  const description = JSON.parse(model);
  const folder = description.pieces && (await folderOf(description, base));
  const threads = Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1);
  const threaded =
    folder && crossOriginIsolated
      ? await threadedKernels(await folder(description.threads), threads).catch(() => null) // a phone may have no room
      : null;
  const kernels = threaded ?? (await Kernels.of(await inflated(module)));
  const progress = (/** @type {number} */ done, /** @type {number} */ total) =>
    scope.postMessage({ loading: { done, total } }, []);
  const { weights, tokenizer } = folder
    ? await broughtModel(kernels, description, folder, progress)
    : { weights: keep(kernels, unpack(await inflated(numbers), description.tensors)), ...description };
  const subject = new Subject(new GPT(kernels, description.config, weights), tokenizerOf(tokenizer), title);
  subject.tell = (seconds) => scope.postMessage({ loading: seconds && { seconds } }, []);
  const opening = subject.open(first.ids, first.notes);
  while (!opening.next().done);
  scope.postMessage({ loading: null }, []);
  return subject;
}

/** @param {Kernels} kernels @param {Record<string, Float32Array>} weights */
const keep = (kernels, weights) =>
  Object.fromEntries(Object.entries(weights).map(([name, values]) => [name, kernels.keep(values)]));

const work = new Work(({ id, line, value, error }) => {
  const message = error instanceof Error ? error.message : error && String(error);
  const status = error instanceof ServerError ? error.status : 0;
  const buffer = /** @type {{values?: unknown}|undefined} */ (value)?.values;
  scope.postMessage({ id, line, value, error: message, status }, buffer instanceof Float32Array ? [buffer.buffer] : []);
});

/** @type {(subject: Promise<Subject>) => void} */
let found = () => {};
/** @type {Promise<Subject>} */
const ready = new Promise((resolve) => (found = resolve));
ready.catch(() => {}); // each request gets the error
scope.onmessage = ({ data }) => {
  if ("start" in data) found(begin(data.start));
  else if ("cancel" in data) work.cancel(data.cancel);
  else answer(data);
};

async function answer(/** @type {LiveRequest} */ { id, name, args }) {
  const [lane, steps] = ANSWERS[name];
  try {
    const subject = await ready;
    // A request that is refused gets the error as its answer, at its first step.
    work.add({
      id,
      lane,
      steps: (function* () {
        return yield* steps(subject, ...args);
      })(),
    });
  } catch (error) {
    work.answer({ id, error });
  }
}
