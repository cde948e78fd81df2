/**
 * The colour of a weight: one hue, from the page's ground to near-black (light) or near-white (dark).
 * Lightness rises or falls evenly along it, so it survives greyscale and any colour-blindness.
 *
 * @typedef {{kind: "log"|"linear", low: number, high: number, exceeded?: boolean}} Scale
 */

import { context2d } from "./canvas.js";

const HUE = 42 * (Math.PI / 180);

/**
 * Lightness and chroma in OKLCH at a place 0 … 1.
 * @type {Record<Theme, (t: number) => [number, number]>}
 */
const RAMPS = {
  light: (t) => [0.995 - 0.8 * t, 0.004 + 0.155 * Math.sin(Math.PI * t ** 0.85) ** 1.1],
  dark: (t) => [0.215 + 0.76 * t, 0.004 + 0.15 * Math.sin(Math.PI * t ** 0.95) ** 1.1],
};

/** @type {Record<string, Uint8ClampedArray>} */
const ramps = {};

/**
 * @param {"light"|"dark"} theme
 * @returns {Uint8ClampedArray} 256 colours, red green blue
 */
export function ramp(theme) {
  ramps[theme] ??= Uint8ClampedArray.from(
    Array.from({ length: 256 }, (_, level) => srgb(...RAMPS[theme](level / 255))).flat(),
  );
  return ramps[theme];
}

/** A colour of OKLCH in sRGB, with as much chroma as the screen has at that lightness. */
function srgb(/** @type {number} */ lightness, /** @type {number} */ chroma) {
  for (let c = chroma; ; c -= 0.004) {
    const [a, b] = [Math.cos(HUE) * Math.max(c, 0), Math.sin(HUE) * Math.max(c, 0)];
    const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const linear = [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ];
    if (c <= 0 || linear.every((x) => x > -1e-4 && x < 1.0001)) return linear.map(gamma);
  }
}

const gamma = (/** @type {number} */ x) =>
  Math.round(255 * (x <= 0.0031308 ? 12.92 * Math.max(x, 0) : 1.055 * Math.min(x, 1) ** (1 / 2.4) - 0.055));

/** Decades that the logarithmic scale spans. */
const DECADES = 4;

/** From such a weight on the scale goes up to 1: scales that are the same are easily compared. */
const PLENTY = 0.1;
/** Lowest upper end: below it there is only noise to see. */
const FAINTEST = 1e-6;

/**
 * The scale for a picture: up to 1 where each pixel is one weight, else up to a round number above
 * the greatest value, so that a pattern of 100,000 tokens does not vanish.
 * @param {"log"|"linear"} kind
 * @param {number} most the greatest value in the picture
 * @param {boolean} exact each pixel is one weight
 * @returns {Scale}
 */
export function scaleFor(kind, most, exact) {
  const high = (exact && most >= PLENTY) || !(most > 0) ? 1 : Math.min(1, ceiling(Math.max(most, FAINTEST)));
  return { kind, low: kind === "log" ? high * 10 ** -DECADES : 0, high };
}

function ceiling(/** @type {number} */ value) {
  const base = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 2, 5, 10].map((factor) => Number((factor * base).toPrecision(1))).find((round) => round >= value * 0.9999) ??
    10 * base
  );
}

/** Where a value lies on a scale, 0 … 1. */
export function place(/** @type {Scale} */ scale, /** @type {number} */ value) {
  if (!(value > 0)) return 0;
  const t = scale.kind === "log" ? 1 + Math.log10(value / scale.high) / DECADES : value / scale.high;
  return Math.max(0, Math.min(1, t));
}

/** All colours in a row, as a picture: the scale. */
export function rampPicture(/** @type {Theme} */ theme) {
  const colours = ramp(theme);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [256, 1];
  const context = context2d(canvas);
  const image = context.createImageData(256, 1);
  for (let k = 0; k < 256; k++) image.data.set([...colours.subarray(3 * k, 3 * k + 3), 255], 4 * k);
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * A picture of weights, a pixel each, on a canvas of its own.
 * @param {{values: Float32Array, rows: number, columns: number, offset?: number}} data
 * @param {Scale} scale
 * @param {"light"|"dark"} theme
 * @param {(row: number, column: number) => boolean} [hidden] cells that the mask hides stay clear
 */
export function picture({ values, rows, columns, offset = 0 }, scale, theme, hidden) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(columns, 1);
  canvas.height = Math.max(rows, 1);
  const context = context2d(canvas);
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = image.data;
  const colours = ramp(theme);
  for (let i = 0, at = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++, at++) {
      if (hidden?.(i, j)) continue;
      const value = values[offset + at];
      const level = 3 * Math.round(255 * place(scale, value));
      pixels[4 * at] = colours[level];
      pixels[4 * at + 1] = colours[level + 1];
      pixels[4 * at + 2] = colours[level + 2];
      pixels[4 * at + 3] = 255;
      if (Number.isNaN(value)) pixels[4 * at + 3] = 90; // a NaN is no weight: it shows as a stain
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
