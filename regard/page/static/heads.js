/** The grid of all heads of a text, each its own small picture, named by what it does. */
import { previewHead } from "./head_card.js";
import { byId, findAll, framed, lookUp, make, markStale, targetOf } from "./dom.js";
import { paintThumbnail } from "./draw_thumbnail.js";
import { pinches } from "./gestures.js";
import { SCORES, scoreOf, unitOf, wordsFor } from "./quantities.js";
import { needOfHead } from "./matters.js";
import { isOff, switchHead } from "./changes.js";
import {
  chooseHead,
  colourFor,
  figuresOf,
  get,
  hasTwoRuns,
  set,
  sourceOf,
  sides,
  sideTitle,
  subscribe,
} from "./store.js";
import { themeNow } from "./theme.js";
import { SIZE, onThumbnails, thumbnailsOf } from "./thumbnails.js";

const NAMES = 28; // pixels of the two lines under a thumbnail
const nameOf = (/** @type {number} */ layer, /** @type {number} */ head) => `${layer}/${head}`;

export function startHeads() {
  const sort = byId("sort");
  sort.append(
    make("option", { value: "order", textContent: "layer" }),
    ...SCORES.map((value) => make("option", { value, textContent: wordsFor(value) })),
  );
  sort.onchange = () => set({ sort: /** @type {State["sort"]} */ (sort.value) });
  byId("size").onclick = () => set({ size: get().size === "names" ? "grid" : "names" });
  byId("wide").onclick = () => set({ wide: !get().wide });
  subscribe("run sort size wide", ({ sort: by, size, wide }) => {
    byId("size").textContent = size === "names" ? "Small" : "Names";
    byId("size").setAttribute(
      "aria-label",
      size === "names" ? "Show all heads small, without names" : "Show the heads with their names",
    );
    byId("wide").textContent = wide ? "Back to the map" : "Wide";
    byId("wide").setAttribute("aria-pressed", String(wide));
    sort.value = by;
  });
  new Grid("first", byId("grid"));
  new Grid("second", byId("grid-second"));
  subscribe("compare", () => {
    byId("grid-second").hidden = !hasTwoRuns();
    for (const name of /** @type {const} */ (["first", "second"])) {
      byId(`grid-${name}-title`).hidden = !hasTwoRuns();
      byId(`grid-${name}-title`).textContent = sideTitle(name);
    }
  });
}

/** Heads in the order they are shown. */
export function ordered(/** @type {OpenSource} */ { run, heads }) {
  const { sort } = get();
  const all = run.layers.flatMap(({ heads: names }, layer) => names.map((_, head) => ({ layer, head })));
  if (sort === "order") return all;
  const value = (/** @type {{layer: number, head: number}} */ { layer, head }) =>
    figuresOf(layer, head, heads)?.[sort] ?? -Infinity;
  return all.sort((a, b) => value(b) - value(a) || a.layer - b.layer || a.head - b.head);
}

/**
 * How the heads are laid out: as many beside each other as fit with their names, or small as they are.
 * @returns {Arrangement}
 */
function arrangement(/** @type {Run} */ run, /** @type {number} */ width, /** @type {number} */ height) {
  const { sort, size } = get();
  const widest = Math.max(...run.layers.map(({ heads }) => heads.length));
  const fits = (/** @type {number} */ least) => Math.max(1, Math.floor((width + 7) / (least + 7)));
  const byLayer = sort === "order";
  const labels = byLayer ? 24 : 0; // the layers' numbers at the left
  if (size === "grid") {
    const across = byLayer ? widest : fits(26);
    return {
      small: true,
      byLayer,
      across,
      cell: Math.max(14, Math.min(64, Math.floor((width - labels) / across) - 3)),
    };
  }
  const wraps = !byLayer || widest > fits(44);
  const across = wraps ? fits(76) : widest;
  const widthEach = Math.floor((width - (wraps ? 0 : labels) + 7) / across) - 7;
  // Small enough to be seen all at once where that is possible, so large as there is room otherwise.
  const rows = Math.ceil((wraps ? run.layers.length * widest : run.layers.length * across) / across);
  const heightEach = Math.floor((height + 8 - (wraps ? 0 : 20)) / rows) - 8 - NAMES;
  const cell = heightEach >= 42 ? Math.min(widthEach, heightEach, 170) : Math.min(widthEach, height < 300 ? 56 : 84);
  return { small: false, byLayer: !wraps, across: wraps ? across : widest, cell };
}

/** The grid of one text. */
class Grid {
  /** @param {SideName} side @param {HTMLElement} root */
  constructor(side, root) {
    this.side = side;
    this.root = root;
    /** @type {Map<string, {root: HTMLElement, canvas: HTMLCanvasElement, role: HTMLElement, figure: HTMLElement, need: HTMLElement}>} */
    this.cells = new Map();
    this.arranged = "";
    this.#listen();
    const arrange = framed(() => this.#arrange());
    subscribe("run sort size wide compare view", arrange);
    subscribe("run heads changes effects view", () => {
      this.#fill();
      this.#dim();
      if (get().sort !== "order") arrange();
    });
    subscribe("layer head average compare active", () => this.#mark());
    onThumbnails((painted, layer) => {
      if (painted !== side) return;
      this.#paintLayer(layer);
      this.#dim();
    });
    document.addEventListener("inks", () => this.#repaint());
    new ResizeObserver(arrange).observe(root);
  }

  /** @returns {Source} What this grid shows the heads of; with two heads of one text there is one grid. */
  source() {
    const source = sourceOf(this.side);
    return this.side === "second" && !hasTwoRuns() ? { ...source, run: null } : source;
  }

  #listen() {
    const { root } = this;
    const at = (/** @type {Event} */ event) => /** @type {HTMLElement|null} */ (targetOf(event).closest(".cell"));
    const headOf = (/** @type {HTMLElement} */ { dataset }) => ({
      layer: Number(dataset.layer),
      head: Number(dataset.head),
    });
    const look = (/** @type {HTMLElement|null} */ cell) =>
      previewHead(cell ? { side: this.side, ...headOf(cell) } : null);
    root.addEventListener("pointerover", (event) => event.pointerType !== "touch" && look(at(event)));
    root.addEventListener("pointerleave", () => look(null));
    root.addEventListener("focusin", (event) => targetOf(event).matches(":focus-visible") && look(at(event)));
    root.addEventListener("focusout", () => look(null));
    root.addEventListener("click", (event) => {
      const cell = at(event);
      if (!cell) return;
      if (hasTwoRuns()) set({ active: this.side });
      const { layer, head } = headOf(cell);
      if (get().switching) switchHead(layer, head);
      chooseHead(layer, head);
    });
    root.addEventListener("dblclick", () => set({ wide: false })); // back to the map, with that head
    root.addEventListener("keydown", (event) => this.#moveFocus(event));
    pinches(root, { closer: () => set({ size: "names" }), farther: () => set({ size: "grid" }) });
  }

  #paintLayer(/** @type {number} */ layer) {
    const { run } = this.source();
    const data = thumbnailsOf(this.side, layer);
    if (!data || !run) return;
    const look = { theme: themeNow(), causal: run.causal, exact: run.length <= SIZE, kind: colourFor(run) };
    for (let head = 0; head < data.heads; head++) {
      const cell = this.cells.get(nameOf(layer, head));
      if (cell) paintThumbnail(cell.canvas, data, head, look);
    }
  }

  /** Pictures and names of the text before it grew are dimmed until the new ones come. */
  #dim() {
    const { run, heads } = this.source();
    for (const { root } of this.cells.values()) {
      const [layer, head] = [Number(root.dataset.layer), Number(root.dataset.head)];
      const parts = [thumbnailsOf(this.side, layer), figuresOf(layer, head, heads)];
      markStale(
        root,
        parts.some((one) => one && one.run !== run?.id),
      );
    }
  }

  #repaint() {
    this.source().run?.layers.forEach((_, layer) => this.#paintLayer(layer));
  }

  #arrange() {
    const source = this.source();
    const { run } = source;
    const { wide } = get();
    const grid = this.root;
    if (!run) {
      this.arranged = "";
      return grid.replaceChildren();
    }
    const width = grid.clientWidth - 8;
    if (width < 40) return;
    // On a narrow page the grid is as tall as its heads, up to an end: that is the room there is.
    const room = Number.parseFloat(getComputedStyle(grid).maxHeight) || grid.clientHeight;
    const how = arrangement(run, width, room - 8);
    const heads = ordered({ ...source, run });
    grid.classList.toggle("small", how.small);
    grid.classList.toggle("byLayer", how.byLayer);
    grid.style.setProperty("--cell", `${how.cell}px`);
    grid.style.setProperty("--across", String(how.across));
    grid.style.gridTemplateColumns = `${how.byLayer ? "max-content " : ""}repeat(${how.across}, ${how.small ? `${how.cell}px` : `minmax(${how.cell}px, ${wide ? "132px" : "1fr"})`})`;
    // Cells that stay where they are stay in the page: of one that is put anew a click would be lost.
    const names = run.layers.map(({ index, name, heads: all }) => [index, name, all]);
    const key = JSON.stringify([names, how.byLayer, how.across, heads]);
    if (key === this.arranged) return this.#fill();
    this.arranged = key;
    const focused = grid.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
    grid.replaceChildren(this.#laidOut(run, heads, how));
    focused?.focus(); // cells are only put elsewhere
    this.#fill();
    this.#repaint();
    this.#mark();
  }

  /**
   * Numbers at the edges where layers are rows, and the cells.
   * @param {Run} run @param {{layer: number, head: number}[]} heads @param {Arrangement} how
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
    for (const { layer, head } of heads) {
      if (how.byLayer && layer !== before) {
        const { index, name } = run.layers[layer];
        const label = edge("layer", String(index), `layer ${index}: ${name}`);
        label.style.gridColumn = "1";
        fragment.append(label);
      }
      before = layer;
      fragment.append(this.#cell(layer, head).root);
    }
    for (const name of [...this.cells.keys()])
      if (!heads.some(({ layer, head }) => nameOf(layer, head) === name)) this.cells.delete(name);
    return fragment;
  }

  #cell(/** @type {number} */ layer, /** @type {number} */ head) {
    const name = nameOf(layer, head);
    const known = this.cells.get(name);
    if (known) return known;
    const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const role = make("b");
    const figure = make("span");
    const need = make("i", { className: "need", "aria-hidden": "true" });
    const root = make(
      "button",
      { className: "cell", type: "button", dataset: { layer, head } },
      canvas,
      need,
      role,
      figure,
    );
    const cell = { root, canvas, role, figure, need };
    this.cells.set(name, cell);
    return cell;
  }

  /** Names and figures, as far as they have come. */
  #fill() {
    const { run, heads } = this.source();
    const { sort } = get();
    if (!run) return;
    const byLayer = this.root.classList.contains("byLayer");
    for (const { root, role, figure, need } of this.cells.values()) {
      const [layer, head] = [Number(root.dataset.layer), Number(root.dataset.head)];
      if (!run.layers[layer] || head >= run.layers[layer].heads.length) continue;
      const figures = figuresOf(layer, head, heads);
      const { index, heads: names } = run.layers[layer];
      const label = `Layer ${index} · Head ${names[head]}`;
      const word = sort === "order" ? "" : wordsFor(sort);
      const score = sort === "order" ? null : figures?.[sort];
      const value = word && `${scoreOf(sort, score)} ${unitOf(sort)}`.trimEnd();
      const said = get().view === "opening" && byLayer ? `${index}·${names[head]} ` : ""; // there the edges are hidden
      role.textContent = `${said}${figures?.role ?? "…"}`;
      const place = `${index}·${names[head]}`;
      figure.textContent = word ? `${place}  ${value}` : place;
      figure.hidden = byLayer; // the grid's edges say it
      const off = isOff(layer, head) && run !== get().plain;
      root.classList.toggle("off", off);
      const needed = get().compare === "text" && this.side === "second" ? null : needOfHead(layer, head);
      need.style.width = `${Math.round(100 * Math.abs(needed?.part ?? 0))}%`;
      need.classList.toggle("rises", (needed?.part ?? 0) > 0);
      const first = `${label}${figures ? `: ${figures.role}` : ""}${off ? ", switched off" : ""}`;
      root.title = [first, figures?.evidence, needed?.words].filter(Boolean).join("\n");
      const words = [label, figures?.role, word && `${word} ${value}`, off && "switched off", needed?.words];
      root.setAttribute("aria-label", words.filter(Boolean).join(", "));
    }
  }

  /** Marks the chosen head, those of a chosen mean, and the head that is compared with it. */
  #mark() {
    const now = get();
    const active = sourceOf(hasTwoRuns() ? this.side : undefined);
    const beside = now.compare === "head" ? sourceOf(sides().find((side) => side !== active.side)) : null;
    const within = (/** @type {HeadName|null} */ source, /** @type {number} */ layer, /** @type {number} */ head) =>
      source != null &&
      (source.average === "model" || (source.layer === layer && (source.average === "layer" || source.head === head)));
    for (const { root } of this.cells.values()) {
      const [layer, head] = [Number(root.dataset.layer), Number(root.dataset.head)];
      const chosen = within(active, layer, head);
      root.setAttribute("aria-pressed", String(chosen));
      root.classList.toggle("other", within(beside, layer, head) && !chosen);
      root.tabIndex = layer === active.layer && head === active.head ? 0 : -1;
    }
  }

  /** Arrows move within the grid as it is seen. */
  #moveFocus(/** @type {KeyboardEvent} */ event) {
    const cell = /** @type {HTMLElement|null} */ (targetOf(event).closest(".cell"));
    if (!cell || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = findAll(this.root, ".cell");
    const across = all.filter((other) => other.offsetTop === all[0].offsetTop).length;
    const by = lookUp({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }, event.key);
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(all.length - 1, all.indexOf(cell) + by))].focus();
  }
}

/** Numbers across the top, where all layers recorded the same heads. */
const headNames = (/** @type {Run} */ run) =>
  run.layers.every(({ heads }) => heads.join() === run.layers[0].heads.join()) ? run.layers[0].heads : [];
