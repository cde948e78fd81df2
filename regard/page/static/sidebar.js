/** Beside the map: the cell under the crosshair, the colour scale, the zoom and the overview. */
import * as api from "./api.js";
import { byId, framed, make, segments, settled } from "./dom.js";
import { paintOverview, paintScale } from "./draw_map.js";
import { count, full, named, placeName, signed, weight } from "./format.js";
import { activeColumn, columns } from "./map.js";
import { awaitAnswer } from "./answers.js";
import { WORDS } from "./quantities.js";
import { isDifference } from "./difference.js";
import {
  colourNow,
  get,
  keyNow,
  placeOf,
  queryNow,
  runOf,
  set,
  sourceOf,
  sideTitle,
  sides,
  strongestKey,
  subscribe,
} from "./store.js";
import { prepared } from "./canvas.js";
import { inks } from "./theme.js";
import { bounded, isWhole, whole } from "./zoom.js";

/** Why a cell has no entry. @type {Partial<Record<Shows, string>>} */
const HIDDEN = {
  weight: "the mask, or a cut, hides this key from this query",
  without: "the mask hides this key from this query, or the head rests on it",
};
const WIDTH = 146; // of the colour scale, in pixels

/**
 * Weights and scores as they came, so that going back and forth does not blink.
 * @type {Map<string, Cell>}
 */
const cells = new Map();

export function startSidebar() {
  const mark = segments(
    byId("colour"),
    [
      ["log", "log", "Four decades below the greatest"],
      ["root", "root", "The square root of the weight: half the ink is a quarter of it"],
      ["linear", "linear", "As much ink as weight"],
    ],
    colourNow(),
    (colour) => set({ colour }),
  );
  byId("zoom-in").onclick = () => activeColumn().zoomBy(2);
  byId("zoom-out").onclick = () => activeColumn().zoomBy(1 / 2);
  byId("zoom-whole").onclick = () => activeColumn().glideTo("whole");
  byId("zoom-cell").onclick = () => activeColumn().glideTo("cell");
  byId("fit").onclick = () => set({ fit: !get().fit });
  overviewMoves(byId("overview"));
  const ask = settled(70, askCell);
  const draw = framed(drawSidebar);
  subscribe("hover query key layer head average shows run compare active strongest", () => {
    showCell();
    ask();
  });
  subscribe("cell", showCell);
  subscribe("colour fit difference strongest zoom cell run shows compare active hover key query", () => {
    mark(colourNow());
    draw();
  });
  new ResizeObserver(draw).observe(byId("page"));
  for (const event of ["inks", "pictures", "sketched"]) document.addEventListener(event, draw);
}

/** @returns {Spot} The cell that a side is at: where no key is chosen, the strongest of its query. */
function spot(/** @type {SideName} */ side) {
  const source = sourceOf(side);
  const chosen = keyNow(side);
  const [query, key] = [queryNow(side), chosen ?? strongestKey(side)];
  const place = placeOf(source);
  const name = source.run && key != null ? `${source.run.id}/${place.join("/")}/${query}/${key}` : "";
  return { ...source, column: columns[side], query, key, chosen, place, name, cell: cells.get(name) };
}

async function askCell() {
  await Promise.all(sides().map((side) => askOne(spot(side))));
  const spots = sides().map(spot);
  // Only what has come: the same question asked twice is answered once, after the first gave way.
  set({
    cell: spots.map(({ name, cell }) => cell && name).join(),
    spoken: spots.map(spoken).filter(Boolean).join("; "),
  });
}

async function askOne(/** @type {Spot} */ { side, run, query, key, place, name, cell }) {
  if (!name || cell || !run || key == null) return;
  const answer = await awaitAnswer(api.cell(run.id, place, query, key, `cell-${side}`));
  if (!answer) return;
  if (cells.size > 2000) cells.clear();
  cells.set(name, answer);
}

/** What a voice says of the cell under the crosshair: the map's text alternative. */
function spoken(/** @type {Spot} */ at, /** @type {number} */ k, /** @type {Spot[]} */ all) {
  const { run, query, key, cell } = at;
  if (!run) return "";
  const side = all.length > 1 ? `${sideTitle(at.side)}, ${placeName(run, at)}: ` : "";
  if (key == null) return `${side}query ${named(run.labels, query)}`;
  if (!cell) return "";
  const score = cell.score == null ? "" : `, score ${signed(cell.score)}`;
  const what =
    cell.visible === false ? "hidden by the mask" : `${WORDS[get().shows].entry} ${weight(cell.weight)}${score}`;
  return `${side}query ${named(run.labels, query)}, key ${named(run.labels, key)}: ${what}`;
}

/** The weight as the picture has it, where each of its pixels is one: there before the server answers. */
function seen(/** @type {Pick<Spot, "column"|"query"|"key">} */ { column, query, key }) {
  const data = column.sharp;
  if (
    key == null ||
    !data?.exact ||
    !column.current() ||
    query < data.queries[0] ||
    query >= data.queries[1] ||
    key < data.keys[0] ||
    key >= data.keys[1]
  )
    return null;
  return data.values[(query - data.queries[0]) * data.columns + (key - data.keys[0])];
}

function showCell() {
  const cross = byId("cross");
  const spots = sides()
    .map(spot)
    .filter(({ run }) => run);
  const lists =
    get().compare === "text" ? spots.map((at) => facts([at], sideName(at))) : spots.length ? [facts(spots)] : [];
  const free = spots.length === 1 && spots[0].chosen == null && spots[0].key != null;
  const note = "the strongest key of this query; point at another";
  cross.replaceChildren(...lists, ...(free ? [make("p", { className: "note", textContent: note })] : []));
}

const sideName = (/** @type {Spot} */ { side }) => sideTitle(side);

/** The query, the key, and what lies between them: on one side, or under two heads of one text. */
function facts(/** @type {Spot[]} */ spots, heading = "") {
  const [{ query, key }] = spots;
  const run = /** @type {Run} */ (spots[0].run);
  const list = make("dl", { className: "pairs" });
  const add = (/** @type {string} */ name, /** @type {string} */ value, { title = "", strong = false } = {}) =>
    list.append(
      make("dt", { textContent: name }),
      make("dd", { textContent: value, title, className: strong ? "strong" : "" }),
    );
  const token = (/** @type {number} */ k) => named(run.labels, k);
  add(heading ? `${heading} query` : "query", token(query), { title: run.labels[query] });
  add("key", key == null ? "–" : token(key), { title: key == null ? "" : run.labels[key] });
  for (const at of spots) {
    const { cell, average } = at;
    const exact = cell?.weight ?? seen(at);
    const hidden = cell?.visible === false || (run.causal && key != null && key > query);
    const side = spots.length > 1 ? ` ${sideName(at)}` : "";
    const { entry } = WORDS[get().shows];
    add(`${average === "head" ? entry : "mean"}${side}`, hidden ? "hidden" : exact == null ? "–" : weight(exact), {
      strong: true,
      title: hidden ? (HIDDEN[get().shows] ?? HIDDEN.weight) : exact == null ? "" : full(exact),
    });
    add(`score${side}`, average === "head" && cell ? signed(cell.score, 3) : "–", {
      title: average === "head" ? "what softmax is taken of" : "a score is one head’s; a mean of weights has none",
    });
  }
  return list;
}

function drawSidebar() {
  byId("sidebar").hidden = !runOf("first");
  if (!runOf("first")) return;
  const column = activeColumn();
  const scale = column.scale();
  const at = spot(column.side);
  const weights = [at, ...(isDifference(column.side) ? [spot("first")] : [])].map(
    (one) => one.cell?.weight ?? seen(one),
  );
  const [now, before = 0] = weights;
  const value = at.key == null || now == null || before == null ? null : now - before;
  const canvas = byId("scale");
  paintScale(prepared(canvas, WIDTH, 36), { width: WIDTH, scale, inks: inks(), shows: get().shows, value });
  canvas.setAttribute(
    "aria-label",
    `Colour scale, ${scale.kind}, from ${scale.signed ? signed(-scale.high, 6) : weight(scale.low)} to ${weight(scale.high)}`,
  );
  const source = column.source();
  if (!source.run) return;
  const all = isWhole(source.zoom, source.run.length);
  const overview = byId("overview");
  overview.hidden = all;
  byId("zoom-whole").disabled = all;
  byId("zoom-out").disabled = all;
  byId("fit").disabled = all;
  byId("fit").setAttribute("aria-pressed", String(get().fit));
  if (!all) {
    const size = 130;
    const picture = column.coarse ? column.pictureOf(column.coarse, scale) : null;
    paintOverview(prepared(overview, size, size), {
      size,
      picture,
      zoom: source.zoom,
      length: source.run.length,
      inks: inks(),
    });
  }
  const { length } = source.run;
  const { queries, keys, span } = source.zoom ?? whole(length);
  const range = (/** @type {number} */ first) =>
    `${count(Math.floor(first))}–${count(Math.min(length, Math.ceil(first + span)) - 1)}`;
  byId("zoom-note").textContent = all
    ? `all ${count(source.run.length)} × ${count(source.run.length)}${cellsOf(column)}`
    : `queries ${range(queries)}, keys ${range(keys)}${cellsOf(column)}`;
}

/** What a cell of the map is, where it is not one weight. */
function cellsOf(/** @type {import("./map.js").MapColumn} */ { sharp, coarse, sketching, asking }) {
  const comes = sketching || asking.sharp;
  if (!sharp) return coarse ? `; a sketch from some queries${comes ? ", all are being read" : ""}` : "";
  return sharp.exact ? "" : `; a cell is the mean of ${sharp.block} × ${sharp.block}`;
}

/** Clicking or dragging on the overview brings the window there. */
function overviewMoves(/** @type {HTMLCanvasElement} */ canvas) {
  const move = (/** @type {PointerEvent} */ event) => {
    const column = activeColumn();
    const { run, zoom } = column.source();
    if (!run || !zoom) return;
    const box = canvas.getBoundingClientRect();
    const at = (/** @type {number} */ part) => part * run.length - zoom.span / 2;
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
