/**
 * The picture of a pattern with its axes and margins, on a canvas or an SvgSurface. It is given all
 * that it shows and asks for nothing.
 */
import { fill, outline, write } from "./canvas.js";
import { fitted, skipped, tickText, ticks } from "./axes.js";
import { place as placed, rampPicture } from "./colour.js";
import { OPENS, paintOpenCell } from "./draw_cell.js";
import { paintCuts } from "./draw_cuts.js";
import { bare, end, signed, weight } from "./format.js";
import { WORDS, unitOf } from "./quantities.js";
import { whole } from "./zoom.js";

const GAP = 6;
const LABEL = 11;
/** Widest and tallest cell: one token alone should not fill a screen. */
const CELL = 88;
const SLANT = Math.PI / 3.4;
/** Room above the map for the axes' names. */
const TOP = 20;
/** Room below the map for the keys of a window, of a map without margins. */
const KEYS = 58;
/** Widest cell whose key does not stand level below it, of a map without margins. */
const LEVEL = 44;
/** Smallest cell that its weight is written into. */
const NUMBERED = 40;

/**
 * Where the parts lie in so much room: labels left and below, entropy right, received below.
 * @param {number} width @param {number} height @param {number} length tokens there are
 * @param {number} [letters] of the longest label
 * @param {boolean} [diagonal] tokens stand along the diagonal, without margins
 * @param {boolean} [margins] whether there are any elsewhere
 * @returns {Layout}
 */
export function layout(width, height, length, letters = 14, diagonal = false, margins = true) {
  if (diagonal) {
    const right = Math.max(40, Math.min(100, width / 7, letters * 6.7 + 12));
    const side = Math.max(60, Math.min(width - 1 - right, height - TOP - KEYS, Math.max(length, 1) * CELL));
    return {
      diagonal,
      left: 1,
      top: TOP,
      side,
      right,
      bottom: KEYS,
      bar: 0,
      width: 1 + side + right,
      height: TOP + side + KEYS,
    };
  }
  const narrow = width < 440;
  const left = Math.max(62, Math.min(narrow ? 70 : 104, letters * 6.7 + 16));
  const right = narrow ? 48 : 58;
  const bar = margins ? (narrow ? 30 : 40) : 0;
  const bottom = bar + GAP * 2 + (narrow ? 62 : 84);
  const top = TOP;
  const side = Math.max(60, Math.min(width - left - right, height - top - bottom, Math.max(length, 1) * CELL));
  return { diagonal, left, top, side, right, bottom, bar, width: left + side + right, height: top + side + bottom };
}

/**
 * Token and cell under a point, or null beside the map; there the nearest, if requested.
 * @param {Layout} place @param {Zoom|null} zoom @param {number} length @param {number} x @param {number} y
 */
export function hit(place, zoom, length, x, y, nearest = false) {
  const now = zoom ?? whole(length);
  const cell = place.side / now.span;
  const inside = (/** @type {number} */ d) => (nearest ? Math.max(0, Math.min(place.side - 1e-6, d)) : d);
  const [dx, dy] = [inside(x - place.left), inside(y - place.top)];
  if (dx < 0 || dy < 0 || dx >= place.side || dy >= place.side) return null;
  const at = (/** @type {number} */ first, /** @type {number} */ d) =>
    Math.min(length - 1, Math.floor(first + d / cell));
  return { query: at(now.queries, dy), key: at(now.keys, dx) };
}

/** Draws the pictures, the coarse first and the sharp over it, then the axes and margins. */
export function paintMap(/** @type {Surface} */ surface, /** @type {MapDrawing} */ data) {
  const { place, inks, pictures, length } = data;
  const { left, top, side } = place;
  const now = data.zoom ?? whole(length);
  const cell = side / now.span;
  fill(surface, inks.paper, 0, 0, place.width, place.height);
  surface.save();
  surface.beginPath();
  surface.rect(left, top, side, side);
  surface.clip();
  for (const picture of pictures) paintPicture(surface, picture, place, now, cell);
  if (data.numbers && cell >= NUMBERED) paintNumbers(surface, { ...data, numbers: data.numbers }, now, cell);
  if (data.opened && cell >= OPENS) {
    const { query, key } = data.opened.at;
    const corner = [left + (key - now.keys) * cell, top + (query - now.queries) * cell];
    paintOpenCell(surface, data.opened, [corner[0], corner[1], cell], inks);
  }
  surface.restore();
  outline(surface, inks.line, 1, left - 0.5, top - 0.5, side + 1, side + 1);
  if (data.margins) paintMargins(surface, { ...data, margins: data.margins }, now, cell);
  paintLabels(surface, data, now, cell);
  if (data.cuts?.length) paintCuts(surface, { ...data, cuts: data.cuts }, now, cell);
  paintCross(surface, data, now, cell);
}

/** @param {Surface} surface @param {Picture} picture @param {Layout} place @param {Zoom} now @param {number} cell */
function paintPicture(surface, { canvas, queries, keys, block }, { left, top }, now, cell) {
  const y0 = Math.max(queries[0], now.queries);
  const y1 = Math.min(queries[1], now.queries + now.span);
  const x0 = Math.max(keys[0], now.keys);
  const x1 = Math.min(keys[1], now.keys + now.span);
  if (y1 <= y0 || x1 <= x0) return;
  surface.imageSmoothingEnabled = block * cell < 1; // a cell is smaller than a pixel
  surface.drawImage(
    canvas,
    (x0 - keys[0]) / block,
    (y0 - queries[0]) / block,
    (x1 - x0) / block,
    (y1 - y0) / block,
    left + (x0 - now.keys) * cell,
    top + (y0 - now.queries) * cell,
    (x1 - x0) * cell,
    (y1 - y0) * cell,
  );
}

/**
 * Each weight in its cell, in the ink that is read on its colour.
 * @param {Surface} surface @param {MapDrawing & {numbers: Drawn}} data @param {Zoom} now @param {number} cell
 */
function paintNumbers(surface, { place, inks, numbers, scale, causal }, now, cell) {
  const { queries, keys, columns, values } = numbers;
  const pale = inks.theme === "light" ? 0.6 : 0.42; // up to there the page's own ink is read
  const font = `${LABEL}px ${inks.mono}`;
  for (let query = Math.floor(now.queries); query < Math.min(queries[1], now.queries + now.span); query++) {
    for (let key = Math.floor(now.keys); key < Math.min(keys[1], now.keys + now.span); key++) {
      if (causal && key > query) continue;
      const value = values[(query - queries[0]) * columns + (key - keys[0])];
      const depth = scale.signed ? Math.abs(2 * placed(scale, value) - 1) : placed(scale, value);
      const colour = depth > pale ? inks.paper : inks.ink;
      const at = (/** @type {number} */ first, /** @type {number} */ token) => (token + 0.5 - first) * cell;
      const [x, y] = [place.left + at(now.keys, key), place.top + at(now.queries, query)];
      write(surface, scale.signed ? signed(value, 3) : weight(value), x, y, {
        font,
        colour,
        align: "center",
        baseline: "middle",
      });
    }
  }
}

/**
 * @param {Surface} surface @param {MapDrawing & {margins: NonNullable<MapDrawing["margins"]>}} data @param {Zoom} now
 * @param {number} cell
 */
function paintMargins(surface, { place, inks, margins, query, key }, now, cell) {
  const { left, top, side, bar } = place;
  const highest = Math.max(greatest(margins.entropy), 1e-9);
  const most = Math.max(greatest(margins.received), 1e-9);
  const under = top + side + GAP;
  fill(surface, inks.line, left + side + GAP - 1, top, 1, side);
  surface.fillRect(left, under - 1, side, 1);
  bins(now.queries, now.span, margins.entropy, cell, mean, (k, at, size, value) => {
    fill(surface, k === query ? inks.query : inks.soft, left + side + GAP, top + at, (value / highest) * bar, size);
  });
  // The greatest of a pixel, not the mean: one key that takes much must not vanish among many.
  bins(
    now.keys,
    now.span,
    margins.received,
    cell,
    (before, value) => Math.max(before, value),
    (k, at, size, value) => {
      fill(surface, k === key ? inks.key : inks.soft, left + at, under, size, Math.sqrt(value / most) * bar);
    },
  );
  const note = { font: `${LABEL}px ${inks.sans}`, colour: inks.soft };
  ["received", `0 … ${end(most > 1e-6 ? round(most) : 0)}`, "root scale"].forEach((line, i) =>
    write(surface, line, left - GAP, under + 9 + 12 * i, { ...note, align: "right" }),
  );
  ["entropy", `0 … ${end(highest > 1e-6 ? round(highest) : 0)}`, unitOf("entropy")].forEach((line, i) =>
    write(surface, line, left + side + GAP, under + 9 + 12 * i, note),
  );
}

/**
 * Bars of whole tokens, or of whole pixels where a token is thinner.
 * @param {number} first @param {number} span @param {Float32Array} values @param {number} cell
 * @param {(before: number, value: number, n: number) => number} merge
 * @param {(k: number, at: number, size: number, value: number) => void} draw
 */
function bins(first, span, values, cell, merge, draw) {
  const stop = Math.min(values.length, Math.ceil(first + span));
  if (cell >= 1) {
    for (let k = Math.floor(first); k < stop; k++) {
      const start = Math.max(0, (k - first) * cell);
      const edge = Math.min(span * cell, (k + 1 - first) * cell);
      if (edge > start) draw(k, start, Math.max(edge - start - (cell > 4 ? 1 : 0), 0.5), values[k]);
    }
    return;
  }
  for (let pixel = 0; pixel < span * cell; pixel++) {
    const from = Math.floor(first + pixel / cell);
    const to = Math.min(stop, Math.max(from + 1, Math.floor(first + (pixel + 1) / cell)));
    let value = values[from];
    for (let k = from + 1; k < to; k++) value = merge(value, values[k], k - from);
    if (from < stop) draw(from, pixel, 1, value);
  }
}

const mean = (/** @type {number} */ before, /** @type {number} */ value, /** @type {number} */ n) =>
  before + (value - before) / (n + 1);
const round = (/** @type {number} */ value) => Number(value.toPrecision(2));

function greatest(/** @type {Float32Array} */ values) {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}

/** @param {Surface} surface @param {MapDrawing} data @param {Zoom} now @param {number} cell */
function paintLabels(surface, { place, inks, labels, length, zoom, query, key }, now, cell) {
  const { left, top, side, bar, bottom, diagonal } = place;
  const note = { font: `${LABEL}px ${inks.sans}`, colour: inks.soft };
  if (diagonal) write(surface, "query ↓   key →", left, top - 7, note);
  else {
    write(surface, "query ↓", left - GAP, top - 7, { ...note, align: "right" });
    write(surface, "key →", left, top - 7, note);
  }
  // A little smaller where that shows every token instead of every second, with a gap between lines.
  const size = Math.max(8.5, Math.min(LABEL, cell - 2));
  surface.font = diagonal ? `${Math.min(12.5, size + 1.5)}px ${inks.sans}` : `${size}px ${inks.mono}`;
  surface.textBaseline = "middle";
  const room = cell >= 10.5 ? 10.5 : LABEL + 2;
  const middle = (/** @type {number} */ first, /** @type {number} */ k) => (k + 0.5 - first) * cell;
  const inside = (/** @type {number} */ at) => at >= 0 && at <= side;

  const rows = ticks(now.queries, now.span, side, length, room);
  const row = (/** @type {number} */ k, /** @type {boolean} */ chosen) => {
    const y = middle(now.queries, k);
    if (!inside(y)) return;
    surface.fillStyle = chosen ? inks.query : inks.soft;
    if (diagonal) {
      // Beside the last key that the query sees, as far as that is in the window.
      const x = left + Math.max(0, Math.min(side, (k + 1 - now.keys) * cell)) + GAP;
      surface.textAlign = "left";
      surface.fillText(fitted(surface, bare(tickText(labels, k, 1)), place.width - x), x, top + y);
      return;
    }
    surface.textAlign = "right";
    surface.fillText(fitted(surface, tickText(labels, k, rows.step), left - GAP - 8), left - GAP, top + y);
    if (cell < room) surface.fillRect(left - 4, top + y - 0.5, 3, 1);
  };
  for (const k of rows.at) {
    if (query == null || k === query || Math.abs(k - query) * cell >= room) row(k, k === query);
  }
  if (query != null && !rows.at.includes(query)) row(query, true);

  if (diagonal && !zoom) return; // the names on the diagonal are those of the keys, too
  const columns = ticks(now.keys, now.span, side, length, cell >= 10.5 ? room : room + 3);
  // Slanted reads more easily; upright has room for more.
  const turn = cell * columns.step < 15 ? Math.PI / 2 : SLANT;
  const base = top + side + GAP + bar + 8;
  const column = (/** @type {number} */ k, /** @type {boolean} */ chosen) => {
    const x = middle(now.keys, k);
    if (!inside(x)) return;
    surface.fillStyle = chosen ? inks.key : inks.soft;
    surface.textAlign = "left";
    if (diagonal && cell * columns.step > LEVEL) {
      surface.textAlign = "center";
      surface.fillText(fitted(surface, bare(labels[k]), cell * columns.step - GAP), left + x, base);
      return;
    }
    surface.save();
    surface.translate(left + x + (turn === SLANT ? -2 : 0), base);
    surface.rotate(turn);
    // What is left of the height, along the slant, and of the width at the right end.
    const most = Math.min(
      (bottom - bar - 26) / Math.sin(turn),
      turn === SLANT ? (place.width - left - x) / Math.cos(turn) : Infinity,
    );
    surface.fillText(fitted(surface, tickText(labels, k, columns.step), most), 0, 0);
    surface.restore();
  };
  for (const k of columns.at) {
    if (key == null || k === key || Math.abs(k - key) * cell >= room) column(k, k === key);
  }
  if (key != null && !columns.at.includes(key)) column(key, true);

  const { step: down } = rows;
  const { step: along } = columns;
  if (down === 1 && along === 1) return;
  const words = down === along ? `labels: ${skipped(down)}` : `labels: ${skipped(down)} ↓, ${skipped(along)} →`;
  surface.font = note.font;
  write(surface, fitted(surface, words, place.width - 8), 4, place.height - 5, note);
}

/** @param {Surface} surface @param {MapDrawing} data @param {Zoom} now @param {number} cell */
function paintCross(surface, { place, inks, query, key }, now, cell) {
  const { left, top, side } = place;
  surface.save();
  surface.beginPath();
  surface.rect(left - 1, top - 1, side + 2, side + 2);
  surface.clip();
  surface.strokeStyle = inks.ink; // neither of the colours that mean something
  surface.lineWidth = 1.25;
  const thick = Math.max(cell, 2);
  const y = query == null ? null : top + (query + 0.5 - now.queries) * cell - thick / 2;
  const x = key == null ? null : left + (key + 0.5 - now.keys) * cell - thick / 2;
  if (y != null) surface.strokeRect(left - 2, y - 0.5, side + 4, thick + 1);
  surface.globalAlpha = 0.55;
  if (x != null) surface.strokeRect(x - 0.5, top - 2, thick + 1, side + 4);
  surface.globalAlpha = 1;
  if (x != null && y != null) {
    const grown = Math.max(0, 7 - thick) / 2; // a cell of one pixel would be too small to see
    surface.lineWidth = 2;
    surface.strokeRect(x - 1 - grown, y - 1 - grown, thick + 2 + 2 * grown, thick + 2 + 2 * grown);
  }
  surface.restore();
}

/**
 * The whole pattern, small, with the visible window on it.
 * @param {Surface} surface
 * @param {{size: number, picture: Picture|null, zoom: Zoom|null, length: number, inks: Inks}} data
 */
export function paintOverview(surface, { size, picture, zoom, length, inks }) {
  fill(surface, inks.paper, 0, 0, size, size);
  surface.imageSmoothingEnabled = picture ? picture.canvas.width > size : false;
  if (picture) {
    const seen = length / picture.block; // the last cell may reach beyond the text
    surface.drawImage(picture.canvas, 0, 0, seen, seen, 1, 1, size - 2, size - 2);
  }
  outline(surface, inks.line, 1, 0.5, 0.5, size - 1, size - 1);
  if (!zoom) return;
  const unit = (size - 2) / length;
  const grown = Math.max(0, 5 - zoom.span * unit); // it stays visible at 100,000 tokens
  outline(
    surface,
    inks.accent,
    1.5,
    1 + zoom.keys * unit - grown / 2,
    1 + zoom.queries * unit - grown / 2,
    zoom.span * unit + grown,
    zoom.span * unit + grown,
  );
}

/**
 * The colour scale, its ends in numbers, and the weight under the crosshair on it.
 * @param {Surface} surface
 * @param {{x?: number, y?: number, width: number, scale: import("./colour.js").Scale, inks: Inks, shows: Shows,
 *   value?: number|null}} data
 */
export function paintScale(surface, { x = 0, y = 0, width, scale, inks, shows, value = null }) {
  const height = 10;
  surface.imageSmoothingEnabled = true;
  surface.drawImage(rampPicture(scale, inks.theme), x, y + 7, width, height);
  outline(surface, inks.line, 1, x + 0.5, y + 6.5, width - 1, height + 1);
  const note = { font: `${LABEL}px ${inks.sans}`, colour: inks.soft };
  surface.font = note.font;
  const low = scale.signed ? `−${end(scale.high)}` : scale.kind === "log" ? `≤ ${end(scale.low)}` : "0";
  const high = `${scale.exceeded ? "≥ " : ""}${end(scale.high)}`;
  const between = width - surface.measureText(low).width - surface.measureText(high).width;
  write(surface, low, x, y + 31, note);
  write(surface, high, x + width, y + 31, { ...note, align: "right" });
  const caption = scale.signed ? "0" : `${WORDS[shows].entry}, ${scale.kind}`;
  const middle = x + surface.measureText(low).width + between / 2;
  if (surface.measureText(caption).width < between - 12)
    write(surface, caption, middle, y + 31, { ...note, align: "center" });
  if (value == null || !Number.isFinite(value)) return;
  const at = x + placed(scale, value) * width;
  surface.fillStyle = inks.accent;
  surface.beginPath();
  surface.moveTo(at, y + 6);
  surface.lineTo(at - 4, y);
  surface.lineTo(at + 4, y);
  surface.closePath();
  surface.fill();
}
