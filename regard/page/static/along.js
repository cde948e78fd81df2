/**
 * The readouts along the text of what a side shows, requested once for the map's margins and the panel. Those of a
 * mean over a long text can take minutes: a button says how far they are, and stops them.
 */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { byId } from "./dom.js";
import { activeSide, openSourceOf, placeOf, sourceOf, subscribe } from "./store.js";

/** Weights of a mean's heads from which on it is said how far its readouts are: 4,096 tokens in two heads. */
const MANY = 2 ** 25;

/** @typedef {{of: string, control: AbortController, part: number|null, answer: Promise<Floats|null>}} Reading */

/** The newest of each side. @type {Partial<Record<SideName, Reading>>} */
const readings = {};

export function startAlong() {
  byId("readouts-progress").onclick = () => {
    const reading = readings[activeSide()];
    if (!reading) return;
    if (!reading.control.signal.aborted) return reading.control.abort();
    delete readings[activeSide()];
    document.dispatchEvent(new CustomEvent("readouts"));
  };
  subscribe("run layer head average active compare", show);
}

/**
 * The readouts of what a side shows; null where they were stopped, replaced or refused.
 * @param {SideName} side @param {{anew?: boolean}} [options] anew: compute them though they were stopped
 */
export function readoutsOf(side, { anew = false } = {}) {
  const of = nameOf(side);
  const known = readings[side];
  if (known && known.of === of && !(anew && known.control.signal.aborted)) return known.answer;
  const source = openSourceOf(side);
  const { run } = source;
  const control = new AbortController();
  const each = (/** @type {StreamLine} */ { done, total }) => {
    if (control.signal.aborted || !total) return;
    mine.part = (done ?? 0) / total;
    show();
  };
  const long = source.average !== "head" && headsOf(source) * run.length ** 2 >= MANY;
  const request = api.readouts(run.id, placeOf(source), `readouts-${side}`, {
    signal: control.signal,
    each: long ? each : undefined,
  });
  /** @type {Reading} */
  const mine = { of, control, part: null, answer: awaitAnswer(request).then(end) };
  readings[side] = mine;
  function end(/** @type {Floats|null} */ answer) {
    mine.part = null;
    if (!answer && !control.signal.aborted && readings[side] === mine) delete readings[side];
    show();
    return answer;
  }
  return mine.answer;
}

/** Ends those of what a side showed before. */
export function endOthers(/** @type {SideName} */ side) {
  const known = readings[side];
  if (known && known.of !== nameOf(side)) api.end(`readouts-${side}`);
}

/** How many heads a mean is of. */
function headsOf(/** @type {OpenSource} */ { run, layer, average }) {
  const layers = average === "model" ? run.layers : [run.layers[layer]];
  return layers.reduce((sum, { heads }) => sum + heads.length, 0);
}

function nameOf(/** @type {SideName} */ side) {
  const source = sourceOf(side);
  return source.run ? [source.run.id, ...placeOf(source)].join("/") : "";
}

function show() {
  const side = activeSide();
  const reading = readings[side];
  const stopped = Boolean(reading?.control.signal.aborted);
  const button = byId("readouts-progress");
  button.hidden = !reading || reading.of !== nameOf(side) || (!stopped && reading.part == null);
  button.textContent = stopped
    ? "Compute the readouts"
    : `Stop the readouts (${Math.floor(100 * (reading?.part ?? 0))} %)`;
}
