/** What is seen, as files: pictures as PNG and SVG, numbers as CSV, the page as an address. */
import * as api from "./api.js";
import { LONGEST, written } from "./address.js";
import { byId } from "./dom.js";
import { paintMap, paintScale } from "./draw_map.js";
import { gridSize, paintGrid, thumbnail } from "./draw_thumbnail.js";
import { csvRow, short } from "./format.js";
import { READOUTS, ordered, thumbnailsOf } from "./heads.js";
import { activeColumn, columns, scaleNow } from "./map.js";
import { heard } from "./quiet.js";
import { clamp, figuresOf, get, headActive, queryNow, set } from "./store.js";
import { SvgSurface } from "./surface.js";
import { inks } from "./theme.js";

const SHARP = 2; // a PNG is for a page: twice the screen's resolution

export function startExports() {
  const menu = byId("export");
  menu.addEventListener("click", async (event) => {
    const what = event.target.dataset?.export;
    if (!what) return;
    if (what === "link") return copyLink();
    menu.open = false;
    if (!get().run) return set({ problem: "There is no text open yet, so there is nothing to export." });
    await { map: exportMap, heads: exportHeads, row: exportRow, readouts: exportReadouts }[
      what.split("-")[0]
    ](what.split("-")[1]);
  });
  document.addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
    event.stopPropagation();
  });
  menu.addEventListener("toggle", () => {
    byId("link-note").textContent = carries();
  });
}

/** What an address can't carry, said before it is shared. */
function carries() {
  const { run, second, about, compare } = get();
  if (!about?.writes) return "The address opens this recording’s page where the same recording is served.";
  const long = [run, compare === "text" ? second : null].filter(
    (one) => one?.text != null && Array.from(one.text).length > LONGEST,
  );
  return long.length
    ? `The text is longer than ${LONGEST} characters, so the address goes without it: whoever opens it has to open the text again.`
    : "The address holds the text and everything chosen.";
}

async function copyLink() {
  const address = location.href.split("#")[0] + written();
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    byId("link-note").textContent = `Copied. ${carries()}`;
  } catch {
    byId("link-note").textContent =
      `The browser does not allow copying; it is in the address bar. ${carries()}`;
  }
}

const nameOf = (run, { layer, head }) =>
  `layer ${run.layers[layer].index}, head ${run.layers[layer].heads[head]}`;
const fileName = (what, { layer, head }) => `regard-${what}-layer${layer}-head${head}`;

/** Draws on a canvas or into an SVG, and hands the file over. */
async function deliver(kind, name, width, height, draw) {
  if (kind === "svg") {
    const surface = new SvgSurface(width, height);
    draw(surface);
    return save(new Blob([surface.toString()], { type: "image/svg+xml" }), `${name}.svg`);
  }
  const canvas = document.createElement("canvas");
  canvas.width = width * SHARP;
  canvas.height = height * SHARP;
  const context = canvas.getContext("2d");
  context.scale(SHARP, SHARP);
  draw(context);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (blob) save(blob, `${name}.png`);
  else set({ problem: "The browser could not make so large a picture; take the SVG." });
}

function exportMap(kind) {
  const shown = Object.values(columns).filter((column) => !column.root.hidden && column.source().run);
  const top = 34;
  const gap = 24;
  const widths = shown.map(({ place }) => place.width);
  const width = widths.reduce((sum, one) => sum + one + gap, -gap);
  const height = top + Math.max(...shown.map(({ place }) => place.height)) + 44;
  const look = inks();
  return deliver(kind, fileName("map", shown[0].source()), width, height, (surface) => {
    surface.fillStyle = look.paper;
    surface.fillRect(0, 0, width, height);
    let x = 0;
    shown.forEach((column, k) => {
      const { run, layer, head } = column.source();
      surface.save();
      surface.translate(x, top);
      paintMap(surface, column.drawing());
      surface.restore();
      const figures = figuresOf(layer, head, run === get().run ? get().heads : get().headsSecond);
      surface.font = `bold 13px ${look.sans}`;
      surface.fillStyle = look.ink;
      surface.textAlign = "left";
      surface.textBaseline = "alphabetic";
      surface.fillText(
        `${nameOf(run, { layer, head })}${figures ? `: ${figures.name}` : ""}`.replace(/^l/, "L"),
        x + 8,
        20,
      );
      x += widths[k] + gap;
    });
    paintScale(surface, {
      x: shown[0].place.left,
      y: height - 40,
      width: 190,
      scale: scaleNow(),
      inks: look,
    });
  });
}

function exportHeads(kind) {
  if (kind === "csv") return exportHeadsCsv();
  const { run, sort } = get();
  const heads = ordered();
  const widest = Math.max(...run.layers.map(({ heads: all }) => all.length));
  const across = sort === "order" ? widest : Math.min(12, heads.length);
  const cell = 72;
  const { width, height } = gridSize(heads.length, across, cell);
  const chosen = headActive();
  const look = { theme: inks().theme, causal: run.causal, exact: run.length <= 64 };
  const cells = heads.map(({ layer, head }) => ({
    picture: thumbnailsOf(layer) ? thumbnail(thumbnailsOf(layer), head, look) : null,
    name: `${run.layers[layer].index}·${run.layers[layer].heads[head]}`,
    role: figuresOf(layer, head)?.name ?? "",
    chosen: chosen.layer === layer && chosen.head === head,
  }));
  const words = READOUTS.find(([name]) => name === sort)?.[1];
  const title = words ? `Heads by ${words}` : "Heads";
  return deliver(kind, "regard-heads", width, height, (surface) =>
    paintGrid(surface, { cells, across, cell, inks: inks(), title }),
  );
}

const table = (name, header, rows) =>
  save(
    new Blob([[header, ...rows].map((cells) => `${csvRow(cells)}\r\n`).join("")], {
      type: "text/csv;charset=utf-8",
    }),
    `${name}.csv`,
  );

async function exportRow() {
  const source = activeColumn().source();
  const { run, layer, head } = source;
  const query = clamp(queryNow(), run.length);
  const data = await heard(api.row(run.id, layer, head, query, "row-export"));
  if (!data) return;
  table(
    `${fileName("row", source)}-query${query}`,
    ["layer", "head", "query", "query_token", "key", "key_token", "weight"],
    Array.from(data.values, (weight, key) => [
      run.layers[layer].index,
      run.layers[layer].heads[head],
      query,
      run.labels[query],
      key,
      run.labels[key],
      weight,
    ]),
  );
}

async function exportReadouts() {
  const source = activeColumn().source();
  const { run, layer, head } = source;
  const data = await heard(api.readouts(run.id, layer, head, "readouts-export"));
  if (!data) return;
  const of = (n, k) => data.values[n * run.length + k];
  table(
    fileName("readouts", source),
    ["position", "token", "entropy_nats", "distance_tokens", "first_token", "received"],
    run.labels.map((label, k) => [k, label, of(0, k), of(1, k), of(2, k), of(3, k)]),
  );
}

function exportHeadsCsv() {
  const { run } = get();
  table(
    "regard-heads",
    ["layer", "head", "layer_name", "name", "meaning", ...READOUTS.map(([name]) => name)],
    ordered().map(({ layer, head }) => {
      const figures = figuresOf(layer, head);
      return [
        run.layers[layer].index,
        run.layers[layer].heads[head],
        run.layers[layer].name,
        figures?.name ?? "",
        figures?.meaning ?? "",
        ...READOUTS.map(([name]) => figures?.[name] ?? null),
      ];
    }),
  );
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = short(name, 120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
