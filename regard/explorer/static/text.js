/** The text as it was cut into tokens, and what each attends to, shown right in it. */
import * as api from "./api.js";
import { byId, framed, make, segments, settled } from "./dom.js";
import { plural, sentence, weight } from "./format.js";
import { heard } from "./quiet.js";
import { clamp, get, keyNow, queryNow, set, subscribe } from "./store.js";

/** Most tokens that stand on the page at a time; of a longer text, those around the query. */
const MOST = 2400;

let first = 0; // of the tokens on the page
let behind = 0;
/** @type {HTMLElement[]} */
let spans = [];
/** @type {Set<number>} */
let painted = new Set();
/** @type {HTMLElement|null} */
let reached = null;
let asked = 0;
/** @type {{gives: Float32Array|null, takes: Float32Array|null}} */
let weights = { gives: null, takes: null };
let shownRun = "";
const repaint = framed(paint);

export function startText() {
  const root = byId("tokens");
  const mark = segments(
    byId("average"),
    [
      ["head", "head", "The chosen head alone"],
      ["layer", "layer mean", "The mean over the heads of its layer"],
      ["model", "model mean", "The mean over all heads of all layers"],
    ],
    get().average,
    (average) => set({ average }),
  );
  const at = (event) => {
    const token = event.target.closest?.(".token");
    return token ? Number(token.dataset.at) : null;
  };
  root.addEventListener("pointerover", (event) => {
    const query = at(event);
    if (query != null) set({ hover: { query } });
  });
  root.addEventListener("pointerleave", () => set({ hover: {} }));
  root.addEventListener("click", (event) => {
    const query = at(event);
    if (query == null) return;
    // With Shift the token is taken as the key, so that a pair can be chosen in the text alone.
    set(event.shiftKey ? { key: query, query: queryLocked() } : { query, hover: {} });
  });
  root.addEventListener("focusin", (event) => {
    const query = at(event);
    if (query != null && event.target.matches(":focus-visible")) set({ hover: { query } });
  });
  root.addEventListener("focusout", () => set({ hover: {} }));
  root.addEventListener("keydown", (event) => {
    const query = at(event);
    if (query == null || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -line(query, -1), ArrowDown: line(query, 1) }[
      event.key
    ];
    if (by && !event.shiftKey) focusOn(query + by);
    else if (event.key === "Home" || event.key === "End")
      focusOn(event.key === "Home" ? 0 : get().run.length - 1);
    else if (event.key === "Enter" || event.key === " ") set({ query, hover: {} });
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  subscribe("run", rebuild);
  subscribe("average", ({ average }) => mark(average));
  const soon = settled(12, ask); // a pointer that only passes asks for nothing
  subscribe("hover query key layer head average run", () => {
    repaint();
    soon();
  });
  subscribe("query", follow);
}

const queryLocked = () => get().query ?? queryNow();

function rebuild({ run }) {
  if (!run) {
    spans = [];
    byId("tokens").replaceChildren();
    byId("legend").hidden = true;
    return;
  }
  byId("legend").hidden = false;
  byId("notes").hidden = !run.notes.length;
  byId("notes").textContent = run.notes.map(sentence).join(" ");
  const before = shownRun ? spans.length : 0;
  shownRun = run.id;
  weights = { gives: null, takes: null };
  place(queryNow(), before && get().grown ? behind : null);
}

/** Puts the tokens around a place on the page: all, or as many as it bears. */
function place(around, grownFrom = null) {
  const { run } = get();
  const half = MOST / 2;
  first = run.length <= MOST ? 0 : Math.max(0, Math.min(run.length - MOST, around - half));
  behind = Math.min(run.length, first + MOST);
  const fragment = document.createDocumentFragment();
  if (first > 0) fragment.append(more(`… ${plural(first, "token")} before`, first - half), make("br"));
  spans = [];
  painted = new Set();
  for (let k = first; k < behind; k++) {
    const { text, shown } = run.tokens[k];
    const blank = !text.trim();
    // Where a token breaks the line, the text goes on in the next; its sign shows that it does.
    const breaks = shown.includes("↵");
    const span = make("span", {
      className: breaks ? "token breaks" : "token",
      textContent: (blank ? shown : text).replaceAll("↵", "↵\n"),
      tabIndex: -1,
      role: "button",
    });
    span.dataset.at = String(k);
    span.setAttribute("aria-label", `token ${k}: ${shown}`);
    if (grownFrom != null && k >= grownFrom) span.classList.add("new");
    spans.push(span);
    fragment.append(span);
  }
  if (behind < run.length)
    fragment.append(make("br"), more(`… ${plural(run.length - behind, "token")} more`, behind + half));
  byId("tokens").replaceChildren(fragment);
  repaint();
}

const more = (text, around) =>
  make("button", {
    className: "more",
    type: "button",
    textContent: text,
    onclick: () => place(clamp(around, get().run.length)),
  });

/** Brings a query that was chosen elsewhere into sight. */
function follow({ query, run, hover }) {
  if (query == null || !run || (hover.query != null && hover.query !== query)) return;
  if (query < first || query >= behind) place(query);
  const span = spans[query - first];
  const panel = byId("text-panel").getBoundingClientRect();
  const box = span?.getBoundingClientRect();
  if (box && (box.top < panel.top + 40 || box.bottom > panel.bottom - 20))
    span.scrollIntoView({ block: "center" });
}

function focusOn(token) {
  const at = clamp(token, get().run.length);
  if (at < first || at >= behind) place(at);
  spans[at - first].focus();
}

/** How many tokens on the one above or below lies. */
function line(query, way) {
  const box = spans[query - first].getBoundingClientRect();
  let best = 0;
  let distance = Infinity;
  for (let k = query + way; k >= first && k < behind; k += way) {
    const other = spans[k - first].getBoundingClientRect();
    const down = Math.abs(other.top - box.top);
    if (down > 1.9 * box.height) break;
    if (down < box.height * 0.6) continue;
    const off = Math.abs(other.left - box.left);
    if (off < distance) [distance, best] = [off, Math.abs(k - query)];
  }
  return best;
}

/** Which head's weights are shown, as the server takes it. */
export function averaged({ average, layer, head } = get()) {
  return { head: [layer, head], layer: [layer, "mean"], model: ["mean", "mean"] }[average];
}

async function ask() {
  const { run } = get();
  if (!run) return;
  const mine = ++asked;
  const token = queryNow();
  const [layer, head] = averaged();
  const [gives, takes] = await Promise.all([
    heard(api.row(run.id, layer, head, token)),
    heard(api.column(run.id, layer, head, token)),
  ]);
  if (mine !== asked || run !== get().run) return;
  // Without an answer nothing is shaded: another token's weights would be taken for this one's.
  weights = { gives: gives?.values ?? null, takes: takes?.values ?? null };
  repaint();
}

/** Shades the tokens. Only those that change are touched: a long text has thousands. */
function paint() {
  const { run } = get();
  if (!run || run.id !== shownRun) return;
  const query = queryNow();
  const key = keyNow();
  const { gives, takes } = weights;
  const now = new Set([query, key]);
  let [mostGives, mostTakes] = [0, 0];
  for (let k = 0; k < run.length; k++) {
    if (gives) mostGives = Math.max(mostGives, gives[k]);
    // A token attends to itself often: that must not make the others pale.
    if (takes && k !== query) mostTakes = Math.max(mostTakes, takes[k]);
  }
  for (let k = first; k < behind; k++) {
    if ((gives && gives[k] > 0.01 * mostGives) || (takes && takes[k] > 0.04 * mostTakes)) now.add(k);
  }
  for (const k of painted) if (!now.has(k)) style(k, null, 0, 0, false, false);
  for (const k of now) {
    if (k == null) continue;
    const give = gives && mostGives > 0 ? gives[k] / mostGives : 0;
    const take = takes && mostTakes > 0 && k !== query ? takes[k] / mostTakes : 0;
    style(k, query, give, take, k === query, k === key && key !== query);
  }
  painted = now;
  if (reached && reached !== spans[query - first]) reached.tabIndex = -1;
  reached = spans[query - first] ?? null;
  if (reached) reached.tabIndex = 0; // Tab comes to the query; arrows go on from there
  const most = (name, value) => {
    byId(name).textContent = gives ? `≤ ${weight(value)}` : "";
  };
  most("legend-gives", mostGives);
  most("legend-takes", mostTakes);
}

function style(k, query, give, take, isQuery, isKey) {
  const span = spans[k - first];
  if (!span) return;
  span.classList.toggle("query", isQuery);
  span.classList.toggle("key", isKey);
  const deep = Math.round(Math.min(1, give) ** 0.8 * 62);
  span.style.backgroundColor = deep > 0 ? `color-mix(in srgb, var(--accent) ${deep}%, transparent)` : "";
  const strong = Math.round(Math.min(1, take) ** 0.8 * 100);
  span.style.borderBottomColor = strong > 6 ? `color-mix(in srgb, var(--ink) ${strong}%, transparent)` : "";
}
