/** What is cut, on the map: each span of queries and keys in the colour of changes, crossed out. */

/**
 * @param {Surface} surface
 * @param {Pick<MapDrawing, "place"|"inks"> & {cuts: NonNullable<MapDrawing["cuts"]>}} data
 * @param {Zoom} now @param {number} cell
 */
export function paintCuts(surface, { place: { left, top, side }, inks, cuts }, now, cell) {
  surface.save();
  surface.beginPath();
  surface.rect(left, top, side, side);
  surface.clip();
  surface.strokeStyle = inks.changed;
  for (const { queries, keys, draft } of cuts) {
    const grown = (/** @type {Span} */ [first, stop]) => Math.max(0, 5 - (stop - first) * cell) / 2; // it stays visible
    const [x, width] = [left + (keys[0] - now.keys) * cell - grown(keys), (keys[1] - keys[0]) * cell + 2 * grown(keys)];
    const y = top + (queries[0] - now.queries) * cell - grown(queries);
    const height = (queries[1] - queries[0]) * cell + 2 * grown(queries);
    surface.lineWidth = draft ? 1.5 : 1;
    surface.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1, 1), Math.max(height - 1, 1));
    surface.globalAlpha = draft ? 0.35 : 0.6;
    hatch(surface, x, y, width, height);
    surface.globalAlpha = 1;
  }
  surface.restore();
}

const APART = 7; // pixels between the lines

/** Slanted lines through a rectangle. */
function hatch(
  /** @type {Surface} */ surface,
  /** @type {number} */ x,
  /** @type {number} */ y,
  /** @type {number} */ width,
  /** @type {number} */ height,
) {
  surface.lineWidth = 1;
  surface.beginPath();
  for (let at = APART; at < width + height; at += APART) {
    surface.moveTo(x + Math.max(0, at - height), y + Math.min(at, height));
    surface.lineTo(x + Math.min(at, width), y + Math.max(0, at - width));
  }
  surface.stroke();
}
