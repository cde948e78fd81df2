/** The state of the page as its address: shared, it comes back the same. */
import { get, set, setSide, subscribe } from "./store.js";
import { bounded } from "./zoom.js";
import { readChanges, writeChanges } from "./change_list.js";
import { byId, settled } from "./dom.js";
import { swapOf, writeSwap } from "./swapped.js";

/** Longest text that an address carries. */
export const LONGEST = 2000;

/**
 * What is in the address, beside the text, when it is not as at first.
 * @type {[name: "sort"|"role"|"compare"|"tab"|"active"|"shows", letter: string, usual: string][]}
 */
const WORDS = [
  ["sort", "s", "order"],
  ["role", "n", ""],
  ["compare", "x", "off"],
  ["tab", "b", "steps"],
  ["active", "v", "first"],
  ["shows", "y", "weight"],
];

/** The changes that an address has, as it writes them. */
const changesIn = (/** @type {string} */ hash) => new URLSearchParams(hash.replace(/^#/, "")).get("e") ?? "";

/** The texts that an address has, or names where they are too long for it. */
const textsIn = (/** @type {string} */ hash) => {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return ["t", "long", "r", "t2"].map((name) => fields.get(name) ?? "").join("\n");
};

const fits = (/** @type {string|null|undefined} */ text) => Array.from(text ?? "").length <= LONGEST;

/** The address of now. */
export function currentAddress() {
  const now = get();
  const { first, second } = now.sides;
  const { run } = first;
  const fields = new URLSearchParams();
  if (!run) return "";
  if (now.about?.writes && run.text != null) {
    if (fits(run.text)) fields.set("t", run.text);
    else fields.set("long", String(run.length));
  } else fields.set("r", run.id);
  // A head that is still being chosen is not the reader's: opened again, the page chooses anew.
  if (!now.undecided || now.choosing !== now.plain) {
    fields.set("l", String(first.layer));
    fields.set("h", String(first.head));
  }
  if (now.view === "opening") fields.set("p", now.view);
  if (first.average !== "head") fields.set("a", first.average);
  const selection = (/** @type {string} */ ending, /** @type {Side} */ { query, key, zoom }) => {
    if (query != null) fields.set(`q${ending}`, String(query));
    if (key != null) fields.set(`k${ending}`, String(key));
    if (!zoom) return;
    const numbers = [zoom.queries, zoom.keys, zoom.span].map((value) => Number(value.toFixed(2)));
    fields.set(`z${ending}`, numbers.join());
  };
  selection("", first);
  for (const [name, letter, usual] of WORDS) if (now[name] !== usual) fields.set(letter, now[name]);
  if (now.colour) fields.set("c", now.colour);
  if (now.changes.length) fields.set("e", writeChanges(now.changes));
  const swap = fits(run.text) ? swapOf(now.plain) : null;
  if (swap) fields.set("m", writeSwap(swap));
  if (now.difference) fields.set("d", "1");
  if (now.size !== sizeFor(run)) fields.set("g", now.size);
  if (now.tab === "training" && now.update != null) fields.set("u", String(now.update));
  if (now.wide) fields.set("w", "1");
  if (now.folded) fields.set("f", "1");
  if (now.fit) fields.set("i", "1");
  if (now.compare === "head") {
    const { layer, head, average } = second;
    fields.set("o", [layer, head, ...(average === "head" ? [] : [average])].join());
  }
  if (now.compare === "text" && second.run?.text != null) {
    if (fits(second.run.text)) fields.set("t2", second.run.text);
    selection("2", second);
  }
  return `#${fields}`;
}

/** Few heads are shown with their names, many small. */
export const sizeFor = (/** @type {Run} */ run) =>
  run.layers.length * Math.max(...run.layers.map(({ heads }) => heads.length)) <= 48 ? "names" : "grid";

/** What an address asks for. */
export function parseAddress(/** @type {string} */ hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return {
    text: fields.get("t"),
    run: fields.get("r"),
    second: fields.get("t2"),
    long: fields.get("long"),
    empty: [...fields].length === 0,
    /** An address that says more than the page's own is of work: it opens the panel. @type {ViewName} */
    view: fields.get("p") === "opening" || [...fields].length === 0 ? "opening" : "panel",
    fields,
  };
}

const whole = (/** @type {string|null|undefined} */ text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);

/** Applies an address to a run that is open: only what there is. */
export function applyAddress(/** @type {URLSearchParams} */ fields) {
  const now = get();
  const { first, second } = now.sides;
  const { run } = first;
  if (!run || !now.about) return;
  const allowed = (/** @type {any} */ value, /** @type {any[]} */ values, /** @type {string} */ usual) =>
    values.includes(value) ? value : usual;
  /** @param {string|null} layer @param {string|null} head @param {string|null} average */
  const place = (layer, head, average) => {
    const at = Math.min(whole(layer) ?? first.layer, run.layers.length - 1);
    return {
      layer: at,
      head: Math.min(whole(head) ?? first.head, run.layers[at].heads.length - 1),
      average: allowed(average, ["head", "layer", "model"], "head"),
    };
  };
  const selection = (/** @type {string} */ ending, /** @type {Run} */ { length }) => {
    const token = (/** @type {string} */ name) => {
      const at = whole(fields.get(name + ending));
      return at == null || at >= length ? null : at;
    };
    const [queries, keys, span] = (fields.get(`z${ending}`) ?? "").split(",").map(Number);
    const zoom = span > 0 && queries >= 0 && keys >= 0 ? bounded({ queries, keys, span }, length) : null;
    return { query: token("q"), key: token("k"), zoom };
  };
  const changes = now.about.writes ? readChanges(fields.get("e"), run) : [];
  if (changes.length || now.changes.length) set({ changes });
  /** @type {Record<string, string[]>} */
  const values = {
    compare: ["off", "head", "text", ...(changes.length ? ["change"] : [])],
    tab: ["steps", "readouts", ...(now.about.training ? ["training"] : [])],
    active: ["first", "second"],
    shows: ["weight"], // another one is shown once it is known that there is one
    sort: [...byId("sort").options].map(({ value }) => value),
    role: [fields.get("n") ?? ""], // which there are is known once all heads are named
  };
  const [layer, head, average] = (fields.get("o") ?? "").split(",");
  setSide("second", place(layer, head, average));
  setSide("first", { ...place(fields.get("l"), fields.get("h"), fields.get("a")), ...selection("", run) });
  if (second.run) setSide("second", selection("2", second.run));
  for (const [name, letter, usual] of WORDS)
    if (values[name].includes(fields.get(letter) ?? usual)) set({ [name]: fields.get(letter) ?? usual });
  set({
    hover: {},
    wanted: allowed(fields.get("y"), ["moved", "toward", "without"], "") || null,
    colour: allowed(fields.get("c"), ["log", "root", "linear"], "") || null,
    size: allowed(fields.get("g"), ["names", "grid"], sizeFor(run)),
    update: whole(fields.get("u")),
    wide: fields.get("w") === "1",
    folded: fields.get("f") === "1",
    fit: fields.get("i") === "1",
    difference: fields.get("d") === "1",
  });
}

/** Whether a text was opened since the address was written. */
let opened = false;

/** A text was opened. Not called where it continues what is being typed or generated. */
export function textOpened() {
  opened = true;
}

/**
 * Writes the address of now. A change of the model and another text are steps in the history, which
 * Back takes back.
 */
export function writeAddress() {
  const hash = currentAddress();
  const { run } = get().sides.first;
  if (!hash || !run) return;
  const another = opened && textsIn(hash) !== textsIn(location.hash) && location.hash !== "";
  opened = false;
  if (hash === location.hash) return;
  const address = location.href.split("#")[0] + hash;
  const state = { run: run.id }; // a text that is too long for the address is found again by it
  if (another || changesIn(hash) !== changesIn(location.hash)) history.pushState(state, "", address);
  else history.replaceState(state, "", address);
}

/** Keeps the address as the page is. Nothing else takes part in the history: moving the pointer is not a step back. */
export function startAddress() {
  const write = settled(250, writeAddress);
  subscribe("changes", writeAddress);
  subscribe(
    "run swap view layer head choosing average query key zoom colour fit sort role size compare active shows tab update wide folded difference",
    write,
  );
}
