/** The small pictures of all heads of a text: asked for once the map is there, a layer at a time. */
import * as api from "./api.js";
import { during } from "./pending.js";
import { awaitAnswer } from "./answers.js";
import { afterMap } from "./session.js";
import { sourceOf, subscribe } from "./store.js";

export const SIZE = 64; // pixels of a thumbnail, at most

/** @type {Record<SideName, {run: Run|null, layers: Map<number, Floats & {run: string}>}>} */
const kept = { first: { run: null, layers: new Map() }, second: { run: null, layers: new Map() } };
/** @type {((side: SideName, layer: number) => void)[]} */
const listeners = [];

/** @param {(side: SideName, layer: number) => void} listener called when a layer's have come */
export const onThumbnails = (listener) => listeners.push(listener);

/**
 * The pictures of a layer's heads, or undefined as long as they have not come; `run` is the text
 * that they are of, a shorter one where it has grown since.
 */
export const thumbnailsOf = (/** @type {SideName} */ side, /** @type {number} */ layer) => kept[side].layers.get(layer);

export function startThumbnails() {
  subscribe("run", ({ sides, grown }) => {
    during(load("first", sides.first.run, grown));
    during(load("second", sides.second.run, grown));
  });
}

async function load(/** @type {SideName} */ side, /** @type {Run|null} */ run, /** @type {boolean} */ grown) {
  const mine = kept[side];
  if (!run || mine.run === run) return;
  if (!grown) mine.layers.clear(); // a text that grew keeps the old ones until the new have come
  mine.run = run;
  await afterMap(run);
  // The chosen head's layer first, then from the top; one at a time, so that the map never waits long.
  const chosen = sourceOf("first").layer;
  const order = run.layers
    .map((_, layer) => layer)
    .sort((a, b) => Number(b === chosen) - Number(a === chosen) || a - b);
  for (const layer of order) {
    const data = await awaitAnswer(api.thumbnails(run.id, layer, SIZE, `thumbnails-${side}`));
    if (mine.run !== run) return;
    if (!data) continue;
    mine.layers.set(layer, { ...data, run: run.id });
    for (const listener of listeners) listener(side, layer);
  }
  document.dispatchEvent(new CustomEvent("thumbnails"));
}
