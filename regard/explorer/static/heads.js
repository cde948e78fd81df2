/** The grid of all heads, each its own small picture, named by what it does. */
import * as api from "./api.js";
import { byId, framed, make } from "./dom.js";
import { paintThumbnail } from "./draw_thumbnail.js";
import { signed } from "./format.js";
import { heard } from "./quiet.js";
import { afterMap } from "./session.js";
import { chooseHead, figuresOf, get, headActive, set, subscribe } from "./store.js";
import { themeNow } from "./theme.js";

const NAMES = 28; // pixels of the two lines under a thumbnail
const SIZE = 64; // pixels of a thumbnail, at most
/** The readouts that heads are sorted by: name, words, unit. */
export const READOUTS = [
  ["previous_token", "previous token", ""],
  ["first_token", "first token", ""],
  ["same_token", "same token", ""],
  ["induction", "induction", ""],
  ["duplicate_token", "duplicate token", ""],
  ["entropy", "entropy", "nats"],
  ["distance", "distance", "tokens"],
];

/** @type {Map<number, any>} thumbnails of a layer, by its place */
const pictures = new Map();
/** @type {Map<string, {root: HTMLElement, canvas: HTMLCanvasElement, role: HTMLElement, figure: HTMLElement}>} */
const cells = new Map();
let arranged = "";
let loaded = "";
let preview = null;
const nameOf = (layer, head) => `${layer}/${head}`;

export function startHeads() {
  const sort = byId("sort");
  sort.append(
    make("option", { value: "order", textContent: "layer" }),
    ...READOUTS.map(([value, textContent]) => make("option", { value, textContent })),
  );
  sort.onchange = () => set({ sort: sort.value });
  byId("size").onclick = () => set({ size: get().size === "names" ? "grid" : "names" });
  byId("wide").onclick = () => set({ wide: !get().wide });
  const grid = byId("grid");
  const at = (event) => event.target.closest?.(".cell");
  const look = (cell) => {
    preview = cell ? { layer: Number(cell.dataset.layer), head: Number(cell.dataset.head) } : null;
    showCard();
  };
  grid.addEventListener("pointerover", (event) => look(at(event)));
  grid.addEventListener("pointerleave", () => look(null));
  grid.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && look(at(event)));
  grid.addEventListener("focusout", () => look(null));
  grid.addEventListener("click", (event) => {
    const cell = at(event);
    if (cell) chooseHead(Number(cell.dataset.layer), Number(cell.dataset.head));
  });
  grid.addEventListener("dblclick", () => set({ wide: false })); // back to the map, with that head
  grid.addEventListener("keydown", moveFocus);
  const arrange = framed(arrangeGrid);
  subscribe("run", load);
  subscribe("run sort size wide", arrange);
  subscribe("heads", () => {
    fill();
    if (get().sort !== "order") arrange();
  });
  subscribe("layer head other compare active", mark);
  document.addEventListener("inks", repaint);
  new ResizeObserver(arrange).observe(grid);
}

async function load({ run, grown }) {
  if (!run) return;
  if (!grown) pictures.clear();
  loaded = run.id;
  await afterMap(run);
  // The chosen head's layer first, then from the top; one at a time, so that the map never waits long.
  const order = run.layers
    .map((_, layer) => layer)
    .sort((a, b) => Number(b === get().layer) - Number(a === get().layer) || a - b);
  for (const layer of order) {
    const data = await heard(api.thumbnails(run.id, layer, SIZE));
    if (loaded !== run.id) return;
    if (!data) continue;
    pictures.set(layer, data);
    paintLayer(layer);
  }
  document.dispatchEvent(new CustomEvent("thumbnails"));
}

export const thumbnailsOf = (layer) => pictures.get(layer);

const look = () => ({ theme: themeNow(), causal: get().run.causal, exact: get().run.length <= SIZE });

function paintLayer(layer) {
  const data = pictures.get(layer);
  if (!data || !get().run) return;
  for (let head = 0; head < data.heads; head++) {
    const cell = cells.get(nameOf(layer, head));
    if (cell) paintThumbnail(cell.canvas, data, head, look());
  }
  if (layer === shownHead()?.layer) showCard();
}

function repaint() {
  for (const layer of pictures.keys()) paintLayer(layer);
}

/** Heads in the order they are shown. */
export function ordered() {
  const { run, sort } = get();
  const all = run.layers.flatMap(({ heads }, layer) => heads.map((_, head) => ({ layer, head })));
  if (sort === "order") return all;
  const value = ({ layer, head }) => figuresOf(layer, head)?.[sort] ?? -Infinity;
  return all.sort((a, b) => value(b) - value(a) || a.layer - b.layer || a.head - b.head);
}

/** How the heads are put: as many beside each other as fit with their names, or small as they are. */
export function arrangement(width, height) {
  const { run, sort, size } = get();
  const widest = Math.max(...run.layers.map(({ heads }) => heads.length));
  const fits = (least) => Math.max(1, Math.floor((width + 7) / (least + 7)));
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
  const cell = heightEach >= 42 ? Math.min(widthEach, heightEach, 170) : Math.min(widthEach, 84);
  return { small: false, byLayer: !wraps, across: wraps ? across : widest, cell };
}

function arrangeGrid() {
  const { run, sort, size, wide } = get();
  byId("size").textContent = size === "names" ? "Small" : "Names";
  byId("size").setAttribute(
    "aria-label",
    size === "names" ? "Show all heads small, without names" : "Show the heads with their names",
  );
  byId("wide").textContent = wide ? "Back to the map" : "Wide";
  byId("wide").setAttribute("aria-pressed", String(wide));
  byId("sort").value = sort;
  const grid = byId("grid");
  if (!run) return grid.replaceChildren();
  const width = grid.clientWidth - 8;
  if (width < 40) return;
  const how = arrangement(width, grid.clientHeight - 8);
  const heads = ordered();
  const key = [
    run.layers.length,
    sort,
    JSON.stringify(how),
    heads.map(({ layer, head }) => nameOf(layer, head)).join(),
  ].join();
  if (key === arranged) return fill();
  arranged = key;
  grid.classList.toggle("small", how.small);
  grid.classList.toggle("byLayer", how.byLayer);
  grid.style.setProperty("--cell", `${how.cell}px`);
  grid.style.gridTemplateColumns = `${how.byLayer ? "max-content " : ""}repeat(${how.across}, ${how.small ? `${how.cell}px` : `minmax(${how.cell}px, ${wide ? "132px" : "1fr"})`})`;
  const fragment = document.createDocumentFragment();
  if (how.byLayer) {
    fragment.append(make("div", { className: "layer", title: "layers down, heads across" }));
    for (let head = 0; head < how.across; head++)
      fragment.append(
        make("div", { className: "number", textContent: String(headNames(run)[head] ?? head) }),
      );
  }
  let before = -1;
  for (const { layer, head } of heads) {
    if (how.byLayer && layer !== before) {
      const label = make("div", {
        className: "layer",
        textContent: String(run.layers[layer].index),
        title: `layer ${run.layers[layer].index}: ${run.layers[layer].name}`,
      });
      label.style.gridColumn = "1";
      fragment.append(label);
    }
    before = layer;
    fragment.append(cellOf(layer, head).root);
  }
  for (const name of [...cells.keys()])
    if (!heads.some(({ layer, head }) => nameOf(layer, head) === name)) cells.delete(name);
  grid.replaceChildren(fragment);
  fill();
  repaint();
  mark();
}

function cellOf(layer, head) {
  const name = nameOf(layer, head);
  if (!cells.has(name)) {
    const canvas = make("canvas", { width: 1, height: 1 });
    const role = make("b");
    const figure = make("span");
    const root = make("button", { className: "cell", type: "button" }, canvas, role, figure);
    root.dataset.layer = String(layer);
    root.dataset.head = String(head);
    cells.set(name, { root, canvas, role, figure });
  }
  return cells.get(name);
}

/** Names and figures, as far as they have come. */
function fill() {
  const { run, sort } = get();
  if (!run) return;
  const byLayer = byId("grid").classList.contains("byLayer");
  for (const { root, role, figure } of cells.values()) {
    const [layer, head] = [Number(root.dataset.layer), Number(root.dataset.head)];
    if (!run.layers[layer] || head >= run.layers[layer].heads.length) continue;
    const figures = figuresOf(layer, head);
    const label = title(run, layer, head);
    const [, word, unit] = READOUTS.find(([name]) => name === sort) ?? [];
    const value = word
      ? `${figures?.[sort] == null ? "–" : signed(figures[sort], sort === "distance" ? 1 : 2)}${unit && ` ${unit}`}`
      : "";
    role.textContent = figures?.name ?? "…";
    const place = `${run.layers[layer].index}·${run.layers[layer].heads[head]}`;
    figure.textContent = word ? `${place}  ${value}` : place;
    figure.hidden = byLayer; // the grid's edges say it
    root.title = `${label}${figures ? `: ${figures.name}` : ""}`;
    root.setAttribute(
      "aria-label",
      [label, figures?.name, word && `${word} ${value}`].filter(Boolean).join(", "),
    );
  }
  showCard();
}

/** Numbers across the top, where all layers recorded the same heads. */
const headNames = (run) =>
  run.layers.every(({ heads }) => heads.join() === run.layers[0].heads.join()) ? run.layers[0].heads : [];

const title = (run, layer, head) =>
  `Layer ${run.layers[layer].index} · Head ${run.layers[layer].heads[head]}`;

function mark() {
  const now = get();
  const active = headActive(now);
  const beside = now.compare === "head" ? (now.active === "second" ? now : now.other) : null;
  for (const { root } of cells.values()) {
    const is = (name) =>
      name != null && Number(root.dataset.layer) === name.layer && Number(root.dataset.head) === name.head;
    root.setAttribute("aria-pressed", String(is(active)));
    root.classList.toggle("other", is(beside) && !is(active));
    root.tabIndex = is(active) ? 0 : -1;
  }
  showCard();
}

const shownHead = () => preview ?? headActive();

/** The head under the pointer, larger, with its scores; else the chosen one. */
function showCard() {
  const { run } = get();
  const card = byId("card");
  card.hidden = !run;
  if (!run) return;
  const { layer, head } = shownHead();
  if (!run.layers[layer] || head >= run.layers[layer].heads.length) return;
  const figures = figuresOf(layer, head);
  const canvas = card.querySelector("canvas") ?? make("canvas", { role: "img" });
  const data = pictures.get(layer);
  canvas.setAttribute("aria-label", `Pattern of ${title(run, layer, head)}`);
  if (data) paintThumbnail(canvas, data, head, look());
  const pairs = make("dl", { className: "pairs" });
  for (const [name, word, unit] of READOUTS) {
    const value = figures?.[name];
    pairs.append(
      make("dt", { textContent: unit ? `${word}, ${unit}` : word }),
      make("dd", {
        textContent: figures ? (value == null ? "–" : `${signed(value, name === "distance" ? 1 : 3)}`) : "…",
        title: value == null && figures ? "does not apply to this text: nothing in it repeats" : "",
      }),
    );
  }
  card.replaceChildren(
    canvas,
    make(
      "div",
      {},
      make("strong", { textContent: `${title(run, layer, head)}${figures ? `: ${figures.name}` : ""}` }),
      make("p", { className: "note", textContent: figures?.meaning ?? "" }),
    ),
    pairs,
  );
}

/** Arrows move within the grid as it is seen. */
function moveFocus(event) {
  const cell = event.target.closest?.(".cell");
  if (!cell || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...byId("grid").querySelectorAll(".cell")];
  const across = all.filter((other) => other.offsetTop === all[0].offsetTop).length;
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  all[Math.max(0, Math.min(all.length - 1, all.indexOf(cell) + by))].focus();
}
