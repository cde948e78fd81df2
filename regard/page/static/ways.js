/** The way of a line between two words of the text: through the gaps between its lines, never through another word. */

/** Pixels between the words and what runs beside them, and the radius of a corner. */
const MARGIN = 7;
const CORNER = 8;
/** Free pixels above the first line: `padding-top` of the tokens. */
const ABOVE = 30;

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box */

/**
 * Ways in a box of tokens: between two of them, for a line of a width that is so high where it is free to be, and so
 * far from the middle of its gap.
 * @param {HTMLElement} root @param {HTMLElement[]} spans
 * @returns {{wordAt: (k: number) => Box|null, wayOf: (from: Box, to: Box, look: {high: number, wide: number, off?: number, shift?: number}) => string}}
 */
export function waysIn(root, spans) {
  const box = root.getBoundingClientRect();
  const pitch = parseFloat(getComputedStyle(root).lineHeight);
  const first = spans.length ? spans[0].getClientRects()[0].top - box.top + root.scrollTop : 0;
  const wordAt = (/** @type {number} */ k) => {
    const [rect] = (spans[k]?.querySelector(".word") ?? spans[k])?.getClientRects() ?? [];
    if (!rect) return null;
    const [x, y] = [rect.left - box.left + root.scrollLeft, rect.top - box.top + root.scrollTop];
    return { left: x, right: x + rect.width, top: y, bottom: y + rect.height };
  };
  /** @type {ReturnType<typeof waysIn>["wayOf"]} */
  const wayOf = (from, to, { high, wide, off = 0, shift = 0 }) => {
    const tall = from.bottom - from.top;
    const gap = Math.max(6, pitch - tall);
    const [start, stop] = [middle(from), middle(to) + shift];
    if (Math.abs(from.top - to.top) < tall / 2) {
      const room = (from.top <= first + tall ? ABOVE : gap) - wide / 2 - 1;
      const top = from.top - Math.min(high, room / 0.75); // a cubic's height is three quarters of its handles'
      return `M${start},${from.top}C${start},${top} ${stop},${top} ${stop},${to.top}`;
    }
    const [upper, lower, above, below] = from.top > to.top ? [to, from, stop, start] : [from, to, start, stop];
    const [under, over] = [upper.bottom, lower.top];
    if (over - under < pitch) {
      const half = (under + over) / 2 + off;
      const turn = Math.sign(above - below) * Math.min(CORNER, Math.abs(above - below) / 2);
      const across = `Q${below},${half} ${below + turn},${half}H${above - turn}Q${above},${half} ${above},${under}`;
      return `M${below},${over}${across}`;
    }
    // Past the lines between them in the margin that is nearer.
    const isLeft = above + below < box.width;
    const edge = isLeft ? -MARGIN - Math.abs(off) : box.width + MARGIN + Math.abs(off);
    const turn = (/** @type {number} */ x) => (isLeft ? 1 : -1) * Math.min(CORNER, Math.abs(x - edge) / 2);
    const [low, top] = [over - gap / 2 + off, under + gap / 2 + off];
    const bend = Math.min(CORNER, gap / 2);
    const up = `M${below},${over}Q${below},${low} ${below - turn(below)},${low}H${edge + turn(below)}`;
    const along = `Q${edge},${low} ${edge},${low - bend}V${top + bend}Q${edge},${top} ${edge + turn(above)},${top}`;
    return `${up}${along}H${above - turn(above)}Q${above},${top} ${above},${under}`;
  };
  return { wordAt, wayOf };
}

const middle = (/** @type {Box} */ { left, right }) => (left + right) / 2;
