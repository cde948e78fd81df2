/** A recording in a notebook: its heads as one drawing. */
import { byId, framed, make } from "../dom.js";
import { gridSize, paintGrid, thumbnail } from "../draw_thumbnail.js";
import { prepared } from "../canvas.js";
import { inks, startTheme } from "../theme.js";
import { content, cover, weights } from "./data.js";

const { size, causal, exact, heads, across, scale, title } = content;
const CELL = 84; // pixels of a thumbnail, at most
const LEAST = 34;

/** @type {Float32Array} */
let values = new Float32Array(0);
let cell = CELL;
const canvas = make("canvas", { role: "img", "aria-label": title });

const redraw = framed(() => {
  const room = document.documentElement.clientWidth - 24;
  cell = Math.max(LEAST, Math.min(CELL, Math.floor((room + 10) / across) - 10));
  const { width, height } = gridSize(heads.length, across, cell);
  const data = { values, rows: size, columns: size };
  const cells = heads.map((/** @type {{name: string, role: string}} */ { name, role }, /** @type {number} */ k) => ({
    picture: thumbnail(data, k, { theme: inks().theme, causal, exact, kind: scale }),
    name,
    role,
    chosen: false,
  }));
  paintGrid(prepared(canvas, width, height), { cells, across, cell, inks: inks(), title });
});

weights().then((numbers) => {
  values = numbers;
  byId("field").append(canvas);
  startTheme();
  document.addEventListener("inks", redraw);
  new ResizeObserver(redraw).observe(document.documentElement);
  cover();
});
