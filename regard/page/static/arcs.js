/** Arcs in the text: from the query to the keys that it attends to most, or gets most from, as wide as the entry. */
import { waysIn } from "./ways.js";

const SVG = "http://www.w3.org/2000/svg";
/** A smaller part of the widest has no line. */
const FAINTEST = 0.02;
const MOST = 12;
/** The arc of before a swap is as high as that of a weight of so much. */
const FORMER = 0.6;

/**
 * parts: of the widest arc, −1 … 1; first: the first token there is; former: the key that was the strongest before
 * a word was swapped
 * @typedef {{query: number, parts: Float32Array, first: number, animate: boolean, former?: number|null}} Arcs
 */

/**
 * Draws them behind the words.
 * @param {HTMLElement} root the tokens' box @param {HTMLElement[]} spans @param {Arcs|null} arcs null: none
 */
export function drawArcs(root, spans, arcs) {
  const old = root.querySelector("svg.arcs");
  if (!arcs) return old?.remove();
  const { query, first, animate, former } = arcs;
  const sizes = arcs.parts.map(Math.abs);
  const { wordAt, wayOf } = waysIn(root, spans);
  const from = wordAt(query - first);
  if (!from) return old?.remove();
  const heavy = Math.min(9, root.clientWidth / 60); // a phone's arcs are thinner
  const pathTo = (
    /** @type {import("./ways.js").Box} */ to,
    /** @type {number} */ size,
    /** @type {number} */ wide,
  ) => {
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("d", wayOf(from, to, { high: 14 + 34 * size, wide }));
    return line;
  };
  const lines = [...sizes.keys()]
    .map((k) => ({ k, to: k === query || sizes[k] < FAINTEST ? null : wordAt(k - first) }))
    .filter(({ to }) => to)
    .sort((a, b) => sizes[b.k] - sizes[a.k])
    .slice(0, MOST)
    .map(({ k, to }) => {
      const wide = 1 + heavy * sizes[k];
      const line = pathTo(/** @type {import("./ways.js").Box} */ (to), sizes[k], wide);
      line.setAttribute("stroke-width", String(wide));
      line.setAttribute("opacity", String(0.3 + 0.55 * sizes[k]));
      line.classList.toggle("less", arcs.parts[k] < 0);
      line.setAttribute("pathLength", "1");
      line.dataset.key = String(k);
      return line;
    });
  const before = former == null || former === query ? null : wordAt(former - first);
  if (before) {
    const line = pathTo(before, FORMER, 2);
    line.classList.add("former");
    lines.unshift(line);
  }
  const picture = document.createElementNS(SVG, "svg");
  picture.classList.add("arcs");
  picture.classList.toggle("drawn", animate);
  picture.setAttribute("aria-hidden", "true");
  picture.append(...lines);
  if (old) old.replaceWith(picture);
  else root.append(picture);
}
