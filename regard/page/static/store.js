/**
 * One selection that every panel shows and any panel can change.
 *
 * @typedef {{layer: number, head: number, average: "head"|"layer"|"model"}} HeadName
 * @typedef {{queries: number, keys: number, span: number}} Zoom  first query, first key, how many
 * @typedef {{
 *   about: any, run: any, second: any,
 *   layer: number, head: number, query: number|null, key: number|null,
 *   querySecond: number|null, keySecond: number|null,
 *   hover: {query?: number|null, key?: number|null, side?: "first"|"second"},
 *   zoom: Zoom|null, zoomSecond: Zoom|null,
 *   colour: "log"|"linear", average: "head"|"layer"|"model", sort: string, size: "names"|"grid",
 *   compare: "off"|"head"|"text", other: HeadName, active: "first"|"second",
 *   tab: "steps"|"readouts"|"training", update: number|null, theme: "auto"|"light"|"dark", wide: boolean, folded: boolean,
 *   heads: Map<number, any[]>, headsSecond: Map<number, any[]>, busy: string, problem: string, offline: boolean, cell: any, spoken: string,
 *   generating: boolean, grown: boolean, fit: boolean,
 *   strongest: Record<"first"|"second", {of: string, key: number|null}>,
 * }} State
 */

/** @type {State} */
const state = {
  about: null,
  run: null,
  second: null,
  layer: 0,
  head: 0,
  query: null,
  key: null,
  querySecond: null,
  keySecond: null,
  hover: {},
  zoom: null,
  zoomSecond: null,
  colour: "log",
  average: "head",
  sort: "order",
  size: "names",
  compare: "off",
  other: { layer: 0, head: 0, average: "head" },
  active: "first",
  tab: "steps",
  update: null,
  theme: "auto",
  wide: false,
  folded: false,
  heads: new Map(),
  headsSecond: new Map(),
  busy: "",
  problem: "",
  offline: false,
  cell: null,
  spoken: "",
  generating: false,
  grown: false,
  fit: false, // colours of the window, not of the whole
  strongest: { first: { of: "", key: null }, second: { of: "", key: null } },
};

/** @type {{names: Set<string>, heard: (state: State) => void}[]} */
const listeners = [];
/** @type {Set<string>} */
let changed = new Set();
let waiting = false;

/** @returns {State} What is so now; not to be written to. */
export const get = () => state;

/**
 * Changes some of the state; whoever listens to that hears of it before the next picture is drawn,
 * once, however often it changed.
 * @param {Partial<State>} patch
 */
export function set(patch) {
  for (const [name, value] of Object.entries(patch)) {
    if (same(state[name], value)) continue;
    state[name] = value;
    changed.add(name);
  }
  if (changed.size && !waiting) {
    waiting = true;
    // Not an animation frame: a page in a background tab has none and would never load.
    queueMicrotask(tell);
  }
}

function tell() {
  waiting = false;
  const names = changed;
  changed = new Set();
  for (const listener of listeners) {
    if ([...names].some((name) => listener.names.has(name))) listener.heard(state);
  }
}

/**
 * @param {string} names what to listen to, separated by spaces
 * @param {(state: State) => void} heard
 */
export function subscribe(names, heard) {
  listeners.push({ names: new Set(names.split(" ")), heard });
}

function same(a, b) {
  if (a === b) return true;
  if (!plain(a) || !plain(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

const plain = (value) => value !== null && Object.getPrototypeOf(Object(value)) === Object.prototype;

/** With two texts, each side has a query, a key and a window of its own. */
const apart = (side) => side === "second" && state.compare === "text";

/** The sides that are seen. */
export const sides = () => (state.compare === "off" ? ["first"] : ["first", "second"]);

/** The side used last: the one that keys, the grid, steps and readouts are about. */
export const activeSide = () => (state.compare !== "off" && state.active === "second" ? "second" : "first");

/** What a side shows. */
export function shown(side = activeSide()) {
  const own = apart(side);
  const { layer, head, average } = side === "second" && state.compare === "head" ? state.other : state;
  return {
    side,
    run: own ? state.second : state.run,
    heads: own ? state.headsSecond : state.heads,
    layer,
    head,
    average,
    query: own ? state.querySecond : state.query,
    key: own ? state.keySecond : state.key,
    zoom: own ? state.zoomSecond : state.zoom,
  };
}

/**
 * Changes what a side shows.
 * @param {{layer?: number, head?: number, average?: "head"|"layer"|"model", query?: number|null,
 *   key?: number|null, zoom?: Zoom|null}} patch
 */
export function change(patch, side = activeSide()) {
  const written = {};
  const other = { ...state.other };
  for (const [name, value] of Object.entries(patch)) {
    if (["query", "key", "zoom"].includes(name)) written[apart(side) ? `${name}Second` : name] = value;
    else if (side === "second" && state.compare === "head") other[name] = value;
    else written[name] = value;
  }
  set({ ...written, other });
}

/** Layer and head as the server takes them: a mean has a name in place of a number. */
export const placeOf = ({ layer, head, average }) =>
  ({ head: [layer, head], layer: [layer, "mean"], model: ["mean", "mean"] })[average];

/** What the pointer is on, if it is on this side. */
const hovered = (side) => (state.compare === "text" && (state.hover.side ?? "first") !== side ? {} : state.hover);

/** The query that is looked at: under the pointer, or locked, or the last token. */
export function queryNow(side = activeSide()) {
  const { run, query } = shown(side);
  return run ? clamp(hovered(side).query ?? query ?? run.length - 1, run.length) : 0;
}

/** The key that is looked at, or null. */
export function keyNow(side = activeSide()) {
  const { run, query, key } = shown(side);
  const hover = hovered(side);
  if (!run) return null;
  // A key that was locked beside another query means nothing for the one under the pointer.
  const at = hover.key ?? (hover.query == null || hover.query === query ? key : null);
  return at == null ? null : clamp(at, run.length);
}

/** What a side asks of its query, as a name: which text, which head or mean, which token. */
export function questionOf(side = activeSide()) {
  const source = shown(side);
  return source.run && [source.run.id, ...placeOf(source), queryNow(side)].join("/");
}

/** The key that its query attends to most, once that is known: two heads of one text show one pair. */
export function strongestKey(side) {
  const own = state.compare === "text";
  const { of, key } = state.strongest[own ? side : "first"];
  return of === questionOf(own ? side : activeSide()) ? key : null;
}

/** The query that panels show which take a while to read: the locked one stays whatever is hovered. */
export function queryRead(side = activeSide()) {
  const { run, query } = shown(side);
  return query == null ? queryNow(side) : clamp(query, run?.length ?? 1);
}

/** Chooses one head for a side, in place of a mean. */
export const chooseHead = (layer, head, side = activeSide()) => change({ layer, head, average: "head" }, side);

/** Lets go of the query and the key. */
export const release = () => {
  change({ query: null, key: null });
  set({ hover: {} });
};

export const clamp = (value, length) => Math.max(0, Math.min(length - 1, value));

/** What one head was found to do, or null as long as that is not known. */
export const figuresOf = (layer, head, heads = state.heads) =>
  heads.get(layer)?.find((figures) => figures.head === head) ?? null;
