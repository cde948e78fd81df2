/** Labels along an axis: every token where there is room, else every n-th, and the page says so. */
import { isolated, niceStep } from "./format.js";

/**
 * @param {number} first where the window begins, in tokens
 * @param {number} span @param {number} side its length in pixels
 * @param {number} length tokens there are
 * @param {number} room pixels that a label needs across
 * @returns {{step: number, at: number[]}}
 */
export function ticks(first, span, side, length, room) {
  const cell = side / span;
  const step = cell >= room ? 1 : niceStep((room * 1.25) / cell);
  const at = [];
  for (let k = Math.ceil((first - 0.5) / step) * step; k <= first + span - 0.5; k += step) {
    if (k >= 0 && k < length && k + 0.5 >= first) at.push(k);
  }
  return { step, at };
}

/** A label as long as it may be; what is left out is shown by an ellipsis. */
export function fitted(/** @type {Surface} */ surface, /** @type {string} */ text, /** @type {number} */ width) {
  if (surface.measureText(text).width <= width) return isolated(text);
  const characters = Array.from(text);
  let [least, most] = [0, characters.length];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (surface.measureText(`${characters.slice(0, middle).join("")}…`).width <= width) least = middle;
    else most = middle - 1;
  }
  return isolated(`${characters.slice(0, least).join("")}…`);
}

/** What stands at a tick: the token; with its place where some are skipped; alone where many are. */
export function tickText(/** @type {string[]} */ labels, /** @type {number} */ k, /** @type {number} */ step) {
  if (step === 1) return labels[k];
  return step >= 100 || labels[k] === String(k) ? String(k) : `${k} ${labels[k]}`;
}

/** What has been left out, in words. */
export function skipped(/** @type {number} */ step) {
  if (step === 1) return "every token";
  const ending = step % 10 === 1 && step % 100 !== 11 ? "st" : step === 2 ? "nd" : "th";
  return step === 2 ? "every 2nd token" : `every ${step}${ending} token`;
}
