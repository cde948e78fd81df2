/** What is seen, as files: pictures as PNG and SVG, numbers as CSV. */
import { byId, find, make, targetOf } from "./dom.js";
import { paintMap, paintScale } from "./draw_map.js";
import { paintReadouts } from "./draw_readouts.js";
import { gridSize, heading, paintGrid, thumbnail } from "./draw_thumbnail.js";
import { placeName } from "./format.js";
import { ordered } from "./heads_shown.js";
import { columns } from "./map.js";
import { during } from "./pending.js";
import { readoutsOf } from "./along.js";
import { isDifference } from "./difference.js";
import { wordsFor } from "./quantities.js";
import { readoutsDrawing } from "./readouts.js";
import { colourFor, figuresOf, get, openSourceOf, runOf, set, sourceOf } from "./store.js";
import { SvgSurface, context2d, fill } from "./canvas.js";
import { UNFINISHED, fileName, save, tables } from "./tables.js";
import { inks } from "./theme.js";
import { areCurrent, thumbnailsOf } from "./thumbnails.js";

const SHARP = 2; // a PNG is for a page: twice the screen's resolution

/** A heading, with the view where it is not the weight. */
const viewed = (/** @type {string} */ name) => {
  const { shows, views } = get();
  const title = views?.all.find((view) => view.name === shows)?.title ?? shows;
  return shows === "weight" ? name : `${name} · ${title}`;
};

export function startExports() {
  const menu = byId("export");
  menu.addEventListener("click", async (event) => {
    const what = targetOf(event).dataset?.export;
    if (!what) return;
    menu.open = false;
    if (!runOf("first")) return set({ problem: "There is no text open yet, so there is nothing to export." });
    const [part, kind] = what.split("-");
    const { [part]: write } = /** @type {Record<string, (kind: string) => unknown>} */ (
      kind === "csv" ? tables : pictures
    );
    await during(Promise.resolve(write(kind)));
  });
  document.addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(targetOf(event))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    find(menu, "summary").focus();
    event.stopPropagation();
  });
}

/**
 * Draws on a canvas or into an SVG, and hands the file over.
 * @param {string} kind @param {string} name @param {number} width @param {number} height
 * @param {(surface: Surface) => void} draw
 */
async function deliver(kind, name, width, height, draw) {
  if (kind === "svg") {
    const surface = new SvgSurface(width, height);
    draw(/** @type {any} */ (surface));
    return save(new Blob([surface.toString()], { type: "image/svg+xml" }), `${name}.svg`);
  }
  const canvas = make("canvas", { width: width * SHARP, height: height * SHARP });
  const context = context2d(canvas);
  context.scale(SHARP, SHARP);
  draw(context);
  /** @type {Blob|null} */
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (blob) save(blob, `${name}.png`);
  else set({ problem: "The browser could not make so large a picture; take the SVG." });
}

function exportMap(/** @type {string} */ kind) {
  const seen = Object.values(columns).filter((column) => !column.root.hidden && column.source().run);
  if (!seen.every((column) => column.current())) return set({ problem: UNFINISHED });
  const top = 34;
  const gap = 24;
  const widths = seen.map(({ place }) => place.width);
  const width = widths.reduce((sum, one) => sum + one + gap, -gap);
  const height = top + Math.max(...seen.map(({ place }) => place.height)) + 44;
  const look = inks();
  return deliver(kind, fileName("map", seen[0].openSourceOf()), width, height, (surface) => {
    fill(surface, look.paper, 0, 0, width, height);
    let x = 0;
    seen.forEach((column, k) => {
      const source = column.openSourceOf();
      surface.save();
      surface.translate(x, top);
      paintMap(surface, column.drawing());
      surface.restore();
      const figures = source.average === "head" && figuresOf(source.layer, source.head, source.heads);
      heading(
        surface,
        viewed(`${placeName(source.run, source)}${figures ? `: ${figures.role}` : ""}`),
        x + 8,
        20,
        look,
      );
      const scale = column.scale();
      if (k === 0 || isDifference(column.side)) {
        const { shows } = get();
        paintScale(surface, { x: x + column.place.left, y: height - 40, width: 190, scale, inks: look, shows });
      }
      x += widths[k] + gap;
    });
  });
}

function exportHeads(/** @type {string} */ kind) {
  const source = openSourceOf(get().compare === "text" ? undefined : "first");
  const { run } = source;
  const { sort } = get();
  const heads = ordered(source);
  const widest = Math.max(...run.layers.map(({ heads: all }) => all.length));
  const across = sort === "order" ? widest : Math.min(12, heads.length);
  const cell = 72;
  const { width, height } = gridSize(heads.length, across, cell);
  const chosen = sourceOf();
  const { shows } = get();
  const look = { theme: inks().theme, causal: run.causal, exact: run.length <= 64, kind: colourFor(run), shows };
  const pictured = (/** @type {number} */ layer) => {
    const pictures = thumbnailsOf(source.side, layer);
    return pictures && areCurrent(pictures, run);
  };
  if (!run.layers.every((_, layer) => pictured(layer))) return set({ problem: UNFINISHED });
  const cells = heads.map(({ layer, head }) => ({
    picture: thumbnail(/** @type {Floats} */ (thumbnailsOf(source.side, layer)), head, look),
    name: `${run.layers[layer].index}·${run.layers[layer].heads[head]}`,
    role: figuresOf(layer, head, source.heads)?.role ?? "",
    chosen: chosen.layer === layer && chosen.head === head,
  }));
  const title = sort === "order" ? "Heads" : `Heads by ${wordsFor(sort)}`;
  return deliver(kind, "regard-heads", width, height, (surface) =>
    paintGrid(surface, { cells, across, cell, inks: inks(), title: viewed(title) }),
  );
}

async function exportReadouts(/** @type {string} */ kind) {
  const source = openSourceOf();
  const { run } = source;
  const data = await readoutsOf(source.side, { anew: true });
  if (!data) return;
  const [width, height, edge] = [960, 320, 16];
  const look = inks();
  return deliver(kind, fileName("readouts", source), width + 2 * edge, height + 2 * edge + 24, (surface) => {
    fill(surface, look.paper, 0, 0, width + 2 * edge, height + 2 * edge + 24);
    heading(surface, viewed(placeName(run, source)), edge, edge + 12, look);
    surface.save();
    surface.translate(edge, edge + 24);
    paintReadouts(surface, readoutsDrawing(run, data.values, width, height));
    surface.restore();
  });
}

const pictures = { map: exportMap, heads: exportHeads, readouts: exportReadouts };
