/** Above a map: which layer and head it is of, or which mean, and what the head does. */
import { differenceChoice } from "./difference.js";
import { fillSelect, make, markStale } from "./dom.js";
import { meanOf } from "./format.js";
import { activeSide, change, clamp, figuresOf, get, openSourceOf, sideTitle, sourceOf, subscribe } from "./store.js";

export class MapTitle {
  /** @param {SideName} side @param {HTMLElement} column */
  constructor(side, column) {
    this.side = side;
    this.column = column;
    const onRight = side === "second" ? " on the right" : "";
    this.layerSelect = make("select", { "aria-label": `Layer${onRight}` });
    this.headSelect = make("select", { "aria-label": `Head${onRight}` });
    this.name = make("span", { className: "side-name" });
    this.chip = make("span", { className: "chip" });
    this.meaning = make("span", { className: "about" });
    this.stale = make("span", { className: "stale", textContent: "drawing …", hidden: true });
    const choice = side === "second" ? differenceChoice() : null;
    this.root = make(
      "div",
      { className: "title" },
      this.name,
      choice,
      make("label", {}, "Layer ", this.layerSelect),
      make("label", {}, "Head ", this.headSelect),
      this.chip,
      this.meaning,
      this.stale,
    );
    this.#listen();
    subscribe("heads layer head average compare active run", () => this.#show());
  }

  #listen() {
    this.layerSelect.onchange = () => {
      const { value } = this.layerSelect;
      if (value === "mean") return change({ average: "model" }, this.side);
      const { run, head, average } = openSourceOf(this.side);
      const layer = Number(value);
      const still = average === "head" ? "head" : "layer";
      change({ layer, head: clamp(head, run.layers[layer].heads.length), average: still }, this.side);
    };
    this.headSelect.onchange = () => {
      const { value } = this.headSelect;
      change(value === "mean" ? { average: "layer" } : { head: Number(value), average: "head" }, this.side);
    };
  }

  #show() {
    const source = sourceOf(this.side);
    const { run, layer, head, average } = source;
    this.root.hidden = !run;
    if (!run) return;
    /** @type {[value: string, text: string, title: string][]} */
    const layers = run.layers.map(({ index, name }, at) => [String(at), String(index), name]);
    /** @type {[value: string, text: string, title: string][]} */
    const heads = run.layers[layer].heads.map((name, at) => [String(at), String(name), ""]);
    fillSelect(
      this.layerSelect,
      [...layers, ["mean", "all", "the mean over all layers"]],
      average === "model" ? "mean" : layer,
    );
    fillSelect(
      this.headSelect,
      [...heads, ["mean", "mean", "the mean over the heads"]],
      average === "head" ? head : "mean",
    );
    this.headSelect.disabled = average === "model";
    const figures = figuresOf(layer, head, source.heads);
    this.chip.hidden = average === "head" && !figures;
    this.chip.textContent = average === "head" ? (figures?.role ?? "") : "mean";
    this.meaning.textContent = average === "head" ? (figures?.meaning ?? "") : `the mean of ${meanOf(run, source)}`;
    this.meaning.title = this.meaning.textContent;
    this.chip.title = (average === "head" && figures?.evidence) || "";
    for (const one of [this.chip, this.meaning])
      markStale(one, average === "head" && figures && figures.run !== run.id);
    this.name.hidden = get().compare === "off" || (get().compare === "change" && this.side === "second");
    this.name.textContent = sideTitle(this.side);
    this.column.classList.toggle("active", activeSide() === this.side);
  }
}
