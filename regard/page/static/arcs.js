/** Arcs in the text: from the query to the keys that it attends to most, or gets most from, as wide as the entry. */
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
  const word = (/** @type {number} */ k) => spans[k - first]?.querySelector(".word") ?? null;
  const from = word(query);
  if (!from) return old?.remove();
  const box = root.getBoundingClientRect();
  const top = (/** @type {Element} */ one) => {
    const { left, width, top: y } = one.getBoundingClientRect();
    return { x: left + width / 2 - box.left + root.scrollLeft, y: y - box.top + root.scrollTop };
  };
  const heavy = Math.min(9, box.width / 60); // a phone's arcs are thinner
  const start = top(from);
  const pathTo = (/** @type {number} */ k, /** @type {number} */ size) => {
    const stop = top(/** @type {Element} */ (word(k)));
    const high = Math.min(start.y, stop.y) - 14 - 34 * size;
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("d", `M${start.x},${start.y}C${start.x},${high} ${stop.x},${high} ${stop.x},${stop.y}`);
    return line;
  };
  const lines = [...sizes.keys()]
    .filter((k) => k !== query && sizes[k] >= FAINTEST && word(k))
    .sort((a, b) => sizes[b] - sizes[a])
    .slice(0, MOST)
    .map((k) => {
      const line = pathTo(k, sizes[k]);
      line.setAttribute("stroke-width", String(1 + heavy * sizes[k]));
      line.setAttribute("opacity", String(0.3 + 0.55 * sizes[k]));
      line.classList.toggle("less", arcs.parts[k] < 0);
      line.setAttribute("pathLength", "1");
      line.dataset.key = String(k);
      return line;
    });
  if (former != null && former !== query && word(former)) {
    const line = pathTo(former, FORMER);
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
