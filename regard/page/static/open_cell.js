/** The cell of a map that opens when it is large enough, and the steps that are written into it. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { settled } from "./dom.js";
import { OPENS } from "./draw_cell.js";
import { placeOf } from "./store.js";
import { whole } from "./zoom.js";

export class OpenCells {
  /** @param {SideName} side @param {() => void} onAnswer called with each answer */
  constructor(side, onAnswer) {
    this.side = side;
    this.onAnswer = onAnswer;
    this.name = "";
    /** @type {OpenCell|null} */
    this.cell = null;
    this.ask = settled(60, () => this.#load());
    /** @type {{run: Run, source: Source, at: {query: number, key: number}, name: string}|null} */
    this.wanted = null;
  }

  /**
   * What is to be written into the map, as far as it is known: the cell at the middle of the window.
   * @param {Source} source @param {number} side pixels of the map @param {Zoom|null} zoom
   */
  now(source, side, zoom) {
    const { run } = source;
    const { queries, keys, span } = zoom ?? whole(run?.length ?? 1);
    if (!run || source.average !== "head" || side / span < OPENS) return null;
    const at = (/** @type {number} */ first) => Math.min(run.length - 1, Math.floor(first + span / 2));
    const place = { query: at(queries), key: at(keys) };
    const name = [run.id, ...placeOf(source), place.query, place.key].join("/");
    if (this.name === name) return this.cell;
    if (this.wanted?.name !== name) {
      this.wanted = { run, source, at: place, name };
      this.ask();
    }
    return null;
  }

  async #load() {
    if (!this.wanted || this.wanted.name === this.name) return;
    const { run, source, at, name } = this.wanted;
    const options = { count: 1, picked: at.key };
    const steps = await awaitAnswer(api.steps(run.id, placeOf(source), at.query, options, `open-cell-${this.side}`));
    const key = steps?.picked ?? steps?.keys.find(({ position }) => position === at.key);
    if (!steps || !key || this.wanted?.name !== name) return;
    this.name = name;
    this.cell = { at, key, query: steps.query, scale: steps.scale, logsumexp: steps.logsumexp };
    this.onAnswer();
  }
}
