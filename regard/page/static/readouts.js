/** A head's readouts along the text, and the strongest keys of the query. */
import * as api from "./api.js";
import { byId, framed, keyButton, make, markStale, rove, settled } from "./dom.js";
import { LEFT, paintReadouts } from "./draw_readouts.js";
import { named, plural, weight } from "./format.js";
import { awaitAnswer } from "./answers.js";
import { READOUTS, wordsFor } from "./quantities.js";
import { change, get, keyNow, opened, placeOf, queryNow, queryRead, set, shown, subscribe } from "./store.js";
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
const table = make("div");

export function startReadouts() {
  byId("readouts").append(make("div", { className: "along" }, plots, table));
  rove(table);
  const draw = framed(paint);
  const ask = settled(60, () => load(draw));
  subscribe("run layer head average compare active query hover tab folded", () => {
    dim();
    ask();
  });
  subscribe("hover query key tab zoom active", draw);
  document.addEventListener("inks", draw);
  new ResizeObserver(draw).observe(plots);
  const at = (/** @type {PointerEvent} */ event) => {
    const { run } = shown();
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left - LEFT;
    if (!run || x < 0) return null;
    const [first, stop] = range();
    return Math.max(0, Math.min(run.length - 1, first + Math.floor((x / (box.width - LEFT)) * (stop - first))));
  };
  canvas.addEventListener("pointermove", (event) => {
    const query = at(event);
    if (query != null) set({ hover: { query, side: shown().side } });
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
  const { run, zoom } = opened();
  return zoom ? [Math.floor(zoom.queries), Math.min(run.length, Math.ceil(zoom.queries + zoom.span))] : [0, run.length];
}

/** What the curves are to be of, as a name. */
function place() {
  const source = shown();
  return source.run && [source.run.id, ...placeOf(source)].join("/");
}

/** What is of another head, text or query than the one that is looked at is dimmed. */
function dim() {
  const now = place();
  markStale(plots, values !== null && loaded !== now);
  markStale(table, row !== null && row.of !== `${now}/${queryRead()}`);
}

async function load(/** @type {() => void} */ draw) {
  const now = get();
  const { tab, folded } = now;
  const source = shown();
  const { run } = source;
  if (!run || tab !== "readouts" || folded || now.offline) return;
  const query = queryRead();
  const [layer, head] = placeOf(source);
  const key = place();
  if (loaded !== key) {
    const data = await awaitAnswer(api.readouts(run.id, layer, head, "readouts-panel"));
    if (!data) return;
    loaded = key;
    values = data.values;
    dim();
    draw();
  }
  const data = await awaitAnswer(api.row(run.id, layer, head, query, "row-panel"));
  if (!data) return;
  row = { of: `${key}/${query}`, run, query, weights: data.values };
  dim();
  list(row);
}

function paint() {
  const { tab, folded } = get();
  const { run } = shown();
  if (!run || tab !== "readouts" || folded || !values || values.length !== READOUTS.length * run.length) return;
  const box = plots.getBoundingClientRect();
  const [width, height] = [box.width, Math.max(150, box.height - 4)];
  paintReadouts(prepared(canvas, width, height), readoutsDrawing(run, values, width, height));
}

/** All that the drawing needs; also what is exported. */
export function readoutsDrawing(
  /** @type {Run} */ run,
  /** @type {Float32Array} */ along,
  /** @type {number} */ width,
  /** @type {number} */ height,
) {
  const [query, key] = [queryNow(), keyNow()];
  return { values: along, range: range(), width, height, query, key, inks: inks() };
}

/** The strongest keys of the query, from its whole row. */
function list(/** @type {NonNullable<typeof row>} */ { run, query, weights }) {
  const order = strongest(weights, TOP);
  const most = weights[order[0]] || 1;
  let sum = 0;
  const body = make(
    "tbody",
    {},
    ...order.map((key) => {
      sum += weights[key];
      const bar = make("span", { className: "bar" });
      bar.style.width = `${(100 * weights[key]) / most}%`;
      const line = make(
        "tr",
        { onclick: () => change({ query, key }) },
        make("td", { className: "start" }, keyButton(run.labels, key, `weight ${weight(weights[key])}`)),
        make("td", { textContent: away(query - key) }),
        make("td", { className: "wide" }, bar),
        make("td", { textContent: weight(weights[key]) }),
      );
      line.dataset.key = String(key);
      return line;
    }),
    make(
      "tr",
      { className: "sum" },
      make("td", {
        className: "start",
        textContent: `${order.length} of ${plural(run.causal ? query + 1 : run.length, "key")}`,
        colSpan: 3,
      }),
      make("td", { textContent: sum.toFixed(3) }),
    ),
  );
  table.replaceChildren(
    make(
      "table",
      { "aria-label": `Strongest keys of query ${query}` },
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", {
            className: "start",
            textContent: `strongest keys of ${named(run.labels, query, 16)}`,
            colSpan: 3,
          }),
          make("th", { textContent: "weight" }),
        ),
      ),
      body,
    ),
  );
}

const away = (/** @type {number} */ back) => (back < 0 ? `${-back} ahead` : `${back} back`);

/** Places of the greatest numbers, without sorting 100,000 of them. */
function strongest(/** @type {Float32Array} */ weights, /** @type {number} */ most) {
  /** @type {number[]} */
  const best = [];
  for (let k = 0; k < weights.length; k++) {
    if (!(weights[k] > 0) || (best.length === most && weights[k] <= weights[best[most - 1]])) continue;
    let at = best.length;
    while (at > 0 && weights[best[at - 1]] < weights[k]) at--;
    best.splice(at, 0, k);
    if (best.length > most) best.pop();
  }
  return best;
}
