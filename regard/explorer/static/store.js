/**
 * One selection that every panel shows and any panel can change.
 *
 * @typedef {{layer: number, head: number}} HeadName
 * @typedef {{queries: number, keys: number, span: number}} Zoom  first query, first key, how many
 * @typedef {{
 *   about: any, run: any, second: any,
 *   layer: number, head: number, query: number|null, key: number|null,
 *   hover: {query?: number|null, key?: number|null, head?: HeadName|null},
 *   zoom: Zoom|null, zoomSecond: Zoom|null,
 *   colour: "log"|"linear", average: "head"|"layer"|"model", sort: string, size: "names"|"grid",
 *   compare: "off"|"head"|"text", other: HeadName, active: "first"|"second",
 *   tab: "steps"|"readouts", theme: "auto"|"light"|"dark", wide: boolean, folded: boolean,
 *   heads: Map<number, any[]>, headsSecond: Map<number, any[]>, busy: string, problem: string, offline: boolean, cell: any, spoken: string,
 *   generating: boolean, grown: boolean,
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
  hover: {},
  zoom: null,
  zoomSecond: null,
  colour: "log",
  average: "head",
  sort: "order",
  size: "names",
  compare: "off",
  other: { layer: 0, head: 0 },
  active: "first",
  tab: "steps",
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

/** The query that is looked at: under the pointer, or locked, or the last token. */
export function queryNow({ hover, query, run } = state) {
  if (!run) return 0;
  return clamp(hover.query ?? query ?? run.length - 1, run.length);
}

/** The key that is looked at, or null. */
export function keyNow({ hover, query, key, run } = state) {
  if (!run) return null;
  // A key that was locked beside another query means nothing for the one under the pointer.
  const at = hover.key ?? (hover.query == null || hover.query === query ? key : null);
  return at == null ? null : clamp(at, run.length);
}

/** The query that panels show which take a while to read: the locked one stays whatever is hovered. */
export const queryRead = (now = state) =>
  now.query == null ? queryNow(now) : clamp(now.query, now.run?.length ?? 1);

/** The head that arrows, brackets and the grid change: that of the map used last. */
export const headActive = (now = state) =>
  now.compare === "head" && now.active === "second" ? now.other : { layer: now.layer, head: now.head };

/** Changes that head. */
export function chooseHead(layer, head) {
  const { compare, active } = state;
  if (compare === "head" && active === "second") set({ other: { layer, head } });
  else set({ layer, head });
}

/** Lets go of the query and the key. */
export const release = () => set({ query: null, key: null, hover: {} });

export const clamp = (value, length) => Math.max(0, Math.min(length - 1, value));

/** What one head was found to do, or null as long as that is not known. */
export const figuresOf = (layer, head, heads = state.heads) =>
  heads.get(layer)?.find((figures) => figures.head === head) ?? null;
