/** A cell of a map that was zoomed into: what its weight is made of, from the vectors to the softmax. */
import { fill, outline, write } from "./canvas.js";
import { paintVector } from "./draw_bars.js";
import { scaleName, signed, weight } from "./format.js";

/** Pixels of a side from which on a cell opens, and where it is open. */
export const OPENS = 130;
const OPEN = 210;
/** Pixels of a side from which on there is room for the vectors. */
const ROOMY = 320;

/**
 * @param {Surface} surface @param {OpenCell} of @param {[x: number, y: number, side: number]} box
 * @param {Inks} inks
 */
export function paintOpenCell(surface, { key, query, scale, logsumexp }, [x, y, side], inks) {
  const alpha = Math.max(0, Math.min(1, (side - OPENS) / (OPEN - OPENS)));
  if (!alpha) return;
  const edge = Math.max(6, side * 0.045);
  const [left, top, width] = [x + edge, y + edge, side - 2 * edge];
  surface.save();
  surface.globalAlpha = alpha;
  fill(surface, inks.paper, left, top, width, width);
  outline(surface, inks.line, 1, left, top, width, width);
  const pad = width * 0.07;
  const vectors = side >= ROOMY ? [query, key.key, query.map((value, d) => value * key.key[d])] : [];
  const high = vectors.length ? width * 0.46 : 0;
  const font = (/** @type {number} */ size, family = inks.sans) => `${size}px ${family}`;
  vectors.forEach((values, k) => {
    const at = top + pad * 0.6 + (k * high) / 3;
    const size = Math.min(15, width / 24);
    write(surface, ["q", "k", "q · k"][k], left + pad, at + high / 6, {
      font: font(size),
      colour: inks.soft,
      baseline: "middle",
    });
    surface.save();
    surface.translate(left + pad + 3.4 * size, at);
    const most = Math.max(1e-9, ...values.map(Math.abs));
    paintVector(surface, { values, width: width - 2 * pad - 3.4 * size, height: high / 3 - 6, most, inks });
    surface.restore();
  });
  const adjusted = key.masked ?? key.scaled;
  /** @type {[name: string, number: string][]} */
  const rows = [
    [vectors.length ? "sum" : "q · k", signed(key.score, 2)],
    [`× ${scaleName(scale)}`, signed(key.scaled, 2)],
    [key.visible ? "mask: visible" : "mask: hidden", key.visible ? signed(adjusted, 2) : "−∞"],
    [`softmax: e^(… − ${signed(logsumexp, 2)})`, weight(key.weight)],
  ];
  const row = (width - high - pad * 1.2) / rows.length;
  const numbers = inks.serif || inks.sans;
  const [longest, largest] = rows[rows.length - 1];
  const taken = 10 + widthOf(surface, longest, font(10)) + widthOf(surface, largest, font(15, numbers)); // with a space between
  const size = Math.min(17, row * 0.42, width / 13, (10 * (width - 2 * pad)) / taken);
  rows.forEach(([name, number], k) => {
    const middle = top + pad * 0.6 + high + (k + 0.5) * row;
    const last = k === rows.length - 1;
    write(surface, name, left + pad, middle, { font: font(size), colour: inks.soft, baseline: "middle" });
    write(surface, number, left + width - pad, middle, {
      font: font(last ? size * 1.5 : size * 1.2, numbers),
      colour: last ? inks.accent : inks.ink,
      align: "right",
      baseline: "middle",
    });
  });
  surface.restore();
}

/** How wide a text is. @param {Surface} surface @param {string} text @param {string} font */
function widthOf(surface, text, font) {
  surface.font = font;
  return surface.measureText(text).width;
}
