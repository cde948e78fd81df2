/** Thin lines in the text: the key that each of the other heads attends to most, beneath the arcs of the chosen one. */
import { headName } from "./change_list.js";
import { byId, make } from "./dom.js";
import { quoted, weight } from "./format.js";
import { TOO_SHORT, areWeights, greatestOf, strongestOf } from "./quantities.js";
import { chooseHead, figuresOf, get, headCount, queryNow, sourceOf } from "./store.js";
import { SIZE, areCurrent, thumbnailsOf } from "./thumbnails.js";
import { waysIn } from "./ways.js";

const SVG = "http://www.w3.org/2000/svg";
/** A head without a greater weight looks at no single token, and has no line. */
const FAINT = 0.1;
/** Of more heads, those of the chosen layer alone have lines. */
const MANY = 64;

/**
 * Where a head looks, or what it gets most from: the entry, and its part of the greatest that there may be.
 * @typedef {{layer: number, head: number, key: number, entry: number, part: number}} Look
 */

/**
 * Draws them, from the thumbnails: of a short text these hold every weight, so that no request is made.
 * @param {HTMLElement} root the tokens' box @param {HTMLElement[]} spans @param {SideName|null} side null: none
 */
export function drawHairlines(root, spans, side) {
  root.querySelector("svg.hairlines")?.remove();
  const note = byId("hairlines-note");
  const source = side && sourceOf(side);
  note.hidden = !source?.run;
  if (!source?.run || !side) return;
  const { run } = source;
  const query = queryNow(side);
  const looks = run.length <= SIZE ? looksOf({ ...source, run }, query) : null;
  const rest = run.length > SIZE ? `Lines of the other heads are drawn up to ${SIZE} tokens.` : "";
  note.textContent = looks ? summaryOf(run, looks) : rest;
  const drawn = looks?.filter((one) => one.part >= FAINT && one.key !== query) ?? [];
  if (!drawn.length) return;
  const picture = document.createElementNS(SVG, "svg");
  picture.classList.add("hairlines");
  picture.setAttribute("aria-hidden", "true"); // the note says it, and the grid has every head
  const paths = pathsOf(root, spans, query, drawn);
  drawn.forEach((one, at) => {
    const line = document.createElementNS(SVG, "g");
    line.dataset.head = `${one.layer}/${one.head}`;
    line.dataset.key = String(one.key);
    line.style.setProperty("--weight", String(one.part));
    for (const name of ["seen", "reach"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", paths[at]);
      path.classList.add(name); // the second is wide, so that a pointer meets it
      line.append(path);
    }
    line.addEventListener("pointerenter", () => {
      line.classList.add("on");
      note.replaceChildren(...nameOf(run, source, one));
    });
    line.addEventListener("pointerleave", () => {
      line.classList.remove("on");
      note.textContent = summaryOf(run, looks ?? []);
    });
    line.addEventListener("click", () => chooseHead(one.layer, one.head, side));
    picture.append(line);
  });
  root.prepend(picture);
}

/**
 * Where the other heads look, or null as long as their thumbnails have not come.
 * @param {OpenSource} source @param {number} query @returns {Look[]|null}
 */
function looksOf({ run, layer: chosen, head: own, average }, query) {
  const looks = [];
  for (const [layer, { heads }] of run.layers.entries()) {
    if (headCount(run) > MANY && layer !== chosen) continue;
    const data = [thumbnailsOf("first", layer), thumbnailsOf("second", layer)].find(
      (one) => one && areCurrent(one, run),
    );
    if (!data || data.columns !== run.length) return null;
    for (const head of heads.keys()) {
      if (average === "head" && layer === chosen && head === own) continue;
      const start = (head * data.rows + query) * data.columns;
      const row = data.values.subarray(start, start + data.columns);
      const key = strongestOf(row);
      looks.push({ layer, head, key, entry: row[key] ?? 0 });
    }
  }
  const most = areWeights(get().shows) ? 1 : greatestOf(looks.map(({ entry }) => entry)) || 1;
  return looks.map((one) => ({ ...one, part: Math.abs(one.entry) / most }));
}

/**
 * A line for each, beside those that end at the same word.
 * @param {HTMLElement} root @param {HTMLElement[]} spans @param {number} query @param {Look[]} looks
 */
function pathsOf(root, spans, query, looks) {
  const { wordAt, wayOf } = waysIn(root, spans);
  const start = wordAt(query);
  return looks.map((one) => {
    const same = looks.filter(({ key }) => key === one.key);
    const at = same.indexOf(one) - (same.length - 1) / 2;
    const stop = wordAt(one.key);
    if (!start || !stop) return "";
    const apart = Math.min(4, (0.7 * (stop.right - stop.left)) / same.length);
    const off = Math.min(2, 8 / same.length) * at;
    return wayOf(start, stop, { high: 14 + 2 * off, wide: 1, off, shift: apart * at });
  });
}

/** What the lines are. @param {Run} run @param {Look[]} looks */
function summaryOf(run, looks) {
  if (!looks.length) return "";
  const within = headCount(run) > MANY ? ` of layer ${run.layers[looks[0].layer].index}` : "";
  const heads = looks.length === 1 ? `the other head${within} looks` : `the ${looks.length} other heads${within} look`;
  const what = {
    weight: `where ${heads} most`,
    moved: "what moves most in the other heads",
    toward: "what adds or takes most in the other heads",
    without: `where ${heads} most beside any sink`,
  }[get().shows];
  return `Thin lines: ${what}.`;
}

/** One head, by its number and what it does. @param {Run} run @param {Source} source @param {Look} look */
function nameOf(run, { heads }, { layer, head, key, entry }) {
  const role = figuresOf(layer, head, heads)?.role;
  const name = make("b", {
    textContent: `Head ${headName(run, layer, head)}${role && role !== TOO_SHORT ? `, ${role},` : ""}`,
  });
  const from = quoted(run.labels[key]);
  const what = {
    weight: `looks most at ${from}, with weight ${weight(entry)}`,
    moved: `moves most from ${from}: ${weight(entry)}`,
    toward: `${entry < 0 ? "takes" : "adds"} most from ${from}: ${weight(entry)}`,
    without: `looks most at ${from} beside any sink, with weight ${weight(entry)}`,
  }[get().shows];
  return [name, ` ${what}. Click to see it.`];
}
