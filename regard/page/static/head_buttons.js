/** The grid of few heads: a button for each, with its small picture. */
import { findAll, lookUp, make, markStale, targetOf } from "./dom.js";
import { paintThumbnail } from "./draw_thumbnail.js";
import { headNames, isOffIn, isStale, marksOf, needIn, pictureStyle, wordsOfHead } from "./heads_shown.js";
import { get, set } from "./store.js";
import { thumbnailsOf } from "./thumbnails.js";

const nameOf = (/** @type {HeadPlace} */ { layer, head }) => `${layer}/${head}`;
const placeIn = (/** @type {HTMLElement} */ { dataset }) => ({
  layer: Number(dataset.layer),
  head: Number(dataset.head),
});

export class HeadButtons {
  /** @param {SideName} side @param {HTMLElement} root */
  constructor(side, root) {
    this.side = side;
    this.root = root;
    /** @type {Map<string, {root: HTMLElement, canvas: HTMLCanvasElement, role: HTMLElement, figure: HTMLElement, need: HTMLElement}>} */
    this.cells = new Map();
    this.arranged = "";
    /** @type {OpenSource|null} */
    this.source = null;
  }

  /** @param {OpenSource} source @param {HeadPlace[]} heads @param {Arrangement} how */
  arrange(source, heads, how) {
    const { run } = source;
    const grid = this.root;
    this.source = source;
    grid.classList.toggle("small", how.small);
    grid.classList.toggle("byLayer", how.byLayer);
    grid.style.setProperty("--cell", `${how.cell}px`);
    grid.style.setProperty("--across", String(how.across));
    grid.style.gridTemplateColumns = `${how.byLayer ? "max-content " : ""}repeat(${how.across}, ${how.small ? `${how.cell}px` : `minmax(${how.cell}px, ${get().wide ? "132px" : "1fr"})`})`;
    // Cells that stay where they are stay in the page: of one that is put anew a click would be lost.
    const names = run.layers.map(({ index, name, heads: all }) => [index, name, all]);
    const key = JSON.stringify([names, how.byLayer, how.across, heads]);
    if (key === this.arranged) return this.fill(source);
    this.arranged = key;
    const focused = grid.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
    grid.replaceChildren(this.#laidOut(run, heads, how));
    focused?.focus(); // cells are only put elsewhere
    this.fill(source);
    this.paint();
    this.mark();
  }

  /**
   * Numbers at the edges where layers are rows, and the cells.
   * @param {Run} run @param {HeadPlace[]} heads @param {Arrangement} how
   */
  #laidOut(run, heads, how) {
    const fragment = document.createDocumentFragment();
    const edge = (/** @type {string} */ className, /** @type {string} */ textContent, title = "") =>
      make("div", { className, textContent, title, "aria-hidden": "true" }); // each cell is named in full
    if (how.byLayer) {
      fragment.append(edge("layer", "", "layers down, heads across"));
      for (let head = 0; head < how.across; head++)
        fragment.append(edge("number", String(headNames(run)[head] ?? head)));
    }
    let before = -1;
    for (const place of heads) {
      if (how.byLayer && place.layer !== before) {
        const { index, name } = run.layers[place.layer];
        const label = edge("layer", String(index), `layer ${index}: ${name}`);
        label.style.gridColumn = "1";
        fragment.append(label);
      }
      before = place.layer;
      fragment.append(this.#cell(place).root);
    }
    const kept = new Set(heads.map(nameOf));
    for (const name of [...this.cells.keys()]) if (!kept.has(name)) this.cells.delete(name);
    return fragment;
  }

  #cell(/** @type {HeadPlace} */ place) {
    const known = this.cells.get(nameOf(place));
    if (known) return known;
    const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const role = make("b");
    const figure = make("span");
    const need = make("i", { className: "need", "aria-hidden": "true" });
    const root = make("button", { className: "cell", type: "button", dataset: place }, canvas, need, role, figure);
    const cell = { root, canvas, role, figure, need };
    this.cells.set(nameOf(place), cell);
    return cell;
  }

  /** Paints the pictures of a layer, or of all. */
  paint(/** @type {number|null} */ only = null) {
    if (!this.source) return;
    const style = pictureStyle(this.source.run);
    for (const { root, canvas } of this.cells.values()) {
      const { layer, head } = placeIn(root);
      const data = (only ?? layer) === layer && thumbnailsOf(this.side, layer);
      if (data && head < data.heads) paintThumbnail(canvas, data, head, { ...style, shows: data.shows });
    }
    this.#dim();
  }

  /** Pictures and names of the text before it grew are dimmed until the new ones come. */
  #dim() {
    const { source } = this;
    if (source) for (const { root } of this.cells.values()) markStale(root, isStale(source, placeIn(root)));
  }

  /** Names and figures, as far as they have come. */
  fill(/** @type {OpenSource} */ source) {
    this.source = source;
    const { run } = source;
    const byLayer = this.root.classList.contains("byLayer");
    for (const { root, role, figure, need } of this.cells.values()) {
      const place = placeIn(root);
      if (!run.layers[place.layer] || place.head >= run.layers[place.layer].heads.length) continue;
      const needed = needIn(source, place);
      const words = wordsOfHead(source, place, needed);
      const said = get().view === "opening" && byLayer ? `${words.short} ` : ""; // there the edges are hidden
      role.textContent = `${said}${words.role}`;
      figure.textContent = words.figure;
      figure.hidden = byLayer; // the grid's edges say it
      root.classList.toggle("off", isOffIn(source, place));
      need.style.width = `${Math.round(100 * Math.abs(needed?.part ?? 0))}%`;
      need.classList.toggle("rises", (needed?.part ?? 0) > 0);
      root.title = words.title;
      root.setAttribute("aria-label", words.label);
    }
    this.#dim();
  }

  /** Marks the chosen head, those of a chosen mean, and the head that is compared with it. */
  mark() {
    const marks = marksOf(this.side);
    for (const { root } of this.cells.values()) {
      const place = placeIn(root);
      const mark = marks.of(place);
      root.setAttribute("aria-pressed", String(mark === "chosen"));
      root.classList.toggle("other", mark === "other");
      root.tabIndex = place.layer === marks.active.layer && place.head === marks.active.head ? 0 : -1;
    }
    // One of them is reached by Tab, also where the chosen one is left out.
    const all = [...this.cells.values()];
    if (all.length && !all.some(({ root }) => root.tabIndex === 0)) all[0].root.tabIndex = 0;
  }

  /** The head that an event is on. @returns {HeadPlace|null} */
  headAt(/** @type {Event} */ event) {
    const cell = /** @type {HTMLElement|null} */ (targetOf(event).closest(".cell"));
    return cell && placeIn(cell);
  }

  /** Arrows move the focus within the grid as it is seen; whether a key did. */
  move(/** @type {KeyboardEvent} */ event) {
    const cell = /** @type {HTMLElement|null} */ (targetOf(event).closest(".cell"));
    if (!cell) return false;
    const all = findAll(this.root, ".cell");
    const across = all.filter((other) => other.offsetTop === all[0].offsetTop).length;
    const by = lookUp({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }, event.key);
    if (!by) return false;
    all[Math.max(0, Math.min(all.length - 1, all.indexOf(cell) + by))].focus();
    return true;
  }

  closer() {
    set({ size: "names" });
  }

  farther() {
    set({ size: "grid" });
  }

  /** Takes the grid off the page. */
  end() {
    this.root.replaceChildren();
  }
}
