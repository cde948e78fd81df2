/** A head's readouts along the text, and the strongest keys of the query. */
import * as api from "./api.js";
import { byId, framed, make, settled } from "./dom.js";
import { paintAlong } from "./draw_bars.js";
import { end, named, signed, weight } from "./format.js";
import { activeColumn } from "./map.js";
import { heard } from "./quiet.js";
import { clamp, get, keyNow, queryNow, queryRead, set, subscribe } from "./store.js";
import { prepared } from "./surface.js";
import { inks } from "./theme.js";

/** As the server sends them: name, unit, what they mean. */
export const ALONG = [
  ["entropy", "nats", "how widely each query spreads its weight"],
  ["distance", "tokens", "how far back each query looks, on average"],
  ["weight on the first token", "", "of each query"],
  ["received", "", "what each key receives from all queries"],
];
const TOP = 12;
const LEFT = 128;

let values = null;
let row = null;
let shown = "";
let canvas = null;
let table = null;

export function startReadouts() {
  canvas = make("canvas", {
    tabIndex: 0,
    role: "img",
    "aria-label": "Readouts along the text. Arrows move the query.",
  });
  const plots = make("div", { className: "plots" }, canvas);
  table = make("div");
  byId("readouts").append(make("div", { className: "along" }, plots, table));
  const draw = framed(paint);
  const ask = settled(60, () => load(draw));
  subscribe("run second layer head other compare active query hover tab folded", ask);
  subscribe("hover query key tab zoom", draw);
  document.addEventListener("inks", draw);
  new ResizeObserver(draw).observe(plots);
  const at = (event) => {
    const { run } = activeColumn().source();
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left - LEFT;
    if (!run || x < 0) return null;
    const [first, behind] = range();
    return Math.max(
      0,
      Math.min(run.length - 1, first + Math.floor((x / (box.width - LEFT)) * (behind - first))),
    );
  };
  canvas.addEventListener("pointermove", (event) => {
    const query = at(event);
    if (query != null) set({ hover: { query } });
  });
  canvas.addEventListener("pointerleave", () => set({ hover: {} }));
  canvas.addEventListener("click", (event) => {
    const query = at(event);
    if (query != null) set({ query, hover: {} });
  });
}

/** All tokens, or those of the map's window once it is zoomed: the same stretch in both. */
function range() {
  const { run, zoom } = activeColumn().source();
  return zoom
    ? [Math.floor(zoom.queries), Math.min(run.length, Math.ceil(zoom.queries + zoom.span))]
    : [0, run.length];
}

async function load(draw) {
  const now = get();
  const { tab, folded } = now;
  const { run, layer, head } = activeColumn().source();
  if (!run || tab !== "readouts" || folded || now.offline) return;
  const query = clamp(queryRead(now), run.length);
  const key = `${run.id}/${layer}/${head}`;
  if (shown !== key) {
    const data = await heard(api.readouts(run.id, layer, head, "readouts-band"));
    if (!data) return;
    shown = key;
    values = data.values;
    draw();
  }
  const data = await heard(api.row(run.id, layer, head, query, "row-band"));
  if (!data) return;
  row = { run, query, weights: data.values };
  list();
}

function paint() {
  const { tab, folded } = get();
  const { run } = activeColumn().source();
  if (!run || tab !== "readouts" || folded || !values || values.length !== 4 * run.length) return;
  const box = canvas.parentElement.getBoundingClientRect();
  const [width, height] = [box.width, Math.max(150, box.height - 4)];
  const surface = prepared(canvas, width, height);
  const tall = height / 4;
  const [first, behind] = range();
  const query = clamp(queryNow(), run.length);
  ALONG.forEach(([name, unit], n) => {
    const part = values.subarray(n * run.length, (n + 1) * run.length);
    let most = 0;
    for (const value of part.subarray(first, behind)) if (value > most) most = value;
    const y = n * tall + 4;
    const mark = n === 3 ? (keyNow() ?? query) : query;
    const at = mark >= first && mark < behind ? mark - first : null;
    paintAlong(surface, {
      values: part.subarray(first, behind),
      x: LEFT,
      y,
      width: width - LEFT,
      height: tall - 8,
      most,
      inks: inks(),
      at,
    });
    surface.textAlign = "left";
    surface.textBaseline = "alphabetic";
    surface.font = `12px ${inks().sans}`;
    surface.fillStyle = inks().ink;
    surface.fillText(n === 2 ? "on the first token" : name, 0, y + 11);
    surface.font = `11px ${inks().sans}`;
    surface.fillStyle = inks().soft;
    surface.fillText(`0 … ${end(Number(most.toPrecision(2)))} ${unit}`, 0, y + 25);
    surface.fillStyle = inks().accent;
    surface.font = `11px ${inks().mono}`;
    surface.fillText(`${mark}: ${n === 1 ? signed(part[mark], 1) : weight(part[mark])}`, 0, y + 39);
  });
}

/** The strongest keys of the query, from its whole row. */
function list() {
  const { run, query, weights } = row;
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
        { onclick: () => set({ query, key }) },
        make(
          "td",
          { className: "start", title: run.labels[key] },
          make("i", { textContent: `${key} ` }),
          run.labels[key] === String(key) ? "" : run.labels[key],
        ),
        make("td", { textContent: `${query - key} back` }),
        make("td", { className: "wide" }, bar),
        make("td", { textContent: weight(weights[key]) }),
      );
      line.dataset.key = String(key);
      return line;
    }),
    make(
      "tr",
      { className: "sum" },
      make("td", { className: "start", textContent: `${order.length} of ${query + 1} keys`, colSpan: 3 }),
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

/** Places of the greatest numbers, without sorting 100,000 of them. */
function strongest(weights, most) {
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
