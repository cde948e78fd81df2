/** The window of a map that moves to another in one go: from the whole pattern into a cell, and back. */
import { pend } from "./pending.js";
import { bounded, whole } from "./zoom.js";

const TIME = 1100; // milliseconds
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The window around a cell, in which it opens. */
export const around = (/** @type {number} */ query, /** @type {number} */ key, /** @type {number} */ length) =>
  bounded({ queries: query - 0.06, keys: key - 0.06, span: 1.12 }, length);

/**
 * Calls `step` with each window on the way, at even speed to the eye; whoever begins another ends it.
 * @param {Zoom|null} from @param {Zoom|null} to @param {number} length @param {(zoom: Zoom|null, last: boolean) => boolean} step
 *   gives whether it goes on
 */
export function glide(from, to, length, step) {
  if (still.matches) return void step(to, true);
  const [a, b] = [from ?? whole(length), to ?? whole(length)];
  const end = pend();
  const began = performance.now();
  const frame = (/** @type {number} */ now) => {
    const t = Math.max(0, Math.min(1, (now - began) / TIME));
    const eased = t * t * (3 - 2 * t);
    const span = a.span * (b.span / a.span) ** eased;
    // The place that both windows share stays where it is between them.
    const part = a.span === b.span ? eased : (a.span - span) / (a.span - b.span);
    const between = (/** @type {number} */ one, /** @type {number} */ other) => one + (other - one) * part;
    const zoom = { queries: between(a.queries, b.queries), keys: between(a.keys, b.keys), span };
    const goesOn = step(t < 1 ? bounded(zoom, length) : to, t >= 1);
    if (t < 1 && goesOn) requestAnimationFrame(frame);
    else end();
  };
  requestAnimationFrame(frame);
}
