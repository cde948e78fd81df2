/** Beside the map: the cell under the crosshair, the colour scale, the zoom and the overview. */
import * as api from "./api.js";
import { scaleFor } from "./colour.js";
import { byId, framed, make, segments, settled } from "./dom.js";
import { paintOverview, paintScale } from "./draw_map.js";
import { count, named, signed, weight } from "./format.js";
import { activeColumn, columns, scaleNow } from "./map.js";
import { heard } from "./quiet.js";
import { get, keyNow, queryNow, set, subscribe } from "./store.js";
import { prepared } from "./surface.js";
import { inks } from "./theme.js";
import { bounded, isWhole, whole } from "./zoom.js";

/** Weights and scores as they came, so that going back and forth does not blink. */
const cells = new Map();

export function startRail() {
  const mark = segments(
    byId("colour"),
    [
      ["log", "log", "Four decades below the greatest"],
      ["linear", "linear", ""],
    ],
    get().colour,
    (colour) => set({ colour }),
  );
  byId("zoom-in").onclick = () => activeColumn().zoomBy(2);
  byId("zoom-out").onclick = () => activeColumn().zoomBy(1 / 2);
  byId("zoom-whole").onclick = () => activeColumn().zoomTo(null);
  overviewMoves(byId("overview"));
  const ask = settled(70, askCell);
  const draw = framed(drawRail);
  subscribe("hover query key layer head other run second compare", () => {
    showCell();
    ask();
  });
  subscribe("cell", showCell);
  subscribe("colour zoom zoomSecond cell run second compare active hover key query", () => {
    mark(get().colour);
    draw();
  });
  new ResizeObserver(draw).observe(byId("page"));
  for (const event of ["inks", "pictures"]) document.addEventListener(event, draw);
}

/** The columns to read numbers from. */
const shown = () => (get().compare === "off" ? [columns.first] : [columns.first, columns.second]);

const nameOf = (column, query, key) => {
  const { run, layer, head } = column.source();
  return run && query < run.length && key < run.length ? `${run.id}/${layer}/${head}/${query}/${key}` : "";
};

async function askCell() {
  const [query, key] = [queryNow(), keyNow()];
  if (key == null || !get().run) return;
  // One after the other: they share a view, and a newer cell ends both.
  for (const column of shown()) {
    const name = nameOf(column, query, key);
    if (!name || cells.has(name)) continue;
    const { run, layer, head } = column.source();
    const cell = await heard(api.cell(run.id, layer, head, query, key));
    if (!cell) return;
    if (cells.size > 2000) cells.clear();
    cells.set(name, cell);
  }
  const cell = cells.get(nameOf(columns.first, query, key));
  set({ cell: { ...cell, query, key }, spoken: spoken(cell, query, key) });
}

function spoken(cell, query, key) {
  if (!cell) return "";
  const { labels } = get().run;
  const what =
    cell.visible === false
      ? "hidden by the mask"
      : `weight ${weight(cell.weight)}, score ${signed(cell.score)}`;
  return `query ${named(labels, query)}, key ${named(labels, key)}: ${what}`;
}

/** The weight as the picture has it, where each of its pixels is one: there before the server answers. */
function seen(column, query, key) {
  const data = column.sharp;
  if (
    !data?.exact ||
    query < data.queries[0] ||
    query >= data.queries[1] ||
    key < data.keys[0] ||
    key >= data.keys[1]
  )
    return null;
  return data.values[(query - data.queries[0]) * data.columns + (key - data.keys[0])];
}

function showCell() {
  const { run } = get();
  const cross = byId("cross");
  if (!run) return cross.replaceChildren();
  const [query, key] = [queryNow(), keyNow()];
  const list = make("dl", { className: "pairs" });
  const add = (name, value, { title = "", strong = false } = {}) =>
    list.append(
      make("dt", { textContent: name }),
      make("dd", { textContent: value, title, className: strong ? "strong" : "" }),
    );
  const token = (k) => named(run.labels, k);
  add("query", token(query), { title: run.labels[query] });
  add("key", key == null ? "–" : token(key), { title: key == null ? "" : run.labels[key] });
  shown().forEach((column, k, all) => {
    const cell = key == null ? null : cells.get(nameOf(column, query, key));
    const exact = key == null ? null : (cell?.weight ?? seen(column, query, key));
    const hidden = cell?.visible === false || (run.causal && key != null && key > query);
    const side = all.length > 1 ? [" left", " right"][k] : "";
    add(`weight${side}`, hidden ? "hidden" : exact == null ? "–" : weight(exact), {
      strong: true,
      title: hidden ? "the mask hides this key from this query" : String(exact ?? ""),
    });
    add(`score${side}`, cell ? signed(cell.score, 3) : "–", { title: "scaled, before the mask" });
  });
  cross.replaceChildren(list);
}

function drawRail() {
  const { run } = get();
  byId("rail").hidden = !run;
  if (!run) return;
  const scale = scaleNow();
  const column = activeColumn();
  const [query, key] = [queryNow(), keyNow()];
  const value =
    key == null
      ? null
      : (cells.get(nameOf(columns.first, query, key))?.weight ?? seen(columns.first, query, key));
  const width = byId("page").clientWidth <= 1180 ? 130 : 146;
  const canvas = byId("scale");
  paintScale(prepared(canvas, width, 36), { width, scale, inks: inks(), value });
  canvas.setAttribute(
    "aria-label",
    `Colour scale, ${scale.kind}, from ${weight(scale.low)} to ${weight(scale.high)}`,
  );
  const source = column.source();
  if (!source.run) return;
  const all = isWhole(source.zoom, source.run.length);
  const overview = byId("overview");
  overview.hidden = all;
  byId("zoom-whole").disabled = all;
  byId("zoom-out").disabled = all;
  const size = Math.min(width, 130);
  if (!all) {
    const picture = column.coarse ? column.pictureOf(column.coarse, scaleFor(scale.kind, column.coarse.greatest, column.coarse.exact)) : null;
    paintOverview(prepared(overview, size, size), {
      size,
      picture,
      zoom: source.zoom,
      length: source.run.length,
      inks: inks(),
    });
  }
  const { queries, keys, span } = source.zoom ?? whole(source.run.length);
  const range = (first) =>
    `${count(Math.floor(first))}–${count(Math.min(source.run.length, Math.ceil(first + span)) - 1)}`;
  const means = column.sharp && !column.sharp.exact ? "; a pixel is a mean" : "";
  byId("zoom-note").textContent = all
    ? `all ${count(source.run.length)} × ${count(source.run.length)}${means}`
    : `queries ${range(queries)}, keys ${range(keys)}${means}`;
}

/** Clicking or dragging on the overview brings the window there. */
function overviewMoves(canvas) {
  const move = (event) => {
    const column = activeColumn();
    const { run, zoom } = column.source();
    if (!run || !zoom) return;
    const box = canvas.getBoundingClientRect();
    const at = (part) => part * run.length - zoom.span / 2;
    column.zoomTo(
      bounded(
        {
          span: zoom.span,
          queries: at((event.clientY - box.top) / box.height),
          keys: at((event.clientX - box.left) / box.width),
        },
        run.length,
      ),
    );
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && move(event));
}
