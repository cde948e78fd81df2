/** The state of the page as its address: shared, it comes back the same. */
import { get, set, subscribe } from "./store.js";
import { bounded } from "./zoom.js";
import { byId, settled } from "./dom.js";

/** Longest text that an address carries. */
export const LONGEST = 2000;

/** What is in the address, beside the text, when it is not as at first: name, letter. */
const WORDS = [
  ["colour", "c", "log"],
  ["average", "a", "head"],
  ["sort", "s", "order"],
  ["compare", "x", "off"],
  ["tab", "b", "steps"],
  ["active", "v", "first"],
];

const fits = (text) => Array.from(text ?? "").length <= LONGEST;

/** The address of now. */
export function written() {
  const now = get();
  const { run } = now;
  const fields = new URLSearchParams();
  if (!run) return "";
  if (now.about?.writes && run.text != null) {
    if (fits(run.text)) fields.set("t", run.text);
    else fields.set("long", String(run.length));
  } else fields.set("r", run.id);
  fields.set("l", String(now.layer));
  fields.set("h", String(now.head));
  if (now.query != null) fields.set("q", String(now.query));
  if (now.key != null) fields.set("k", String(now.key));
  const zoom = (name, { queries, keys, span }) =>
    fields.set(name, [queries, keys, span].map((value) => Number(value.toFixed(2))).join());
  if (now.zoom) zoom("z", now.zoom);
  for (const [name, letter, usual] of WORDS) if (now[name] !== usual) fields.set(letter, now[name]);
  if (now.size !== sizeFor(run)) fields.set("g", now.size);
  if (now.tab === "training" && now.update != null) fields.set("u", String(now.update));
  if (now.wide) fields.set("w", "1");
  if (now.folded) fields.set("f", "1");
  if (now.fit) fields.set("i", "1");
  if (now.compare === "head") {
    const { layer, head, average } = now.other;
    fields.set("o", [layer, head, ...(average === "head" ? [] : [average])].join());
  }
  if (now.compare === "text" && now.second?.text != null) {
    if (fits(now.second.text)) fields.set("t2", now.second.text);
    if (now.querySecond != null) fields.set("q2", String(now.querySecond));
    if (now.keySecond != null) fields.set("k2", String(now.keySecond));
    if (now.zoomSecond) zoom("z2", now.zoomSecond);
  }
  return `#${fields}`;
}

/** Few heads are shown with their names, many small. */
export const sizeFor = (run) =>
  run.layers.length * Math.max(...run.layers.map(({ heads }) => heads.length)) <= 48 ? "names" : "grid";

/** What an address asks for. */
export function parsed(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return {
    text: fields.get("t"),
    run: fields.get("r"),
    second: fields.get("t2"),
    long: fields.get("long"),
    empty: [...fields].length === 0,
    fields,
  };
}

const whole = (text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);

/** Applies an address to a run that is open: only what there is. */
export function apply(fields) {
  const now = get();
  const { run } = now;
  const head = (layer, place) => {
    const at = Math.min(whole(layer) ?? now.layer, run.layers.length - 1);
    return { layer: at, head: Math.min(whole(place) ?? now.head, run.layers[at].heads.length - 1) };
  };
  const token = (name, { length } = run) => {
    const at = whole(fields.get(name));
    return at == null || at >= length ? null : at;
  };
  const zoom = (name, length) => {
    const [queries, keys, span] = (fields.get(name) ?? "").split(",").map(Number);
    return span > 0 && queries >= 0 && keys >= 0 ? bounded({ queries, keys, span }, length) : null;
  };
  const patch = {
    ...head(fields.get("l"), fields.get("h")),
    query: token("q"),
    key: token("k"),
    zoom: zoom("z", run.length),
    hover: {},
  };
  const allowed = {
    colour: ["log", "linear"],
    average: ["head", "layer", "model"],
    compare: ["off", "head", "text"],
    tab: ["steps", "readouts", ...(now.about.training ? ["training"] : [])],
    active: ["first", "second"],
    sort: [...byId("sort").options].map(({ value }) => value),
  };
  for (const [name, letter, usual] of WORDS) {
    const value = fields.get(letter) ?? usual;
    if (allowed[name].includes(value)) patch[name] = value;
  }
  patch.size = fields.get("g") === "grid" || fields.get("g") === "names" ? fields.get("g") : sizeFor(run);
  patch.update = whole(fields.get("u"));
  patch.wide = fields.get("w") === "1";
  patch.folded = fields.get("f") === "1";
  patch.fit = fields.get("i") === "1";
  const [layer, place, average] = (fields.get("o") ?? "").split(",");
  patch.other = { ...head(layer, place), average: allowed.average.includes(average) ? average : "head" };
  if (now.second) {
    patch.querySecond = token("q2", now.second);
    patch.keySecond = token("k2", now.second);
    patch.zoomSecond = zoom("z2", now.second.length);
  }
  set(/** @type {any} */ (patch));
}

/** Keeps the address as the page is. It takes no part in the history: hovering is no journey. */
export function startAddress() {
  const write = settled(250, () => {
    const hash = written();
    if (hash && hash !== location.hash) history.replaceState(null, "", location.href.split("#")[0] + hash);
  });
  subscribe(
    "run second layer head query key querySecond keySecond zoom zoomSecond colour fit average sort size compare other active tab update wide folded",
    write,
  );
}
