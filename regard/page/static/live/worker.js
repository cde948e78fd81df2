/** A worker that holds a model, and answers the requests of the page: `Api` of types.d.ts, name by name. */
import { ServerError } from "../errors.js";
import { GPT } from "../kernels/gpt.js";
import { Kernels } from "../kernels/memory.js";
import * as attention from "../kernels/pattern.js";
import { inflated } from "../offline/bytes.js";
import { Subject } from "./subject.js";
import { tokenizerOf } from "./tokenizer.js";
import { unpack } from "./weights.js";
import { Work } from "./work.js";

const scope = /** @type {WorkerScope} */ (/** @type {unknown} */ (self));
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
  effects: [MEASURED, (subject, run, over) => subject.effects(subject.run(run), over)],
  passages: [MEASURED, (subject, run, spans) => subject.passages(subject.run(run), spans)],
  thumbnails: [ASIDE, (subject, run, layer, size) => attention.pictures(headsAt(subject, run, [layer, "mean"]), size)],
  map: [
    SHOWN,
    (subject, run, place, { queries, keys, block }) =>
      attention.averaged(headsAt(subject, run, place), queries, keys, block),
  ],
  sketch: [SHOWN, (subject, run, place, block) => attention.sketched(headsAt(subject, run, place), block)],
  readouts: [SHOWN, (subject, run, place) => attention.readouts(headsAt(subject, run, place))],
  row: [
    QUICK,
    once((subject, run, place, query) => attention.floats(attention.row(headsAt(subject, run, place), query))),
  ],
  column: [
    QUICK,
    once((subject, run, place, key) => attention.floats(attention.column(headsAt(subject, run, place), key))),
  ],
  cell: [QUICK, once((subject, run, place, query, key) => attention.cell(headsAt(subject, run, place), query, key))],
  steps: [
    QUICK,
    once((subject, run, place, query, keys) => attention.walk(headsAt(subject, run, place)[0], query, keys)),
  ],
};

/** An answer in one step. */
function once(/** @type {(subject: Subject, ...args: any[]) => unknown} */ answerOf) {
  // eslint-disable-next-line require-yield -- one step is the whole
  return function* (/** @type {Subject} */ subject, /** @type {any[]} */ ...args) {
    return answerOf(subject, ...args);
  };
}

/** A run as the page gets it, once it is there. */
function* describeOpen(
  /** @type {Subject} */ subject,
  /** @type {Generator<void, import("./subject.js").LiveRun>} */ opening,
) {
  return subject.describe(yield* opening);
}

/** The heads at a place: one, all of a layer, or all. */
function headsAt(/** @type {Subject} */ subject, /** @type {string} */ run, /** @type {Place} */ [layer, head]) {
  const { layers, heads } = subject.model.config;
  const open = subject.run(run);
  return numbersOf(layer, layers).flatMap((at) => numbersOf(head, heads).map((one) => subject.head(open, at, one)));
}

const numbersOf = (/** @type {number|"mean"} */ one, /** @type {number} */ count) =>
  one === "mean" ? Array.from({ length: count }, (_, number) => number) : [one];

/** The model, with the text that is open at first. */
async function begin(/** @type {LiveStart} */ { model, kernels, numbers, title, first }) {
  const { config, tokenizer, tensors } = JSON.parse(model);
  const weights = unpack(await inflated(numbers), tensors);
  const gpt = new GPT(await Kernels.of(await inflated(kernels)), config, weights);
  const subject = new Subject(gpt, tokenizerOf(tokenizer), title);
  const opening = subject.open(first.ids, first.notes);
  while (!opening.next().done);
  return subject;
}

const work = new Work(({ id, line, value, error }) => {
  const message = error instanceof Error ? error.message : error && String(error);
  const status = error instanceof ServerError ? error.status : 0;
  const buffer = /** @type {{values?: unknown}|undefined} */ (value)?.values;
  scope.postMessage({ id, line, value, error: message, status }, buffer instanceof Float32Array ? [buffer.buffer] : []);
});

/** @type {Promise<Subject>} */
let ready;
scope.onmessage = ({ data }) => {
  if ("start" in data) ready = begin(data.start);
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
