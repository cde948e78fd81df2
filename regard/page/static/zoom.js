/** The square window of a pattern that is seen: pure sums, in tokens. */

/** Fewest tokens a window shows: a cell that fills it opens. */
const LEAST = 1.12;

/** @returns {Zoom} the whole pattern */
export const whole = (/** @type {number} */ length) => ({ queries: 0, keys: 0, span: Math.max(length, 1) });

export const isWhole = (/** @type {Zoom|null} */ zoom, /** @type {number} */ length) => !zoom || zoom.span >= length;

export const isSameZoom = (/** @type {Zoom|null} */ one, /** @type {Zoom|null} */ other) =>
  one?.queries === other?.queries && one?.keys === other?.keys && one?.span === other?.span;

/** A window within the pattern, or null where that is all of it. */
export function bounded(/** @type {Zoom} */ { queries, keys, span }, /** @type {number} */ length) {
  const fits = Math.max(Math.min(LEAST, length), Math.min(span, length));
  if (fits >= length) return null;
  const inside = (/** @type {number} */ first) => Math.max(0, Math.min(length - fits, first));
  return { queries: inside(queries), keys: inside(keys), span: fits };
}

/**
 * Zooms by a factor (above 1: closer) around a place, so that what lies there stays there.
 * @param {Zoom|null} zoom @param {number} length @param {number} factor
 * @param {{x: number, y: number}} at 0 … 1 within the window
 */
export function scaled(zoom, length, factor, at = { x: 0.5, y: 0.5 }) {
  const now = zoom ?? whole(length);
  const span = Math.max(Math.min(LEAST, length), Math.min(length, now.span / factor));
  return bounded(
    { queries: now.queries + at.y * (now.span - span), keys: now.keys + at.x * (now.span - span), span },
    length,
  );
}

/** Moves by parts of the window. */
export const moved = (
  /** @type {Zoom|null} */ zoom,
  /** @type {number} */ length,
  /** @type {number} */ x,
  /** @type {number} */ y,
) => zoom && bounded({ ...zoom, queries: zoom.queries + y * zoom.span, keys: zoom.keys + x * zoom.span }, length);

/**
 * The window moved as little as it takes to show a query and a key.
 * @param {Zoom|null} zoom @param {number} length @param {number|null} query @param {number|null} key
 */
export function showing(zoom, length, query, key) {
  if (!zoom || isWhole(zoom, length)) return null;
  const near = (/** @type {number} */ first, /** @type {number|null} */ at) => {
    if (at == null) return first;
    const room = Math.min(2, zoom.span / 8);
    return Math.min(Math.max(first, at + 1 + room - zoom.span), at - room);
  };
  return bounded({ queries: near(zoom.queries, query), keys: near(zoom.keys, key), span: zoom.span }, length);
}

/** Tokens along a side of a cell, a power of two, so that about `most` cells fill the window. */
const blockFor = (/** @type {number} */ span, /** @type {number} */ most) =>
  2 ** Math.max(0, Math.round(Math.log2(span / most)));

/**
 * The window in whole cells, as a request has it.
 * @param {Zoom|null} zoom @param {number} length @param {number} most
 * @returns {MapWindow}
 */
export function requestFor(zoom, length, most) {
  const now = zoom ?? whole(length);
  const block = blockFor(now.span, most);
  /** @returns {Span} */
  const range = (/** @type {number} */ first) => [
    Math.max(0, Math.floor(first / block)) * block,
    Math.min(length, Math.ceil((first + now.span - 1e-9) / block) * block),
  ];
  return { queries: range(now.queries), keys: range(now.keys), block };
}
