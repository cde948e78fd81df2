/** One selection that every panel shows and any panel can change: `State` and `Side` of types.d.ts. */

/** @returns {Side} */
const emptySide = () => ({
  run: null,
  heads: new Map(),
  layer: 0,
  head: 0,
  average: "head",
  query: null,
  key: null,
  zoom: null,
  strongest: { question: "", key: null },
});

/** @type {State} */
const state = {
  about: null,
  sides: { first: emptySide(), second: emptySide() },
  shows: "weight",
  wanted: null,
  views: null,
  writer: null,
  hover: {},
  view: "panel",
  without: null,
  colour: null,
  sort: "order",
  role: "",
  size: "names",
  compare: "off",
  plain: null,
  changed: null,
  changes: [],
  swap: null,
  cutForm: { open: false, what: "cell", where: "head", span: null },
  switching: false,
  difference: false,
  effects: null,
  passages: null,
  rests: null,
  choosing: null,
  undecided: false,
  measuring: "",
  active: "first",
  tab: "steps",
  update: null,
  theme: "auto",
  wide: false,
  folded: false,
  busy: "",
  problem: "",
  offline: false,
  cell: "",
  spoken: "",
  generating: false,
  grown: false,
  fit: false,
};

/** @type {{names: Set<string>, listen: (state: State) => void}[]} */
const listeners = [];
/** @type {Set<string>} */
let changed = new Set();
let waiting = false;

/** @returns {State} The current state, read only. */
export const get = () => state;

/**
 * Changes some of the state; listeners are called before the next picture is drawn, once, however
 * often it changed.
 * @param {Partial<Omit<State, "sides">>} patch
 */
export const set = (patch) => assign(state, patch);

/**
 * Changes what one side holds.
 * @param {SideName} side @param {Partial<Side>} patch
 */
export const setSide = (side, patch) => assign(state.sides[side], patch);

/** @template {object} T @param {T} target @param {Partial<T>} patch */
function assign(target, patch) {
  for (const name of /** @type {(keyof T & string)[]} */ (Object.keys(patch))) {
    if (same(target[name], patch[name])) continue;
    target[name] = /** @type {T[typeof name]} */ (patch[name]);
    changed.add(name);
  }
  if (changed.size && !waiting) {
    waiting = true;
    // Not an animation frame: a page in a background tab has none and would never load.
    queueMicrotask(notify);
  }
}

function notify() {
  waiting = false;
  const names = changed;
  changed = new Set();
  for (const listener of listeners) {
    if ([...names].some((name) => listener.names.has(name))) listener.listen(state);
  }
}

/**
 * @param {string} names of fields of the state or of its sides, separated by spaces
 * @param {(state: State) => void} listen
 */
export function subscribe(names, listen) {
  listeners.push({ names: new Set(names.split(" ")), listen });
}

/** @param {any} a @param {any} b */
function same(a, b) {
  if (a === b) return true;
  if (!plain(a) || !plain(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

/** @param {unknown} value */
const plain = (value) => value !== null && Object.getPrototypeOf(Object(value)) === Object.prototype;

/** @returns {SideName[]} The sides that are seen. */
export const sides = () => (state.compare === "off" ? ["first"] : ["first", "second"]);

/** @returns {SideName} The side used last: the one that keys, the grid, steps and readouts are about. */
export const activeSide = () => (state.compare !== "off" && state.active === "second" ? "second" : "first");

/** Tokens up to which a text is read as a whole. */
export const SHORT = 200;

/**
 * The scale of colours that suits a text: of a short one the weights that count are to be seen; of a long one,
 * whose weights are all small, the faint ones too.
 * @returns {ColourKind}
 */
export const colourFor = (/** @type {Run|null} */ run) => (run && run.length <= SHORT ? "root" : "log");

/** The scale of now: the one that was chosen, else the one that suits the text. */
export const colourNow = () => state.colour ?? colourFor(state.sides.first.run);

/** Whether each side has a run of its own: of two texts, or of one as it is and changed. */
export const hasTwoRuns = () => state.compare === "text" || state.compare === "change";

/** The side that holds the run which a side shows: two heads share one. */
const runHolder = (/** @type {SideName} */ side) => (hasTwoRuns() ? side : "first");

/** The side that holds what is chosen in the text which a side shows: two runs of one text share it. */
const textHolder = (/** @type {SideName} */ side) => (state.compare === "text" ? side : "first");

/** The side that holds the head which a side shows: two texts share one head. */
const headHolder = (/** @type {SideName} */ side) => (state.compare === "head" ? side : "first");

/** The text that a side holds. */
export const runOf = (/** @type {SideName} */ side) => state.sides[side].run;

/** @returns {Source} What a side shows. */
export function sourceOf(side = activeSide()) {
  const { run, heads } = state.sides[runHolder(side)];
  const { query, key, zoom } = state.sides[textHolder(side)];
  const { layer, head, average } = state.sides[headHolder(side)];
  return { side, run, heads, layer, head, average, query, key, zoom };
}

/** @returns {OpenSource} What a side shows, where it has a text for sure. */
export const openSourceOf = (side = activeSide()) => /** @type {OpenSource} */ (sourceOf(side));

/**
 * Changes what a side shows.
 * @param {Partial<HeadName & Pick<Side, "query"|"key"|"zoom">>} patch
 */
export function change(patch, side = activeSide()) {
  for (const [name, value] of Object.entries(patch)) {
    const holder = ["layer", "head", "average"].includes(name) ? headHolder : textHolder;
    setSide(holder(side), { [name]: value });
  }
}

/** Layer and head as the server takes them, and the view where it is another than the weight. */
export function placeOf(/** @type {HeadName} */ { layer, head, average }) {
  /** @type {Record<Average, Place>} */
  const places = { head: [layer, head], layer: [layer, "mean"], model: ["mean", "mean"] };
  const place = places[average];
  if (state.shows !== "weight") place.push(state.shows);
  return place;
}

/** What a side is called. */
export function sideTitle(/** @type {SideName} */ side) {
  if (state.compare === "change") return side === "first" ? "as it is" : "changed";
  return side === "first" ? "left" : "right";
}

/** What the pointer is on, if it is on this side. */
const hovered = (/** @type {SideName} */ side) =>
  state.compare === "text" && (state.hover.side ?? "first") !== side ? {} : state.hover;

/** The query that is looked at: under the pointer, or locked, or the last token. */
export function queryNow(side = activeSide()) {
  const { run, query } = sourceOf(side);
  return run ? clamp(hovered(side).query ?? query ?? run.length - 1, run.length) : 0;
}

/** The key that is looked at, or null. */
export function keyNow(side = activeSide()) {
  const { run, query, key } = sourceOf(side);
  const hover = hovered(side);
  if (!run) return null;
  // A key that was locked beside another query means nothing for the one under the pointer.
  const at = hover.key ?? (hover.query == null || hover.query === query ? key : null);
  return at == null ? null : clamp(at, run.length);
}

/** What a side asks about its query, as a name: which text, which head or mean, which token. */
export function questionOf(side = activeSide()) {
  const source = sourceOf(side);
  return source.run && [source.run.id, ...placeOf(source), queryNow(side)].join("/");
}

/** The key that its query attends to most, once that is known: two heads of one text show one pair. */
export function strongestKey(/** @type {SideName} */ side) {
  const { question, key } = state.sides[textHolder(side)].strongest;
  return question === questionOf(state.compare === "text" ? side : activeSide()) ? key : null;
}

/** The query that panels show which take a while to read: the locked one stays whatever is hovered. */
export function queryRead(side = activeSide()) {
  const { run, query } = sourceOf(side);
  return query == null ? queryNow(side) : clamp(query, run?.length ?? 1);
}

/** Chooses one head for a side, in place of a mean. */
export const chooseHead = (/** @type {number} */ layer, /** @type {number} */ head, side = activeSide()) =>
  change({ layer, head, average: "head" }, side);

/** Lets go of the query and the key. */
export const release = () => {
  change({ query: null, key: null });
  set({ hover: {} });
};

export const clamp = (/** @type {number} */ value, /** @type {number} */ length) =>
  Math.max(0, Math.min(length - 1, value));

/**
 * What one head was found to do, or null as long as that is not known.
 * @param {number} layer @param {number} head @param {Map<number, Figures[]>} heads
 */
export const figuresOf = (layer, head, heads) => heads.get(layer)?.find((figures) => figures.head === head) ?? null;

/** How many heads a text has. */
export const headCount = (/** @type {Run} */ run) => run.layers.reduce((sum, { heads }) => sum + heads.length, 0);

/**
 * Of more heads than these the grid is one canvas, and their names wait for their pictures. The buttons of 480
 * heads are 2 400 elements, and marking and naming them anew takes 9 ms, more than half a frame; 5 120 would take
 * 100 ms at every click.
 */
export const MANY_HEADS = 480;

export const isMany = (/** @type {Run} */ run) => headCount(run) > MANY_HEADS;
