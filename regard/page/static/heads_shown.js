/** What both grids of heads share, buttons and canvas: which heads, in which order and arrangement, what is said of each. */
import { isOff, switchHead } from "./changes.js";
import { previewHead } from "./head_card.js";
import { needOfHead } from "./matters.js";
import { scoreOf, unitOf, wordsFor } from "./quantities.js";
import { chooseHead, colourFor, figuresOf, get, hasTwoRuns, headCount, isMany, set, sides, sourceOf } from "./store.js";
import { themeNow } from "./theme.js";
import { SIZE, areCurrent, thumbnailsOf } from "./thumbnails.js";

export const NAMES = 28; // pixels of the two lines under a thumbnail
const LABELS = 24; // pixels of the layers' numbers at the left
export const MARGIN = 20; // the same on the canvas
const LEAST = 4; // pixels of the smallest cell: less is no picture

/** Whether the names of all heads of a text have come. */
const areNamed = (/** @type {OpenSource} */ { run, heads }) => run.layers.every((_, layer) => heads.has(layer));

/**
 * The role whose heads alone are shown, or "" for all: nothing is left out before every head has its name, nor
 * in the opening, where the filter is not seen.
 */
const filterOf = (/** @type {OpenSource} */ source) => (get().view === "panel" && areNamed(source) ? get().role : "");

/** The sources of the grids that are seen: two heads of one text share a grid. @returns {OpenSource[]} */
const grids = () =>
  /** @type {OpenSource[]} */ (
    sides()
      .slice(0, hasTwoRuns() ? 2 : 1)
      .map((side) => sourceOf(side))
      .filter(({ run }) => run)
  );

/**
 * How many heads have each role, the most frequent first; null before all are named.
 * @returns {[role: string, heads: number][]|null}
 */
export function roleCounts() {
  const all = grids();
  if (!all.length || !all.every(areNamed)) return null;
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { heads } of all)
    for (const { role } of [...heads.values()].flat()) counts.set(role, (counts.get(role) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}

/** How many heads the grids have. */
export const shownCount = () => grids().reduce((sum, { run }) => sum + headCount(run), 0);

/** Heads in the order they are shown. */
export function ordered(/** @type {OpenSource} */ source) {
  const { run, heads } = source;
  const { sort } = get();
  const role = filterOf(source);
  const all = run.layers
    .flatMap(({ heads: names }, layer) => names.map((_, head) => ({ layer, head })))
    .filter(({ layer, head }) => !role || figuresOf(layer, head, heads)?.role === role);
  if (sort === "order") return all;
  const value = (/** @type {HeadPlace} */ { layer, head }) => figuresOf(layer, head, heads)?.[sort] ?? -Infinity;
  const values = new Map(all.map((place) => [place, value(place)]));
  const of = (/** @type {HeadPlace} */ place) => values.get(place) ?? 0;
  return all.sort((a, b) => of(b) - of(a) || a.layer - b.layer || a.head - b.head);
}

/**
 * How the heads are laid out: as many beside each other as fit with their names, or small as they are.
 * @param {OpenSource} source @param {number} count heads that are shown
 * @param {number} width @param {number} height
 * @returns {Arrangement}
 */
export function arrangement(source, count, width, height) {
  const { sort, size } = get();
  const { run } = source;
  const widest = Math.max(...run.layers.map(({ heads }) => heads.length));
  const fits = (/** @type {number} */ least) => Math.max(1, Math.floor((width + 7) / (least + 7)));
  const byLayer = sort === "order" && !filterOf(source); // with heads left out, they have no columns
  const labels = byLayer ? LABELS : 0;
  if (size === "grid" && isMany(run)) {
    // As wide as the room, or all at once where they are in no columns.
    const room = Math.floor(byLayer ? (width - MARGIN) / widest : Math.sqrt((width * height) / Math.max(count, 1)));
    const pitch = Math.max(LEAST, Math.min(64, room));
    return { small: true, byLayer, across: byLayer ? widest : Math.max(1, Math.floor(width / pitch)), cell: pitch };
  }
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
  const rows = wraps ? Math.ceil(count / across) : run.layers.length;
  const heightEach = Math.floor((height + 8 - (wraps ? 0 : 20)) / Math.max(rows, 1)) - 8 - NAMES;
  const cell = heightEach >= 42 ? Math.min(widthEach, heightEach, 170) : Math.min(widthEach, height < 300 ? 56 : 84);
  return { small: false, byLayer: !wraps, across, cell };
}

/** Numbers across the top, where all layers recorded the same heads. */
export const headNames = (/** @type {Run} */ run) =>
  run.layers.every(({ heads }) => heads.join() === run.layers[0].heads.join()) ? run.layers[0].heads : [];

/** How the pictures of a text are painted. */
export const pictureStyle = (/** @type {Run} */ run) => ({
  theme: themeNow(),
  causal: run.causal,
  exact: run.length <= SIZE,
  kind: colourFor(run),
});

/** Whether what is shown of a head is of the text before it grew, or of another view. */
export function isStale(/** @type {OpenSource} */ { side, run, heads }, /** @type {HeadPlace} */ { layer, head }) {
  const pictures = thumbnailsOf(side, layer);
  const figures = figuresOf(layer, head, heads);
  return Boolean((pictures && !areCurrent(pictures, run)) || (figures && figures.run !== run.id));
}

/** Whether a head is off in what is shown, not in the run as it is. */
export const isOffIn = (/** @type {OpenSource} */ { run }, /** @type {HeadPlace} */ { layer, head }) =>
  run !== get().plain && isOff(layer, head);

/** What the next token needs of a head; another text was not measured. */
export const needIn = (/** @type {OpenSource} */ { side }, /** @type {HeadPlace} */ { layer, head }) =>
  get().compare === "text" && side === "second" ? null : needOfHead(layer, head);

/**
 * What is written under a head, and what a voice and the pointer hear of it.
 * @param {OpenSource} source @param {HeadPlace} place @param {ReturnType<typeof needIn>} needed
 */
export function wordsOfHead(source, place, needed = needIn(source, place)) {
  const { run, heads } = source;
  const { layer, head } = place;
  const { sort } = get();
  const figures = figuresOf(layer, head, heads);
  const { index, heads: names } = run.layers[layer];
  const name = `Layer ${index} · Head ${names[head]}`;
  const short = `${index}·${names[head]}`;
  const word = sort === "order" ? "" : wordsFor(sort);
  const score = sort === "order" ? null : figures?.[sort];
  const value = word && `${scoreOf(sort, score)} ${unitOf(sort)}`.trimEnd();
  const off = isOffIn(source, place) ? "switched off" : "";
  const first = `${name}${figures ? `: ${figures.role}` : ""}${off && `, ${off}`}`;
  return {
    role: figures?.role ?? "…",
    short,
    figure: word ? `${short}  ${value}` : short,
    first,
    title: [first, figures?.evidence, needed?.words].filter(Boolean).join("\n"),
    label: [name, figures?.role, word && `${word} ${value}`, off, needed?.words].filter(Boolean).join(", "),
  };
}

/**
 * Which heads a grid marks: the chosen one or those of a chosen mean, and what is compared with them.
 * @param {SideName} side
 */
export function marksOf(side) {
  const active = sourceOf(hasTwoRuns() ? side : undefined);
  const beside = get().compare === "head" ? sourceOf(sides().find((other) => other !== active.side)) : null;
  const within = (/** @type {HeadName|null} */ source, /** @type {HeadPlace} */ { layer, head }) =>
    source != null &&
    (source.average === "model" || (source.layer === layer && (source.average === "layer" || source.head === head)));
  return {
    active,
    of: (/** @type {HeadPlace} */ place) => (within(active, place) ? "chosen" : within(beside, place) ? "other" : ""),
  };
}

/** Shows a head of a grid on the card for a while; null: the chosen one again. */
export const lookAt = (/** @type {SideName} */ side, /** @type {HeadPlace|null} */ place) =>
  previewHead(place && { side, ...place });

/** Chooses a head of a grid; where clicks switch heads off, it is switched too. */
export function press(/** @type {SideName} */ side, /** @type {HeadPlace} */ { layer, head }) {
  if (hasTwoRuns()) set({ active: side });
  if (get().switching) switchHead(layer, head);
  chooseHead(layer, head);
}
