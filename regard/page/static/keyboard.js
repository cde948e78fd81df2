/** The keyboard, for all of it, and the dialog that says which keys there are. */
import { byId, cycle, make, targetOf } from "./dom.js";
import { placeName } from "./format.js";
import { tabs } from "./tab_panel.js";
import { switchHead } from "./changes.js";
import { openCutForm } from "./cut.js";
import { activeColumn } from "./map.js";
import { change, chooseHead, clamp, colourNow, get, keyNow, queryNow, release, runOf, set, sourceOf } from "./store.js";
import { toggleView } from "./views.js";
import { showing } from "./zoom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["↑ ↓", "the query before, after"],
  ["← →", "the key before, after (in the text: the token)"],
  ["[ ]", "the head before, after"],
  [", .", "the layer before, after"],
  ["Shift with arrows", "move the zoomed map"],
  ["+ − 0", "closer, farther, the whole map"],
  ["Home End", "the first, the last query"],
  ["Escape", "let go of the query and the key"],
  ["l", "logarithmic, square-root or linear colour"],
  ["a", "this head, its layer’s mean, the model’s mean"],
  ["x", "switch this head off, or on again"],
  ["c", "cut keys from queries"],
  ["Ctrl Z", "take a change back; with Shift, make it again"],
  ["t", "steps, readouts, training where it was recorded"],
  ["h", "heads wide, or back to the map"],
  ["p", "the panel, or the opening"],
  ["Tab", "from control to control; Enter presses"],
  ["?", "these keys"],
];
/** @type {[string, string][]} */
const POINTER = [
  ["hover, click", "looks at a token, a cell or a head; a click keeps it"],
  ["Shift + click on a token", "takes it as the key"],
  ["wheel, pinch, double click", "zoom the map where the pointer is; a pinch on the heads makes them small or large"],
  ["drag", "moves the zoomed map; a finger on the whole map moves the crosshair"],
  ["a file dropped on the page", "is opened as a text"],
];

export function startKeyboard() {
  const dialog = byId("keys");
  const list = (/** @type {[string, string][]} */ pairs, /** @type {boolean} */ wrap) =>
    make(
      "dl",
      {},
      ...pairs.flatMap(([keys, words]) => [
        make(
          "dt",
          {},
          ...(wrap
            ? keys
                .split(" ")
                .flatMap((key) =>
                  ["with", "arrows"].includes(key) ? [`${key} `] : [make("kbd", { textContent: key }), " "],
                )
            : [keys]),
        ),
        make("dd", { textContent: words }),
      ]),
    );
  dialog.append(
    make("h2", { id: "keys-title", textContent: "Keys" }),
    list(KEYS, true),
    make("h2", { textContent: "Pointer" }),
    list(POINTER, false),
    make("form", { method: "dialog" }, make("button", { className: "main", textContent: "Close" })),
  );
  byId("help").onclick = () => dialog.showModal();
  document.addEventListener("keydown", pressed);
}

const typing = (/** @type {HTMLElement} */ target) => target.matches?.("input, textarea, select, [contenteditable]");

function pressed(/** @type {KeyboardEvent} */ event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (typing(targetOf(event))) {
    if (event.key === "Escape") targetOf(event).blur();
    return;
  }
  const act = event.shiftKey && event.key.startsWith("Arrow") ? pans[event.key] : acts[event.key];
  if (!act || (event.key !== "?" && !runOf("first"))) return;
  event.preventDefault();
  act();
}

/** Moves the locked query or key, and the map with it. */
function step(/** @type {number} */ queries, /** @type {number} */ keys) {
  const column = activeColumn();
  const { run, zoom } = column.source();
  if (!run) return;
  const query = clamp(queryNow() + queries, run.length);
  const key = keys ? clamp((keyNow() ?? query) + keys, run.length) : keyNow();
  change({ query, key });
  set({ hover: {} });
  if (zoom) column.zoomTo(showing(zoom, run.length, query, key));
}

function turn(/** @type {number} */ heads, /** @type {number} */ layers) {
  const { run, layer: before, head: at, average } = sourceOf();
  if (!run) return;
  const layer = (before + layers + run.layers.length) % run.layers.length;
  const among = run.layers[layer].heads.length;
  if (layers && average === "layer") change({ layer, head: Math.min(at, among - 1) });
  else chooseHead(layer, layers ? Math.min(at, among - 1) : (at + heads + among) % among);
  set({ spoken: placeName(run, sourceOf()) });
}

/** @type {ColourKind[]} */
const COLOURS = ["log", "root", "linear"];
/** @type {Average[]} */
const AVERAGES = ["head", "layer", "model"];
const pan = (/** @type {number} */ x, /** @type {number} */ y) => () => activeColumn().panBy(x, y);
/** @type {Record<string, () => void>} */
const pans = {
  ArrowLeft: pan(-0.2, 0),
  ArrowRight: pan(0.2, 0),
  ArrowUp: pan(0, -0.2),
  ArrowDown: pan(0, 0.2),
};
const closer = () => zoomAtQuery(1.5);
const farther = () => zoomAtQuery(1 / 1.5);

/** Zooms around what is looked at, where that is on the map. */
function zoomAtQuery(/** @type {number} */ factor) {
  const column = activeColumn();
  const { run, zoom } = column.source();
  if (!run) return;
  const { queries, keys, span } = zoom ?? { queries: 0, keys: 0, span: run.length };
  const within = (/** @type {number|null} */ at, /** @type {number} */ first) =>
    at == null || at < first || at > first + span ? 0.5 : (at + 0.5 - first) / span;
  column.zoomBy(factor, { x: within(keyNow() ?? queryNow(), keys), y: within(queryNow(), queries) });
}

/** @type {Record<string, () => void>} */
const acts = {
  ArrowUp: () => step(-1, 0),
  ArrowDown: () => step(1, 0),
  ArrowLeft: () => step(0, -1),
  ArrowRight: () => step(0, 1),
  Home: () => step(-Infinity, 0),
  End: () => step(Infinity, 0),
  "[": () => turn(-1, 0),
  "]": () => turn(1, 0),
  ",": () => turn(0, -1),
  ".": () => turn(0, 1),
  "+": closer,
  "=": closer,
  "-": farther,
  "−": farther,
  0: () => activeColumn().zoomTo(null),
  Escape: () => (get().wide ? set({ wide: false }) : release()),
  l: () => set({ colour: cycle(COLOURS, colourNow()) }),
  a: () => change({ average: cycle(AVERAGES, sourceOf().average) }),
  x: () => sourceOf().average === "head" && switchHead(sourceOf().layer, sourceOf().head),
  c: () => openCutForm(),
  t: () => set({ tab: cycle(tabs(), get().tab), folded: false }),
  h: () => get().view === "panel" && set({ wide: !get().wide }),
  p: toggleView,
  "?": () => byId("keys").showModal(),
};
