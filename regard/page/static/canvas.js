/**
 * The few calls of a canvas context that our drawings use, written down as SVG instead: one drawing
 * serves the screen, the PNG and the SVG, and they can't differ.
 */

/** What draws on a canvas. */
export const context2d = (/** @type {HTMLCanvasElement} */ canvas) =>
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/**
 * A rectangle in a colour.
 * @param {Surface} surface @param {string} colour @param {[x: number, y: number, width: number, height: number]} box
 */
export function fill(surface, colour, ...box) {
  surface.fillStyle = colour;
  surface.fillRect(...box);
}

/**
 * A rectangle's edge in a colour.
 * @param {Surface} surface @param {string} colour @param {number} lineWidth
 * @param {[x: number, y: number, width: number, height: number]} box
 */
export function outline(surface, colour, lineWidth, ...box) {
  surface.strokeStyle = colour;
  surface.lineWidth = lineWidth;
  surface.strokeRect(...box);
}

/**
 * A text in a font and a colour.
 * @param {Surface} surface @param {string} text @param {number} x @param {number} y
 * @param {{font: string, colour: string, align?: CanvasTextAlign, baseline?: CanvasTextBaseline}} how
 */
export function write(surface, text, x, y, { font, colour, align = "left", baseline = "alphabetic" }) {
  Object.assign(surface, { font, fillStyle: colour, textAlign: align, textBaseline: baseline });
  surface.fillText(text, x, y);
}

export class SvgSurface {
  constructor(/** @type {number} */ width, /** @type {number} */ height) {
    this.width = width;
    this.height = height;
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
    /** @type {string[]} */
    this.parts = [];
    this.path = "";
    /** @type {{open: number, pens: object}[]} */
    this.saved = [];
    this.open = 0; // groups to close before the next restore
    this.clips = 0;
    this.ruler = context2d(document.createElement("canvas"));
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.parts.push(
      `<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" fill="${escaped(this.fillStyle)}"${this.#faint()}/>`,
    );
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  strokeRect(x, y, width, height) {
    this.parts.push(
      `<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${n(this.lineWidth)}"${this.#faint()}/>`,
    );
  }

  clearRect() {
    /* an SVG starts clear */
  }

  beginPath() {
    this.path = "";
  }
  moveTo(/** @type {number} */ x, /** @type {number} */ y) {
    this.path += `M${n(x)} ${n(y)}`;
  }
  lineTo(/** @type {number} */ x, /** @type {number} */ y) {
    this.path += `L${n(x)} ${n(y)}`;
  }
  closePath() {
    this.path += "Z";
  }
  rect(/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ width, /** @type {number} */ height) {
    this.path += `M${n(x)} ${n(y)}h${n(width)}v${n(height)}h${n(-width)}Z`;
  }

  stroke() {
    this.parts.push(
      `<path d="${this.path}" fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${n(this.lineWidth)}"${this.#faint()}/>`,
    );
  }

  fill() {
    this.parts.push(`<path d="${this.path}" fill="${escaped(this.fillStyle)}"${this.#faint()}/>`);
  }

  clip() {
    const name = `clip${++this.clips}`;
    this.#group(`<clipPath id="${name}"><path d="${this.path}"/></clipPath><g clip-path="url(#${name})">`);
  }

  fillText(/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) {
    const [, weight = "", size, family] = /^(?:(\d+|bold) )?([\d.]+)px(?:\/[\d.]+)? (.*)$/.exec(this.font) ?? [
      null,
      "",
      "10",
      "sans-serif",
    ];
    const anchor = { left: "start", start: "start", center: "middle", right: "end", end: "end" }[this.textAlign];
    // Not dominant-baseline: half of the programs that read SVG ignore it.
    const down = { middle: 0.35, top: 0.8, bottom: -0.2 }[this.textBaseline] ?? 0;
    this.parts.push(
      `<text x="${n(x)}" y="${n(y + down * Number(size))}" font-family="${escaped(family)}" font-size="${size}"${weight ? ` font-weight="${weight}"` : ""} text-anchor="${anchor}" fill="${escaped(this.fillStyle)}"${this.#faint()} xml:space="preserve">${escaped(text)}</text>`,
    );
  }

  measureText(/** @type {string} */ text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  drawImage(/** @type {HTMLCanvasElement} */ source, /** @type {number[]} */ ...places) {
    const [sx, sy, sw, sh, x, y, width, height] =
      places.length === 8 ? places : [0, 0, source.width, source.height, ...places];
    const cut = document.createElement("canvas");
    // Whole source pixels, then moved: a cut through a pixel would draw it thinner.
    const [left, top] = [Math.floor(sx), Math.floor(sy)];
    cut.width = Math.max(1, Math.ceil(sx + sw) - left);
    cut.height = Math.max(1, Math.ceil(sy + sh) - top);
    context2d(cut).drawImage(source, -left, -top);
    const [scaleX, scaleY] = [width / sw, height / sh];
    const crisp = this.imageSmoothingEnabled ? "" : ' style="image-rendering:pixelated"';
    this.parts.push(
      `<image x="${n(x - (sx - left) * scaleX)}" y="${n(y - (sy - top) * scaleY)}" width="${n(cut.width * scaleX)}" height="${n(cut.height * scaleY)}" preserveAspectRatio="none"${crisp} href="${cut.toDataURL()}"/>`,
    );
  }

  save() {
    this.saved.push({ open: this.open, pens: this.#pens() });
    this.open = 0;
  }

  restore() {
    this.parts.push("</g>".repeat(this.open));
    const { open, pens } = /** @type {{open: number, pens: object}} */ (this.saved.pop());
    this.open = open;
    Object.assign(this, pens);
  }

  translate(/** @type {number} */ x, /** @type {number} */ y) {
    this.#group(`<g transform="translate(${n(x)} ${n(y)})">`);
  }
  rotate(/** @type {number} */ angle) {
    this.#group(`<g transform="rotate(${n((angle * 180) / Math.PI)})">`);
  }

  /** The whole file. */
  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${n(this.width)}" height="${n(this.height)}" viewBox="0 0 ${n(this.width)} ${n(this.height)}">${this.parts.join("")}${"</g>".repeat(this.open)}</svg>\n`;
  }

  #group(/** @type {string} */ start) {
    this.parts.push(start);
    this.open++;
  }

  #faint() {
    return this.globalAlpha < 1 ? ` opacity="${n(this.globalAlpha)}"` : "";
  }

  #pens() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, imageSmoothingEnabled } =
      this;
    return {
      fillStyle,
      strokeStyle,
      lineWidth,
      globalAlpha,
      font,
      textAlign,
      textBaseline,
      imageSmoothingEnabled,
    };
  }
}

const n = (/** @type {number} */ value) => String(Math.round(value * 100) / 100);

// Characters that XML has no way to hold are left out: a file that does not open helps nobody.
const escaped = (/** @type {string} */ text) =>
  String(text)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "")
    .replace(/[<>&"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/**
 * A canvas sized for the screen's pixels, scaled so that drawings use CSS pixels.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 */
export function prepared(canvas, width, height, ratio = window.devicePixelRatio || 1) {
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = context2d(canvas);
  context.setTransform(1, 0, 0, 1, 0, 0); // whole pixels: of a part of one, something would be left
  context.clearRect(0, 0, w, h);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
