/**
 * The colour of a weight: one hue, from the page's ground to near-black (light) or near-white (dark).
 * Lightness rises or falls evenly along it, so it survives greyscale and any colour-blindness.
 *
 * @typedef {{kind: ColourKind, low: number, high: number, exceeded?: boolean, signed?: boolean}} Scale
 *   signed: from −high to high, with 0 in the middle
 * @typedef {{values: Float32Array, rows: number, columns: number, offset?: number}} Weights
 */

import { context2d } from "./canvas.js";

const HUE = 42 * (Math.PI / 180);
/** The hue of what is less than it was. */
const COLD = 245 * (Math.PI / 180);

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

/** Lightness and chroma of a difference, 0 … 1 of the greatest. @type {typeof RAMPS} */
const DIFFERENCES = {
  light: (t) => [0.985 - 0.545 * t, 0.003 + 0.15 * Math.sin((Math.PI / 2) * t ** 0.8)],
  dark: (t) => [0.215 + 0.565 * t, 0.004 + 0.14 * Math.sin((Math.PI / 2) * t ** 0.8)],
};

/** 256 colours of a difference, from the least over 0, which is the ground, to the greatest. */
export function differenceRamp(/** @type {Theme} */ theme) {
  ramps[`difference, ${theme}`] ??= Uint8ClampedArray.from(
    Array.from({ length: 256 }, (_, level) => {
      const t = (2 * level) / 255 - 1;
      return srgb(...DIFFERENCES[theme](Math.abs(t)), t < 0 ? COLD : HUE);
    }).flat(),
  );
  return ramps[`difference, ${theme}`];
}

/** A colour of OKLCH in sRGB, with as much chroma as the screen has at that lightness. */
function srgb(/** @type {number} */ lightness, /** @type {number} */ chroma, hue = HUE) {
  for (let c = chroma; ; c -= 0.004) {
    const [a, b] = [Math.cos(hue) * Math.max(c, 0), Math.sin(hue) * Math.max(c, 0)];
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
 * @param {ColourKind} kind
 * @param {number} most the greatest value in the picture
 * @param {boolean} exact each pixel is one weight
 * @returns {Scale}
 */
export function scaleFor(kind, most, exact) {
  const high = (exact && most >= PLENTY) || !(most > 0) ? 1 : Math.min(1, ceiling(Math.max(most, FAINTEST)));
  return { kind, low: kind === "log" ? high * 10 ** -DECADES : 0, high };
}

/**
 * The scale for a picture of a view: of weights as above; what they move has no end, and what they add has a sign.
 * @param {Shows} shows @param {ColourKind} kind @param {number} most @param {boolean} exact
 */
export function scaleOf(shows, kind, most, exact) {
  if (shows === "weight" || shows === "without") return scaleFor(kind, most, exact);
  const scale = differenceScale(kind, most);
  return { ...scale, signed: shows === "toward" };
}

/** The scale of a difference, up to a round number above the greatest. @returns {Scale} */
export function differenceScale(/** @type {ColourKind} */ kind, /** @type {number} */ most) {
  const high = ceiling(Math.max(most, FAINTEST));
  return { kind, low: kind === "log" ? high * 10 ** -DECADES : 0, high, signed: true };
}

function ceiling(/** @type {number} */ value) {
  const base = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 2, 5, 10].map((factor) => Number((factor * base).toPrecision(1))).find((round) => round >= value * 0.9999) ??
    10 * base
  );
}

/** Where a value lies on a scale, 0 … 1. @returns {number} */
export function place(/** @type {Scale} */ scale, /** @type {number} */ value) {
  if (scale.signed) return (1 + Math.sign(value) * place({ ...scale, signed: false }, Math.abs(value))) / 2;
  if (!(value > 0)) return 0;
  const part = value / scale.high;
  // No object of the three: this runs for every pixel.
  const t = scale.kind === "log" ? 1 + Math.log10(part) / DECADES : scale.kind === "root" ? Math.sqrt(part) : part;
  return Math.max(0, Math.min(1, t));
}

/** The colours of a scale, 256 of them. */
const coloursOf = (/** @type {Scale} */ scale, /** @type {Theme} */ theme) =>
  scale.signed ? differenceRamp(theme) : ramp(theme);

/** All colours in a row, as a picture: the scale. */
export function rampPicture(/** @type {Scale} */ scale, /** @type {Theme} */ theme) {
  const colours = coloursOf(scale, theme);
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
 * @param {Weights} data
 * @param {Scale} scale
 * @param {"light"|"dark"} theme
 * @param {(row: number, column: number) => boolean} [hidden] cells that the mask hides stay clear
 */
export function picture(data, scale, theme, hidden) {
  return pictures([{ data, scale }], theme, hidden);
}

/**
 * Pictures of weights of one size below each other, on one canvas: a canvas for each takes longer to make than to fill.
 * @param {{data: Weights, scale: Scale}[]} parts
 * @param {"light"|"dark"} theme
 * @param {(row: number, column: number) => boolean} [hidden]
 */
export function pictures(parts, theme, hidden) {
  const [{ rows, columns }] = parts.map(({ data }) => data);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(columns, 1);
  canvas.height = Math.max(rows * parts.length, 1);
  const context = context2d(canvas);
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = image.data;
  let at = 0;
  for (const { data, scale } of parts) {
    const { values, offset = 0 } = data;
    const colours = coloursOf(scale, theme);
    for (let i = 0, k = offset; i < rows; i++) {
      for (let j = 0; j < columns; j++, k++, at++) {
        if (hidden?.(i, j)) continue;
        const value = values[k];
        const level = 3 * Math.round(255 * place(scale, value));
        pixels[4 * at] = colours[level];
        pixels[4 * at + 1] = colours[level + 1];
        pixels[4 * at + 2] = colours[level + 2];
        pixels[4 * at + 3] = Number.isNaN(value) ? 90 : 255; // a NaN is not a weight: it has a colour of its own
      }
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
