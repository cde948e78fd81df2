/** A text as it was cut into tokens, and what each attends to, shown right in it. */
import * as api from "./api.js";
import { cutKeys } from "./cut.js";
import { byId, findAll, framed, make, markStale, segments, settled, targetOf } from "./dom.js";
import { paintNeeds } from "./matters.js";
import { plural, sentence, weight } from "./format.js";
import { awaitAnswer } from "./answers.js";
import { drawArcs } from "./arcs.js";
import { drawHairlines } from "./hairlines.js";
import { WORDS, areWeights, greatestOf, strongestOf } from "./quantities.js";
import {
  activeSide,
  change,
  clamp,
  get,
  keyNow,
  placeOf,
  queryNow,
  questionOf,
  set,
  setSide,
  sourceOf,
  subscribe,
} from "./store.js";
import { onThumbnails } from "./thumbnails.js";
import { formerKey, markSwap } from "./swapped.js";
import { hexOf, piecesOf, putTokens } from "./token_text.js";

/** Most tokens that stand on the page at a time; of a longer text, those around the query. */
const MOST = 2400;
/** How many times an even weight one is that has the full ink. */
const MARKED = 8;

export function startText() {
  const mark = segments(
    byId("average"),
    [
      ["head", "head", "The chosen head alone"],
      ["layer", "layer mean", "The mean over the heads of its layer"],
      ["model", "model mean", "The mean over all heads of all layers"],
    ],
    sourceOf().average,
    (average) => change({ average }),
  );
  subscribe("average compare active", () => mark(sourceOf().average));
  new TextView("first", "");
  new TextView("second", "-second");
  subscribe("compare", ({ compare }) => {
    byId("text-second").hidden = compare !== "text";
    byId("page").classList.toggle("texts", compare === "text");
  });
}

class TextView {
  /** @param {SideName} side @param {string} suffix of its elements' names */
  constructor(side, suffix) {
    this.side = side;
    this.root = byId(`tokens${suffix}`);
    this.notes = byId(`notes${suffix}`);
    this.legend = byId(`legend${suffix}`);
    /** The text that stands on the page. @type {Run|null} */
    this.run = null;
    this.first = 0; // of its tokens that do
    this.stop = 0;
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {Set<number>} */
    this.painted = new Set();
    /** @type {HTMLElement|null} */
    this.reached = null;
    this.requests = 0;
    /** @type {{of: string|null, gives: Float32Array|null, takes: Float32Array|null}} of: the question */
    this.weights = { of: "", gives: null, takes: null };
    /** Where it looked most before a word was swapped, and the question that this answers. @type {[string|null, number|null]} */
    this.former = ["", null];
    /** The question that the arcs answer. @type {string|null} */
    this.arcsOf = "";
    this.repaint = framed(() => this.#paint());
    this.placed = 0; // the token around which they were put on the page
    this.revealPlaced = framed(() => this.#reveal(this.placed));
    this.#listen();
    // Where there is less room, or more, what was in sight may be no more.
    new ResizeObserver(() => {
      if (!this.run) return;
      this.#reveal(queryNow(this.headSide));
      this.repaint(); // arcs go from word to word, wherever they are
    }).observe(this.root);
    subscribe("run compare", () => this.#rebuild());
    const soon = settled(12, () => this.#ask()); // a pointer that only passes asks for nothing
    subscribe("hover query key layer head average shows compare active run changes", () => {
      this.repaint();
      soon();
    });
    subscribe("view", () => this.repaint());
    onThumbnails(() => this.repaint()); // the other heads' lines are read from them
    subscribe("query", () => this.#follow());
    subscribe("effects", () => this.#markNeeds());
    subscribe("swap", () => this.run && markSwap(this.run, this.spans, this.first));
    subscribe("shows", () => this.#name());
  }

  /** The side whose head shades it: two heads share one text, and it shows the one used last. */
  get headSide() {
    return get().compare === "text" ? this.side : activeSide();
  }

  source() {
    const source = sourceOf(this.headSide);
    return this.side === "second" && get().compare !== "text" ? { ...source, run: null } : source;
  }

  #listen() {
    const { root } = this;
    const at = (/** @type {Event} */ event) => {
      const token = /** @type {HTMLElement|null} */ (targetOf(event).closest(".token"));
      return token ? Number(token.dataset.at) : null;
    };
    const hover = (/** @type {number} */ query) => set({ hover: { query, side: this.side } });
    root.addEventListener("pointerover", (event) => {
      const query = at(event);
      if (query != null && event.pointerType !== "touch") hover(query);
    });
    root.addEventListener("pointerleave", () => set({ hover: {} }));
    root.addEventListener("click", (event) => {
      const query = at(event);
      if (query == null) return;
      this.#activate();
      // With Shift the token is taken as the key, so that a pair can be chosen in the text alone.
      if (event.shiftKey) change({ key: query, query: this.#locked() }, this.headSide);
      else {
        change({ query }, this.headSide);
        set({ hover: {} });
      }
    });
    root.addEventListener("focusin", (event) => {
      const query = at(event);
      if (query != null && targetOf(event).matches(":focus-visible")) hover(query);
    });
    root.addEventListener("focusout", () => set({ hover: {} }));
    root.addEventListener("keydown", (event) => {
      const query = at(event);
      if (query == null || event.ctrlKey || event.metaKey || event.altKey) return;
      const by = {
        ArrowLeft: -1,
        ArrowRight: 1,
        ArrowUp: -this.#line(query, -1),
        ArrowDown: this.#line(query, 1),
      }[event.key];
      if (by != null && !event.shiftKey) this.#focus(query + by);
      else if (event.key === "Home" || event.key === "End") this.#focus(event.key === "Home" ? 0 : Infinity);
      else if (event.key === "Enter" || event.key === " ") {
        this.#activate();
        change(event.shiftKey ? { key: query, query: this.#locked() } : { query }, this.headSide);
        set({ hover: {} });
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** The words of the view that the text is shaded in. */
  #name() {
    const words = WORDS[get().shows];
    const [gives, takes] = findAll(this.legend, ".words");
    gives.textContent = words.gives;
    takes.textContent = words.takes;
    if (this.side === "first") byId("asks").textContent = words.asks;
  }

  #activate() {
    if (get().compare === "text") set({ active: this.side });
  }

  #locked() {
    return this.source().query ?? queryNow(this.headSide);
  }

  #rebuild() {
    const { run } = this.source();
    this.legend.hidden = !run;
    this.notes.hidden = !run?.notes.length;
    this.notes.textContent = run ? run.notes.map(sentence).join(" ") : "";
    if (run === this.run) return;
    const before = this.run ? this.spans.length : 0;
    this.run = run;
    this.weights = { of: "", gives: null, takes: null };
    if (run) return this.#place(queryNow(this.headSide), before && get().grown ? this.stop : null);
    this.spans = [];
    this.painted = new Set();
    this.root.replaceChildren();
  }

  /** Puts the tokens around a place on the page: all, or as many as it bears. */
  #place(/** @type {number} */ around, /** @type {number|null} */ grownFrom = null) {
    const { run } = this;
    if (!run) return;
    const half = MOST / 2;
    const at = clamp(around, run.length);
    this.first = run.length <= MOST ? 0 : Math.max(0, Math.min(run.length - MOST, at - half));
    this.stop = Math.min(run.length, this.first + MOST);
    const fragment = document.createDocumentFragment();
    if (this.first > 0)
      fragment.append(this.#more(`… ${plural(this.first, "token")} before`, this.first - half), make("br"));
    this.painted = new Set();
    this.spans = putTokens(fragment, run.labels, this.first, this.stop, (k, character) => {
      const span = tokenOf(run, k, character);
      span.classList.toggle("new", grownFrom != null && k >= grownFrom);
      return span;
    });
    if (this.stop < run.length)
      fragment.append(make("br"), this.#more(`… ${plural(run.length - this.stop, "token")} more`, this.stop + half));
    this.root.replaceChildren(fragment);
    this.#markNeeds();
    markSwap(run, this.spans, this.first);
    this.repaint();
    this.placed = at;
    this.revealPlaced(); // in a frame: to know where a token lies, the browser has to lay out all of them
  }

  /** Marks what the next token rests on: that is measured of the first text. */
  #markNeeds() {
    if (this.side === "first") paintNeeds(this.spans, this.first);
    this.legend.classList.toggle("measured", Boolean(get().effects?.keys) && this.side === "first");
  }

  #more(/** @type {string} */ text, /** @type {number} */ around) {
    return make("button", {
      className: "more",
      type: "button",
      textContent: text,
      onclick: () => this.#place(around),
    });
  }

  /** Brings a query that was chosen elsewhere into sight. */
  #follow() {
    const { run, query } = this.source();
    const { hover } = get();
    if (query == null || !run || run !== this.run || (hover.query != null && hover.query !== query)) return;
    if (query < this.first || query >= this.stop) this.#place(query);
    this.#reveal(query);
  }

  /** Scrolls the text alone, so that a token of it is seen: the page stays where it is. */
  #reveal(/** @type {number} */ query) {
    const span = this.spans[query - this.first];
    if (!span) return;
    const [box, panel] = [boxOf(span), this.root.getBoundingClientRect()];
    const past = Math.max(0, box.bottom + box.height - panel.bottom) + Math.min(0, box.top - box.height - panel.top);
    if (past) this.root.scrollTop += past;
  }

  #focus(/** @type {number} */ token) {
    const at = clamp(token, this.run?.length ?? 1);
    if (at < this.first || at >= this.stop) this.#place(at);
    this.spans[at - this.first].focus();
  }

  /** How many tokens on the one above or below lies. */
  #line(/** @type {number} */ query, /** @type {number} */ way) {
    const { spans, first, stop } = this;
    const box = boxOf(spans[query - first]);
    let best = 0;
    let distance = Infinity;
    for (let k = query + way; k >= first && k < stop; k += way) {
      const other = boxOf(spans[k - first]);
      const down = Math.abs(other.top - box.top);
      if (down > 1.9 * box.height) break;
      if (down < box.height * 0.6) continue;
      const off = Math.abs(other.left - box.left);
      if (off < distance) [distance, best] = [off, Math.abs(k - query)];
    }
    return best;
  }

  async #ask() {
    const source = this.source();
    const { run } = source;
    if (!run) return;
    const mine = ++this.requests;
    const of = questionOf(this.headSide);
    const token = queryNow(this.headSide);
    const place = placeOf(source);
    const column = awaitAnswer(api.column(run.id, place, token, `column-${this.side}`));
    const gives = await awaitAnswer(api.row(run.id, place, token, `row-${this.side}`));
    const current = () => mine === this.requests && run === this.run;
    if (!current()) return;
    // Without an answer nothing is shaded: another token's weights would be taken for this one's.
    this.weights = { of, gives: gives?.values ?? null, takes: null };
    setSide(this.side, { strongest: { question: of, key: gives && keyOf(gives.values) } });
    this.repaint();
    const takes = await column; // of a long text it comes with the map: it needs the log-sum-exps of all queries
    if (!current()) return;
    this.weights = { ...this.weights, takes: takes?.values ?? null };
    this.repaint();
    const former = gives && (await formerKey(source, token, gives.values));
    if (!current()) return;
    this.former = [of, former];
    if (former != null) this.repaint();
  }

  /** Shades the tokens. Only those that change are touched: a long text has thousands. */
  #paint() {
    const { run } = this.source();
    if (!run || run !== this.run) return;
    const { first, stop, spans } = this;
    const query = queryNow(this.headSide);
    const key = keyNow(this.headSide);
    const { of, gives, takes } = this.weights;
    const stale = of !== questionOf(this.headSide);
    markStale(this.root, stale); // its style takes the shading away
    const now = new Set(key == null ? [query] : [query, key]);
    // Full ink is for a weight of several times an even one: a head that looks everywhere alike is pale.
    const bounded = areWeights(get().shows);
    const even = bounded ? Math.min(1, MARKED / (run.causal ? query + 1 : run.length)) : 1e-9;
    const mostGives = gives ? greatestOf(gives) : 0;
    // A token attends to itself often: that must not make the others pale.
    const mostTakes = takes ? greatestOf(takes.map((value, k) => (k === query ? 0 : value))) : 0;
    for (let k = first; k < stop; k++) {
      const [give, take] = [Math.abs(gives?.[k] ?? 0), Math.abs(takes?.[k] ?? 0)];
      if ((gives && give > 0.01 * mostGives) || (takes && take > 0.04 * mostTakes)) now.add(k);
    }
    const cut = cutKeys(this.headSide, query);
    for (const k of cut) now.add(k);
    for (const k of this.painted) if (!now.has(k)) style(spans[k - first], 0, 0, false, false, false);
    for (const k of now) {
      const give = gives ? gives[k] / Math.max(mostGives, even) : 0;
      const take = takes && k !== query ? takes[k] / Math.max(mostTakes, even) : 0;
      style(spans[k - first], give, take, k === query, k === key && key !== query, cut.has(k));
    }
    this.painted = now;
    if (this.reached && this.reached !== spans[query - first]) this.reached.tabIndex = -1;
    this.reached = spans[query - first] ?? null;
    if (this.reached) this.reached.tabIndex = 0; // Tab comes to the query; arrows go on from there
    const [ends, taken] = findAll(this.legend, "samp");
    ends.textContent = gives && !stale ? `≤ ${weight(mostGives)}` : "";
    const last = run.causal && query === run.length - 1;
    const arcs = get().view === "opening" && gives && !stale;
    const animate = this.arcsOf !== of;
    // The widest is a weight of 1; of what has no end, the greatest there is.
    const most = bounded ? 1 : mostGives || 1;
    const former = this.former[0] === of ? this.former[1] : null;
    const parts = arcs ? gives.map((entry) => entry / most) : null;
    drawArcs(this.root, spans, parts && { query, parts, first, animate, former });
    this.arcsOf = arcs ? of : "";
    if (this.side === "first") drawHairlines(this.root, spans, get().view === "opening" ? this.headSide : null);
    taken.textContent = takes && !stale ? (last ? "nothing: it is the last" : `≤ ${weight(mostTakes)}`) : "";
  }
}

/** Where a token is seen: the space that it begins with may stay at the end of the line before. */
const boxOf = (/** @type {HTMLElement} */ span) =>
  [...span.getClientRects()].reduce((most, box) => (box.width > most.width ? box : most), new DOMRect());

/** Where the greatest of some entries is, or null where there is none. */
function keyOf(/** @type {Float32Array} */ entries) {
  const key = strongestOf(entries);
  return key < 0 ? null : key;
}

/** A token; of one that is part of a character, its bytes, to stand below that. */
function tokenOf(/** @type {Run} */ run, /** @type {number} */ k, character = "") {
  const { text, label, added } = run.tokens[k];
  const bytes = character && hexOf(label);
  const what = character ? `token ${k}: ${bytes}, of ${character}` : `token ${k}: ${label}`;
  const name = added ? `${what}, added by the model's tokenizer or template` : what;
  return make(
    "span",
    {
      className: added ? "token added" : "token",
      tabIndex: -1,
      role: "button",
      dataset: { at: k },
      "aria-label": name,
    },
    ...piecesOf(bytes || (text.trim() ? text : label)),
  );
}

/**
 * @param {HTMLElement} span @param {number} give @param {number} take @param {boolean} isQuery @param {boolean} isKey
 * @param {boolean} isCut
 */
function style(span, give, take, isQuery, isKey, isCut) {
  if (!span) return;
  span.classList.toggle("query", isQuery);
  span.classList.toggle("key", isKey);
  span.classList.toggle("cut", isCut);
  span.setAttribute("aria-pressed", String(isQuery));
  const deep = Math.round(Math.min(1, Math.abs(give)) ** 0.8 * 58); // ink stays readable on it
  const ink = deep > 0 ? `color-mix(in srgb, var(${give < 0 ? "--changed" : "--accent"}) ${deep}%, transparent)` : "";
  span.style.backgroundColor = ink;
  span.style.setProperty("--gives", ink); // where the word alone is shaded
  const strong = Math.round(Math.min(1, Math.abs(take)) ** 0.8 * 100);
  span.style.borderBottomColor =
    strong > 6 ? `color-mix(in srgb, var(${take < 0 ? "--changed" : "--ink"}) ${strong}%, transparent)` : "";
}
