/** One head, larger, with its scores: the one under the pointer, else the chosen one, or the mean. */
import * as api from "./api.js";
import { context2d } from "./canvas.js";
import { byId, find, make, markStale, settled } from "./dom.js";
import { paintThumbnail } from "./draw_thumbnail.js";
import { meanOf, placeName } from "./format.js";
import { awaitAnswer } from "./answers.js";
import { SCORES, scoreOf, unitOf, wordsFor } from "./quantities.js";
import { isOff, switchHead } from "./changes.js";
import { colourFor, figuresOf, get, placeOf, sides, sourceOf, subscribe } from "./store.js";
import { themeNow } from "./theme.js";
import { SIZE, areCurrent, onThumbnails, thumbnailsOf } from "./thumbnails.js";
import { requestFor } from "./zoom.js";

const RESTING = 0.3; // the mean weight of a sink, at least

/** @type {{side: SideName, layer: number, head: number}|null} */
let preview = null;
/** @type {{name: string, data: (Floats & {run: string, shows: Shows})|null}} */
let mean = { name: "", data: null };

export function startHeadCard() {
  const ask = settled(40, askMean);
  subscribe("run layer head average shows compare active heads changes", () => {
    showHeadCard();
    ask();
  });
  onThumbnails((side, layer) => {
    const now = preview ?? sourceOf();
    if (side === textSide(now.side) && layer === now.layer) showHeadCard();
  });
  document.addEventListener("inks", showHeadCard);
  subscribe("run layer average compare heads", keepRoom);
}

/** Shows another head for a while; null: the chosen one again. */
export function previewHead(/** @type {typeof preview} */ head) {
  preview = head;
  showHeadCard();
}

/** Where the text of a side is kept: two heads share the first. */
const textSide = (/** @type {SideName} */ side) => (sourceOf(side).run === sourceOf("first").run ? "first" : side);

/** A mean's picture is asked for as a map is: from the weights, not put together from pictures. */
async function askMean() {
  const source = sourceOf();
  const { run } = source;
  if (!run || source.average === "head") return api.end("card");
  const place = placeOf(source);
  const { shows } = get();
  const name = [run.id, ...place].join("/");
  if (mean.name === name) return;
  const data = await awaitAnswer(api.map(run.id, place, requestFor(null, run.length, SIZE), "card"));
  if (!data) return;
  mean = { name, data: { ...data, run: run.id, shows } };
  showHeadCard();
}

function showHeadCard() {
  /** @type {Source} */
  const source = preview ? { ...sourceOf(preview.side), ...preview, average: "head" } : sourceOf();
  const { run, layer, head, average } = source;
  const card = byId("head-card");
  card.hidden = !run;
  if (!run || !run.layers[layer] || head >= run.layers[layer].heads.length) return;
  const canvas = /** @type {HTMLCanvasElement} */ (find(card, "canvas"));
  const figures = average === "head" ? figuresOf(layer, head, source.heads) : meanFigures({ ...source, run });
  const look = { theme: themeNow(), causal: run.causal, exact: run.length <= SIZE, kind: colourFor(run) };
  const data =
    average === "head"
      ? thumbnailsOf(textSide(source.side), layer)
      : mean.name === [run.id, ...placeOf(source)].join("/")
        ? mean.data
        : null;
  canvas.setAttribute("aria-label", `Pattern of ${placeName(run, source)}, small`);
  if (data) paintThumbnail(canvas, data, average === "head" ? head : 0, { ...look, shows: data.shows });
  else context2d(canvas).clearRect(0, 0, canvas.width, canvas.height);
  // The picture and the scores may still be of the text before it grew.
  markStale(card, (data && !areCurrent(data, run)) || (figures && figures.run !== run.id));
  const { title, note } = wordsOf({ ...source, run }, figures);
  find(card, "strong").textContent = title;
  find(card, "p").textContent = note;
  showSwitch();
  find(card, "dl").replaceWith(scores(figures, average));
}

/**
 * What the card says of a head or a mean.
 * @param {OpenSource} source @param {Record<string, any>|null} figures
 */
function wordsOf(source, figures) {
  const { run, average } = source;
  const name = placeName(run, source);
  if (average !== "head") return { title: name, note: `the mean of ${meanOf(run, source)}` };
  return { title: figures ? `${name}: ${figures.role}` : name, note: aboutRole(figures) };
}

/**
 * Gives the card the room of the longest that it says of any head, unseen: the grid above has what is left,
 * and would move under the pointer if the card grew with the head that is looked at.
 */
function keepRoom() {
  /** @type {Map<string, {title: string, note: string}>} */
  const longest = new Map();
  const add = (/** @type {string} */ role, /** @type {{title: string, note: string}} */ words) => {
    const { title, note } = longest.get(role) ?? { title: "", note: "" };
    if (words.title.length + words.note.length > title.length + note.length) longest.set(role, words);
  };
  for (const side of sides()) {
    const source = sourceOf(side);
    const { run, heads } = source;
    if (!run) continue;
    const open = { ...source, run };
    if (source.average !== "head") add(source.average, wordsOf(open, null));
    for (const [layer, all] of heads)
      for (const figures of all)
        if (run.layers[layer] && figures.head < run.layers[layer].heads.length)
          add(figures.role, wordsOf({ ...open, layer, head: figures.head, average: "head" }, figures));
  }
  byId("head-card-room").replaceChildren(
    ...[...longest.values()].map(({ title, note }) =>
      make("div", {}, make("b", { textContent: title }), make("p", { className: "note", textContent: note })),
    ),
  );
}

/** What a head's role means, what the name rests on, and how much of the head's weight rests meanwhile. */
function aboutRole(/** @type {Record<string, any>|null} */ figures) {
  if (!figures) return "";
  const { role, meaning, evidence, resting } = figures;
  const percent = Math.round(100 * resting);
  const words = `rests ${percent > 99 ? "over 99" : percent} %; else: `;
  const rests = resting >= RESTING && role !== "first token" ? words : "";
  return rests + [meaning, evidence].filter(Boolean).join("; ");
}

/** The button that switches the chosen head off, or on again; hidden where nothing can be changed. */
function showSwitch() {
  const { layer, head, average } = sourceOf();
  const button = byId("switch");
  button.hidden = average !== "head" || !get().about?.writes;
  const off = isOff(layer, head);
  button.classList.toggle("on", off);
  button.textContent = off ? "Switch on again" : "Switch off";
  button.title = off ? "Its context is 0 now" : "Make its context 0, and see what becomes of the rest";
  button.onclick = () => switchHead(layer, head);
}

function scores(/** @type {Record<string, any>|null} */ figures, /** @type {Average} */ average) {
  const pairs = make("dl", { className: "pairs" });
  for (const name of SCORES) {
    // A mean's entropy is not the mean of the entropies; the readouts have it.
    const value = average !== "head" && name === "entropy" ? null : figures?.[name];
    const number = make("dd", {
      textContent: figures ? (value == null ? "–" : scoreOf(name, value)) : "…",
      title: value == null && figures ? "does not apply to this text or model" : "",
    });
    // Shares have a bar, so that it is seen which of them are close to each other.
    if (value != null && !unitOf(name)) number.style.setProperty("--share", String(value));
    pairs.append(make("dt", { textContent: [wordsFor(name), unitOf(name)].filter(Boolean).join(", ") }), number);
  }
  return pairs;
}

/** The scores of a mean, as far as they are the means of the heads' scores. */
function meanFigures(/** @type {OpenSource} */ { run, heads, layer, average }) {
  const layers = average === "layer" ? [layer] : run.layers.map((_, at) => at);
  if (!layers.every((at) => heads.has(at))) return null;
  const all = layers.flatMap((at) => heads.get(at) ?? []);
  const means = SCORES.map((name) => [
    name,
    all.every((one) => one[name] != null) ? all.reduce((sum, one) => sum + (one[name] ?? 0), 0) / all.length : null,
  ]);
  const of = all.find((one) => one.run !== run.id) ?? all[0];
  return { ...Object.fromEntries(means), run: of.run };
}
