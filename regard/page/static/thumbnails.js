/** The small pictures of all heads of a text: asked for once the map is there, a layer at a time. */
import * as api from "./api.js";
import { during } from "./pending.js";
import { awaitAnswer } from "./answers.js";
import { afterMap } from "./session.js";
import { get, sourceOf, subscribe } from "./store.js";

export const SIZE = 64; // pixels of a thumbnail, at most

/** The small pictures of a layer's heads, and the text and the view that they are of. @typedef {Floats & {run: string, shows: Shows}} Pictures */

/** @type {Record<SideName, {run: Run|null, shows: Shows, layers: Map<number, Pictures>}>} */
const kept = {
  first: { run: null, shows: "weight", layers: new Map() },
  second: { run: null, shows: "weight", layers: new Map() },
};
/** @type {((side: SideName, layer: number) => void)[]} */
const listeners = [];

/** The layers whose heads are in sight. @type {Record<SideName, () => number[]>} */
const inSight = { first: () => [], second: () => [] };

/** Has the layers that are in sight asked for before the others. */
export const showFirst = (/** @type {SideName} */ side, /** @type {() => number[]} */ layers) => {
  inSight[side] = layers;
};

/** @param {(side: SideName, layer: number) => void} listener called when a layer's have come */
export const onThumbnails = (listener) => listeners.push(listener);

/**
 * The pictures of a layer's heads, or undefined as long as they have not come; they may be those of a text before it
 * grew, or of another view.
 */
export const thumbnailsOf = (/** @type {SideName} */ side, /** @type {number} */ layer) => kept[side].layers.get(layer);

/** Whether pictures are of a text in the view of now. */
export const areCurrent = (/** @type {Pictures} */ { run, shows }, /** @type {Run} */ { id }) =>
  run === id && shows === get().shows;

export function startThumbnails() {
  subscribe("run shows", ({ sides, grown }) => {
    during(load("first", sides.first.run, grown));
    during(load("second", sides.second.run, grown));
  });
}

async function load(/** @type {SideName} */ side, /** @type {Run|null} */ run, /** @type {boolean} */ grown) {
  const mine = kept[side];
  const { shows } = get();
  if (!run || (mine.run === run && mine.shows === shows)) return;
  // A text that grew, or is seen in another view, keeps the old ones until the new have come.
  if (!grown && mine.run !== run) mine.layers.clear();
  mine.run = run;
  mine.shows = shows;
  await afterMap(run);
  // The chosen head's layer first, then those in sight, then the others from the top; one at a time, so that
  // the map never waits long.
  const left = new Set(run.layers.keys());
  while (left.size) {
    const layer = /** @type {number} */ (
      [sourceOf("first").layer, ...inSight[side](), ...left].find((one) => left.has(one))
    );
    left.delete(layer);
    const data = await awaitAnswer(api.thumbnails(run.id, layer, SIZE, shows, `thumbnails-${side}`));
    if (mine.run !== run || mine.shows !== shows) return;
    if (!data) continue;
    mine.layers.set(layer, { ...data, run: run.id, shows });
    for (const listener of listeners) listener(side, layer);
  }
  document.dispatchEvent(new CustomEvent("thumbnails"));
}
