/** A pattern in a notebook: the map of one head at a time, to be zoomed and read. */
import { picture, scaleFor } from "../colour.js";
import { byId, framed, make } from "../dom.js";
import { hit, layout, paintMap, paintScale } from "../draw_map.js";
import { plural, weight } from "../format.js";
import { listen } from "../gestures.js";
import { prepared } from "../canvas.js";
import { inks, startTheme } from "../theme.js";
import { bounded, moved, scaled } from "../zoom.js";
import { content, cover, weights } from "./data.js";

const { length, side, causal, heads, scale: kind } = content;
const block = length / side; // tokens along a side of a cell
const SCALE = 160; // pixels
const HINT = "drag moves, double click or Ctrl with the wheel zooms";

/** @type {Float32Array} */
let values = new Float32Array(0);
let head = 0;
/** @type {Zoom|null} */
let zoom = null;
/** The cell under the pointer. @type {{query: number, key: number}|null} */
let at = null;
let place = layout(300, 300, length, 6);
/** @type {HTMLCanvasElement|null} */
let image = null;
let scale = scaleFor(kind, 1, true);

const canvas = make("canvas", { role: "img", "aria-label": `Pattern of ${plural(length, "token")}` });
const colours = make("canvas", { role: "img", "aria-label": "Colour scale" });
const hint = make("span", { className: "hint" });
const labels = Array.from({ length }, (_, k) => String(k));

const redraw = framed(() => {
  const box = byId("field").getBoundingClientRect();
  place = layout(box.width, box.height, length, String(length).length);
  const part = values.subarray(head * side * side, (head + 1) * side * side);
  if (!image) {
    let most = 0;
    for (const value of part) most = Math.max(most, value);
    const hidden = causal
      ? (/** @type {number} */ i, /** @type {number} */ j) => Math.floor(j * block) >= Math.ceil((i + 1) * block)
      : undefined;
    const data = { values: part, rows: side, columns: side };
    scale = scaleFor(kind, most, side === length);
    image = picture(data, scale, inks().theme, hidden);
  }
  paintMap(prepared(canvas, place.width, place.height), {
    place,
    inks: inks(),
    zoom,
    length,
    causal,
    pictures: [{ canvas: image, queries: [0, length], keys: [0, length], block }],
    labels,
    margins: null,
    scale,
    query: at?.query ?? null,
    key: at?.key ?? null,
  });
  paintScale(prepared(colours, SCALE, 36), { width: SCALE, scale, inks: inks() });
  hint.textContent = at ? read(part, at) : HINT;
});

/** The weight under the pointer; of a cell of several, their mean. */
function read(/** @type {Float32Array} */ part, /** @type {{query: number, key: number}} */ { query, key }) {
  const cell = (/** @type {number} */ token) => Math.min(side - 1, Math.floor((token + 0.5) / block));
  const value = part[cell(query) * side + cell(key)];
  const hidden = causal && key > query;
  const what = side < length ? "mean weight" : "weight";
  return `query ${query}, key ${key}: ${hidden ? "hidden" : `${what} ${weight(value)}`}`;
}

function change(/** @type {Zoom|null} */ next) {
  zoom = next && bounded(next, length);
  redraw();
}

function start() {
  const choice = make(
    "select",
    {
      "aria-label": "Head",
      onchange: () => {
        head = Number(choice.value);
        image = null;
        redraw();
      },
    },
    ...heads.map((/** @type {string} */ name, /** @type {number} */ k) =>
      make("option", { value: String(k), textContent: String(name) }),
    ),
  );
  const whole = make("button", { type: "button", textContent: "Whole", onclick: () => change(null) });
  byId("tools").append(...(heads.length > 1 ? [make("label", {}, "head ", choice)] : []), whole, colours, hint);
  byId("field").append(canvas);
  const inside = (/** @type {number} */ x, /** @type {number} */ y) => ({
    x: (x - place.left) / place.side,
    y: (y - place.top) / place.side,
  });
  // A wheel belongs to the notebook's own page unless Ctrl is held, too.
  byId("field").addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) event.stopImmediatePropagation();
    },
    { capture: true },
  );
  const look = (/** @type {{query: number, key: number}|null} */ cell) => {
    at = cell;
    redraw();
  };
  listen(canvas, {
    hover: (x, y) => look(hit(place, zoom, length, x, y)),
    leave: () => look(null),
    click: (x, y) => look(hit(place, zoom, length, x, y)),
    pan: (x, y) => change(moved(zoom, length, -x / place.side, -y / place.side)),
    zoom: (factor, x, y) => change(scaled(zoom, length, factor, inside(x, y))),
  });
  document.addEventListener("inks", () => {
    image = null;
    redraw();
  });
  new ResizeObserver(redraw).observe(byId("field"));
}

weights().then((numbers) => {
  values = numbers;
  startTheme();
  start();
  cover();
});
