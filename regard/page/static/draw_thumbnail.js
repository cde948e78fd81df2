/** Heads as small pictures, and the grid of them as one drawing. */
import { pictures, scaleOf } from "./colour.js";
import { fitted } from "./axes.js";
import { context2d, fill, outline, write } from "./canvas.js";
import { greatestOf } from "./quantities.js";

/**
 * One head's thumbnail. The scale is that of its own picture: a glance compares shapes, not weights.
 * @param {HTMLCanvasElement} canvas
 * @param {{values: Float32Array, rows: number, columns: number}} data of the layer
 * @param {number} head place in the layer
 * @param {Look} look
 */
export function paintThumbnail(canvas, data, head, look) {
  const small = thumbnail(data, head, look);
  canvas.width = small.width;
  canvas.height = small.height;
  context2d(canvas).drawImage(small, 0, 0);
}

/** @typedef {{theme: Theme, causal: boolean, kind?: ColourKind, exact?: boolean, shows?: Shows}} Look */

/**
 * The picture of a thumbnail, a pixel a value.
 * @param {{values: Float32Array, rows: number, columns: number}} data of the layer
 * @param {number} head its place in the layer
 * @param {Look} look
 */
export const thumbnail = (data, head, look) => thumbnails(data, [head], look);

/**
 * The pictures of some thumbnails below each other.
 * @param {{values: Float32Array, rows: number, columns: number}} data of the layer
 * @param {number[]} heads their places in the layer
 * @param {Look} look
 */
export function thumbnails({ values, rows, columns }, heads, look) {
  const { theme, causal, kind = "log", exact = false, shows = "weight" } = look;
  const parts = heads.map((head) => {
    const offset = head * rows * columns;
    const most = greatestOf(values.subarray(offset, offset + rows * columns));
    return { data: { values, rows, columns, offset }, scale: scaleOf(shows, kind, most, exact) };
  });
  return pictures(parts, theme, causal ? (i, j) => j > i : undefined);
}

/**
 * The thumbnails of a layer, averaged down to so many pixels a side: made small by the browser instead, a thin
 * line, as of a head that looks at the token before, would fade into the ground.
 * @param {Floats} data @param {number} side @returns {Floats}
 */
export function shrunk({ values, rows, columns, heads }, side) {
  const [high, wide] = [Math.min(side, rows), Math.min(side, columns)];
  const small = new Float32Array(heads * high * wide);
  const counts = new Float32Array(high * wide);
  const at = (/** @type {number} */ i, /** @type {number} */ j) =>
    Math.floor((i * high) / rows) * wide + Math.floor((j * wide) / columns);
  const cells = Int32Array.from({ length: rows * columns }, (_, k) => at(Math.floor(k / columns), k % columns));
  for (const cell of cells) counts[cell] += 1;
  for (let k = 0; k < heads * rows * columns; k++) {
    const cell = cells[k % cells.length];
    small[Math.floor(k / cells.length) * high * wide + cell] += values[k] / counts[cell];
  }
  return { values: small, rows: high, columns: wide, heads };
}

/**
 * What is exported begins with what it shows.
 * @param {Surface} surface @param {string} text @param {number} x @param {number} y @param {Inks} inks
 */
export function heading(surface, text, x, y, inks, width = Infinity) {
  const font = (surface.font = `bold 13px ${inks.sans}`);
  write(surface, width < Infinity ? fitted(surface, text, width) : text, x, y, { font, colour: inks.ink });
}

/**
 * All heads as one drawing: what is exported.
 * @param {Surface} surface
 * @param {{cells: {picture: HTMLCanvasElement|null, name: string, role: string, chosen: boolean}[],
 *   across: number, cell: number, inks: Inks, title: string}} data
 */
export function paintGrid(surface, { cells, across, cell, inks, title }) {
  const { width, height } = gridSize(cells.length, across, cell);
  fill(surface, inks.paper, 0, 0, width, height);
  heading(surface, title, 12, 22, inks, width - 24);
  cells.forEach(({ picture: image, name, role, chosen }, k) => {
    const x = 12 + (k % across) * (cell + 10);
    const y = 36 + Math.floor(k / across) * (cell + 36);
    surface.imageSmoothingEnabled = false;
    if (image) surface.drawImage(image, x, y, cell, cell);
    outline(surface, chosen ? inks.accent : inks.line, chosen ? 2 : 1, x - 0.5, y - 0.5, cell + 1, cell + 1);
    const font = (surface.font = `11px ${inks.sans}`);
    write(surface, fitted(surface, role, cell + 6), x, y + cell + 13, { font, colour: inks.ink });
    write(surface, name, x, y + cell + 25, { font, colour: inks.soft });
  });
}

export const gridSize = (/** @type {number} */ count, /** @type {number} */ across, /** @type {number} */ cell) => ({
  width: 24 + across * (cell + 10) - 10,
  height: 36 + Math.ceil(count / across) * (cell + 36),
});
