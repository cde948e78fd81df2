/** A head's readouts along the text, and the strongest keys of the query. */
import * as api from "./api.js";
import { bar, byId, framed, keyButton, make, markStale, rove, settled, table } from "./dom.js";
import { LEFT, paintReadouts } from "./draw_readouts.js";
import { named, plural, signed, weight } from "./format.js";
import { readoutsOf } from "./along.js";
import { awaitAnswer } from "./answers.js";
import { READOUTS, WORDS, wordsFor } from "./quantities.js";
import { change, get, keyNow, openSourceOf, placeOf, queryNow, queryRead, set, sourceOf, subscribe } from "./store.js";
import { prepared } from "./canvas.js";
import { inks } from "./theme.js";

const TOP = 12;

/** @type {Float32Array|null} */
let values = null;
/** @type {{of: string, run: Run, query: number, weights: Float32Array}|null} */
let row = null;
/** What the values are of. @type {string|null} */
let loaded = "";
const canvas = make("canvas", {
  tabIndex: 0,
  role: "img",
  "aria-label": `Readouts along the text: ${READOUTS.map(wordsFor).join(", ")}. Arrows move the query.`,
});
const plots = make("div", { className: "plots" }, canvas);
const keys = make("div");

export function startReadouts() {
  byId("readouts").append(make("div", { className: "along" }, plots, keys));
  rove(keys);
  const draw = framed(paint);
  const ask = settled(60, () => load(draw));
  subscribe("run layer head average shows compare active query hover tab folded", () => {
    dim();
    ask();
  });
  subscribe("hover query key tab zoom active", draw);
  document.addEventListener("inks", draw);
  document.addEventListener("readouts", ask);
  new ResizeObserver(draw).observe(plots);
  const at = (/** @type {PointerEvent} */ event) => {
    const { run } = sourceOf();
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left - LEFT;
    if (!run || x < 0) return null;
    const [first, stop] = range();
    return Math.max(0, Math.min(run.length - 1, first + Math.floor((x / (box.width - LEFT)) * (stop - first))));
  };
  canvas.addEventListener("pointermove", (event) => {
    const query = at(event);
    if (query != null) set({ hover: { query, side: sourceOf().side } });
  });
  canvas.addEventListener("pointerleave", () => set({ hover: {} }));
  canvas.addEventListener("click", (event) => {
    const query = at(event);
    if (query == null) return;
    change({ query });
    set({ hover: {} });
  });
}

/** @returns {Span} All tokens, or those of the map's window once it is zoomed. */
function range() {
  const { run, zoom } = openSourceOf();
  return zoom ? [Math.floor(zoom.queries), Math.min(run.length, Math.ceil(zoom.queries + zoom.span))] : [0, run.length];
}

/** What the curves are to be of, as a name. */
function place() {
  const source = sourceOf();
  return source.run && [source.run.id, ...placeOf(source)].join("/");
}

/** What is of another head, text or query than the one that is looked at is dimmed. */
function dim() {
  const now = place();
  markStale(plots, values !== null && loaded !== now);
  markStale(keys, row !== null && row.of !== `${now}/${queryRead()}`);
}

async function load(/** @type {() => void} */ draw) {
  const now = get();
  const { tab, folded } = now;
  const source = sourceOf();
  const { run } = source;
  if (!run || tab !== "readouts" || folded || now.offline) return;
  const query = queryRead();
  const key = place();
  if (loaded !== key)
    readoutsOf(source.side).then((data) => {
      if (!data || key !== place()) return;
      loaded = key;
      values = data.values;
      dim();
      draw();
    });
  const data = await awaitAnswer(api.row(run.id, placeOf(source), query, "row-panel"));
  if (!data) return;
  row = { of: `${key}/${query}`, run, query, weights: data.values };
  dim();
  list(row);
}

function paint() {
  const { tab, folded } = get();
  const { run } = sourceOf();
  if (!run || tab !== "readouts" || folded || !values || values.length !== READOUTS.length * run.length) return;
  const box = plots.getBoundingClientRect();
  const [width, height] = [box.width, Math.max(150, box.height - 4)];
  paintReadouts(prepared(canvas, width, height), readoutsDrawing(run, values, width, height));
}

/**
 * All that the drawing needs; also what is exported.
 * @param {Run} run @param {Float32Array} along @param {number} width @param {number} height
 */
export function readoutsDrawing(run, along, width, height) {
  const [query, key] = [queryNow(), keyNow()];
  return { values: along, range: range(), width, height, query, key, inks: inks() };
}

/** The strongest keys of the query, from its whole row. */
function list(/** @type {NonNullable<typeof row>} */ { run, query, weights }) {
  const order = strongest(weights, TOP);
  const most = Math.abs(weights[order[0]]) || 1;
  const { entry } = WORDS[get().shows];
  const rows = order.map((key) =>
    make(
      "tr",
      { onclick: () => change({ query, key }), dataset: { key } },
      make("td", { className: "start" }, keyButton(run.labels, key, `${entry} ${weight(weights[key])}`)),
      make("td", { textContent: away(query - key) }),
      make("td", { className: "wide" }, bar(weights[key] / most)),
      make("td", { textContent: weight(weights[key]) }),
    ),
  );
  const sum = order.reduce((total, key) => total + weights[key], 0);
  const all = plural(run.causal ? query + 1 : run.length, "key");
  const start = { className: "start", colSpan: 3 };
  rows.push(
    make(
      "tr",
      { className: "sum" },
      make("td", { ...start, textContent: `${order.length} of ${all}` }),
      make("td", { textContent: signed(sum, 3) }),
    ),
  );
  const head = [
    make("th", { ...start, textContent: `strongest keys of ${named(run.labels, query, 16)}` }),
    make("th", { textContent: entry }),
  ];
  keys.replaceChildren(table(`Strongest keys of query ${query}`, head, rows));
}

const away = (/** @type {number} */ back) => (back < 0 ? `${-back} ahead` : `${back} back`);

/** Places of the greatest numbers, without sorting 100,000 of them. */
function strongest(/** @type {Float32Array} */ weights, /** @type {number} */ most) {
  /** @type {number[]} */
  const best = [];
  for (let k = 0; k < weights.length; k++) {
    const size = Math.abs(weights[k]);
    if (!(size > 0) || (best.length === most && size <= Math.abs(weights[best[most - 1]]))) continue;
    let at = best.length;
    while (at > 0 && Math.abs(weights[best[at - 1]]) < size) at--;
    best.splice(at, 0, k);
    if (best.length > most) best.pop();
  }
  return best;
}
