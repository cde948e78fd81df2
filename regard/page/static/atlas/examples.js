/** A head's examples: text with arcs to the strongest links, in lists that are chosen by what they are sorted by. */
import { drawArcs } from "../arcs.js";
import { framed, make, segments } from "../dom.js";
import { count, isolated, plural, said, signed, weight } from "../format.js";
import { WORDS, areWeights, greatestOf } from "../quantities.js";
import { hexOf, piecesOf, putTokens } from "../token_text.js";
import { about, percent } from "./facts.js";

/** @type {Record<AtlasList, [title: string, meaning: string]>} */
const LISTS = {
  moved: ["moved", "The positions at which most arrives: weight times the length of the value, beside the sinks."],
  received: ["received", "The keys that are looked at most; arcs go to the queries that look at them."],
  effect: ["effect", "The positions at which the log-probability of the document changes most with the head off"],
  deciles: ["tenths", "From the highest to the lowest tenth of all rows, by their largest weight beside the sinks."],
  sample: ["sample", "A uniform sample of all rows: what the head does at a usual token."],
};
const NAMES = /** @type {AtlasList[]} */ (Object.keys(LISTS));

/** @typedef {"weight"|"moved"} Entry */

/** What an arc stands for. */
let entry = /** @type {Entry} */ ("weight");

/** The section of the examples. */
export function startExamples(/** @type {AtlasDetails} */ details) {
  const list = make("ol", { id: "list" });
  const meaning = make("p", { id: "list-meaning", className: "note", role: "status" });
  const legend = make("p", { className: "legend" });
  /** @type {(() => void)[]} */
  let draws = [];
  /** @type {AtlasList} */
  let chosen = NAMES.find((name) => details.examples[name]?.length) ?? "moved";
  const show = () => {
    const examples = details.examples[chosen] ?? [];
    meaning.textContent = meaningOf(chosen, examples.length);
    legend.replaceChildren(...legendOf(chosen));
    legend.hidden = !examples.length;
    const made = examples.map((one) => exampleOf(one, chosen, details));
    list.replaceChildren(...made.map(({ root }) => root));
    draws = made.map(({ draw }) => draw);
    draw();
  };
  const draw = framed(() => {
    for (const one of draws) one();
  });
  const lists = make("div", { id: "lists", role: "radiogroup", "aria-label": "Examples, by what they are sorted by" });
  const markList = segments(
    lists,
    NAMES.map((name) => [name, LISTS[name][0], LISTS[name][1]]),
    chosen,
    (name) => {
      chosen = name;
      markList(name);
      show();
    },
  );
  const entries = make("div", { id: "entries", role: "radiogroup", "aria-label": "What the arcs are" });
  const markEntry = segments(
    entries,
    [
      ["weight", "weight", "Where a head looks: the weight that a token gives each key"],
      ["moved", "moved", "What arrives: the weight times the length of the key’s value behind W_O"],
    ],
    entry,
    (name) => {
      entry = name;
      markEntry(name);
      show();
    },
  );
  new ResizeObserver(draw).observe(list);
  show();
  return make(
    "section",
    { id: "shown", "aria-label": "Examples" },
    make(
      "div",
      { className: "row choices" },
      make("h3", { textContent: "Where does it look?" }),
      make("span", { className: "choice" }, "by ", lists),
      make("span", { className: "choice" }, "arcs ", entries),
    ),
    meaning,
    legend,
    list,
  );
}

function meaningOf(/** @type {AtlasList} */ name, /** @type {number} */ many) {
  const [, meaning] = LISTS[name];
  if (name !== "effect") return many ? meaning : `${meaning} Not measured: there is no example.`;
  const sample = about.effects
    ? `, to first order; of the sample for effects, ${plural(about.effects.documents, "document")}.`
    : ", to first order, in a sample of the documents.";
  return many ? `${meaning}${sample}` : `${meaning}${sample} Not measured: no document of the sample is there.`;
}

/** @returns {Node[]} */
function legendOf(/** @type {AtlasList} */ name) {
  const { gives, takes } = WORDS[entry];
  const one = name === "received" ? ["the key", takes, "at-key"] : ["the query", gives, "at-query"];
  return [
    make("span", {}, make("i", { className: `swatch ${one[2]}` }), one[0]),
    make("span", {}, make("i", { className: "swatch gives" }), one[1]),
  ];
}

/** A token as it is shown: of one that is white space alone, its signs. */
const labelOf = (/** @type {string} */ token) => (token.trim() ? token : token.replaceAll(" ", "␣"));

/**
 * An example, and what draws its arcs once it has its place.
 * @param {AtlasExample} example @param {AtlasList} list @param {AtlasDetails} details
 */
function exampleOf(example, list, { sources }) {
  const [source, position, start, joined, , , , , , , links] = example;
  const tokens = joined.split("\n");
  const at = position - start;
  const sizes = links.map((link) => link[entry === "weight" ? 1 : 2] ?? 0);
  // The widest arc is a weight of 1; of what has no end, the greatest there is.
  const most = areWeights(entry) ? 1 : greatestOf(sizes) || 1;
  const parts = new Float32Array(tokens.length);
  links.forEach(([place], k) => {
    if (place - start in tokens) parts[place - start] = sizes[k] / most;
  });
  const order = [...links.keys()].sort((a, b) => Math.abs(sizes[b]) - Math.abs(sizes[a]));
  // As high as the highest arc that may begin in the first line.
  const text = make("div", { className: "tokens", style: { paddingTop: `${14 + 28 * greatestOf(parts)}px` } });
  const spans = putTokens(text, tokens, 0, tokens.length, (k, character) => {
    const token = tokens[k];
    const link = links.find(([place]) => place === start + k);
    const span = make("span", {
      className: k === at ? `token ${list === "received" ? "key" : "query"}` : "token",
      title: `token ${start + k}${link ? `: weight ${weight(link[1])}, moved ${weight(link[2])}` : ""}`,
    });
    span.append(...piecesOf((character && hexOf(token)) || labelOf(token)));
    const size = Math.min(1, Math.abs(parts[k]));
    if (link && k !== at)
      span.style.setProperty(
        "--gives",
        `color-mix(in srgb, var(--accent) ${Math.round(58 * size ** 0.8)}%, transparent)`,
      );
    return span;
  });
  const root = make(
    "li",
    { className: "example" },
    make("p", { className: "note of" }, ...factsOf(example, list, sources[source])),
    text,
    make(
      "ul",
      { className: "links", "aria-label": "Strongest links" },
      ...order.map((k) => linkOf(links[k], sizes[k], example, tokens)),
    ),
  );
  return { root, draw: () => drawArcs(text, spans, { query: at, parts, first: 0, animate: false }) };
}

/** Where an example stands, and its numbers. @returns {(Node|string)[]} */
function factsOf(/** @type {AtlasExample} */ example, /** @type {AtlasList} */ list, /** @type {string} */ source) {
  const [, position, , , value, rest, moved, toward, effect, decile] = example;
  const own = {
    moved: null,
    received: value == null ? null : `received ${weight(value)}`,
    effect: null,
    deciles: decile == null ? null : `tenth ${decile} of 10${value == null ? "" : `, largest weight ${weight(value)}`}`,
    sample: null,
  }[list];
  const facts = [
    own,
    moved == null ? null : `moved ${weight(moved)}`,
    rest == null ? null : `${percent(rest)} at rest`,
    toward == null ? null : `${signed(toward, 2)} toward the next token`,
    effect == null ? null : `effect ${signed(effect, 3)}`,
  ];
  return [
    make("b", { textContent: source }),
    ` token ${count(position)}`,
    ...facts.filter((fact) => fact != null).map((fact) => ` · ${fact}`),
  ];
}

/**
 * A link as a line: its token and how far away it is; with its neighbours where it lies outside the window.
 * @param {AtlasLink} link @param {number} size @param {AtlasExample} example @param {string[]} window_
 */
function linkOf([place, , , snippet, at = 0], size, [, position, start], window_) {
  const distance = place - position;
  const far = distance === 0 ? "itself" : `${count(Math.abs(distance))} ${distance < 0 ? "before" : "after"}`;
  const around = snippet == null ? null : snippet.split("\n").map(labelOf);
  const words = around
    ? [
        `… ${isolated(around.slice(0, at).join("").replaceAll("↵", "↵ "))}`,
        make("b", { textContent: around[at] ?? "" }),
        `${isolated(
          around
            .slice(at + 1)
            .join("")
            .replaceAll("↵", "↵ "),
        )} …`,
      ]
    : [make("b", { textContent: said(labelOf(window_[place - start] ?? "").trim()) })];
  return make(
    "li",
    { className: around ? "outside" : "" },
    make("span", { className: "what" }, ...words),
    make("span", { textContent: ` ${far}` }),
    make("samp", { textContent: ` ${weight(size)}` }),
  );
}
