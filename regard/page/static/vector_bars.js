/** Vectors as strips of bars, of which one number is followed through all of them. */
import { lookUp, make } from "./dom.js";
import { paintVector } from "./draw_bars.js";
import { plural, signed } from "./format.js";
import { set } from "./store.js";
import { prepared } from "./canvas.js";
import { inks } from "./theme.js";

const HEIGHT = 24; // pixels of a vector’s bars

export const greatest = (/** @type {number[][]} */ vectors) =>
  Math.max(1e-9, ...vectors.map((vector) => vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0)));

/** Some strips, and words about them, that show the same number. */
export class VectorBars {
  /** @param {() => void} chosen called when another number is followed */
  constructor(chosen) {
    this.chosen = chosen;
    /** The number that is followed, under the pointer or where the arrows stand. @type {number|null} */
    this.dimension = null;
    /** @type {(() => void)[]} */
    this.parts = [];
  }

  clear() {
    this.parts = [];
    this.dimension = null;
  }

  draw() {
    this.parts.forEach((draw) => draw());
  }

  /** The number that is followed through a vector; its greatest, where none is. */
  followed(/** @type {number[]} */ vector) {
    if (this.dimension != null && this.dimension < vector.length) return this.dimension;
    return vector.reduce((best, value, d) => (Math.abs(value) > Math.abs(vector[best]) ? d : best), 0);
  }

  /** Words that are written anew with the vectors. */
  words(/** @type {() => string} */ text) {
    const root = make("p");
    this.parts.push(() => {
      root.textContent = text();
    });
    return root;
  }

  /**
   * A vector as bars, with the number that is followed written out.
   * @param {{name: () => string, sign: string, values: () => number[], most: () => number}} of
   */
  bars({ name, sign, values, most }) {
    const figure = make("div", { className: "figure", dataset: { sign } });
    const canvas = make("canvas", { className: "vector", tabIndex: 0, role: "img" });
    const root = make("div", {}, figure, canvas);
    this.parts.push(() => {
      const width = Math.max(60, root.clientWidth);
      const numbers = values();
      const at = this.dimension != null && this.dimension < numbers.length ? this.dimension : null;
      const surface = prepared(canvas, width, HEIGHT);
      paintVector(surface, { values: numbers, width, height: HEIGHT, most: most(), inks: inks(), chosen: at });
      const value = at == null ? "" : `  ${sign}[${at}] = ${signed(numbers[at], 4)}`;
      figure.textContent = `${name()}${value}`;
      figure.title =
        at == null ? `${plural(numbers.length, "number")}, greatest ${signed(greatest([numbers]), 3)}` : "";
      canvas.setAttribute(
        "aria-label",
        `${name()}: ${plural(numbers.length, "number")}${value}. Left and right read them.`,
      );
    });
    this.#listen(canvas, values);
    return root;
  }

  #follow(/** @type {number|null} */ d) {
    if (d === this.dimension) return;
    this.dimension = d;
    this.draw();
    this.chosen();
  }

  #listen(/** @type {HTMLCanvasElement} */ canvas, /** @type {() => number[]} */ values) {
    const within = (/** @type {number} */ d) => Math.max(0, Math.min(values().length - 1, d));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.#follow(within(Math.floor(((event.clientX - box.left) / box.width) * values().length)));
    });
    canvas.addEventListener("pointerleave", () => this.#follow(null));
    canvas.addEventListener("blur", () => this.#follow(null));
    canvas.addEventListener("keydown", (event) => {
      const by = lookUp({ ArrowLeft: -1, ArrowRight: 1 }, event.key);
      if (!by || event.shiftKey) return;
      event.preventDefault();
      event.stopPropagation();
      this.#follow(within(this.dimension == null ? 0 : this.dimension + by));
      set({ spoken: canvas.ariaLabel ?? "" });
    });
  }
}
