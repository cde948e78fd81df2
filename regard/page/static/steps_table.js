/** The keys of one query as a table: each step of each key, the softmax's sum, what is masked. */
import { bar, keyButton, make, table } from "./dom.js";
import { full, plural, signed, weight } from "./format.js";
import { WORDS, areWeights } from "./quantities.js";

/** What the column of a view is. @type {Partial<Record<Shows, string>>} */
const ENTRIES = {
  moved: "the weight times the length of the key’s value behind W_O",
  toward: "the weight times what the key’s value adds to the logit of the answer",
};
/** Whether there is a number beyond the weight. */
const isViewed = (/** @type {StepsShown} */ { shows }) => !areWeights(shows);

/** @type {Record<string, (data: StepsShown) => string[]>} */
const NAMES = {
  scaled: (data) => [`× ${signed(data.scale, 3, 3)}`, `times the scale, ${full(data.scale)}`],
  softcapped: () => ["capped", "cap · tanh(scaled / cap): none beyond ±cap"],
  biased: () => ["+ bias", "with what this attention adds for the pair of positions"],
  masked: () => ["masked", "the score softmax is taken of: −∞ where the mask hides the key"],
};

/**
 * What a table reports, and the number of the values that a column multiplies.
 * @typedef {{pick: (one: StepKey) => void, choose: (one: StepKey) => void, page: (first: number) => void,
 *   followed: () => number|null}} Handlers
 * @typedef {{data: StepsShown, d: number|null, spare: number, on: Handlers}} Tail
 */

/** @param {StepsShown} data @param {Handlers} on */
export function keysTable(data, on) {
  const d = on.followed();
  const columns = [
    ["key", "position and token", "start"],
    ["q·k", "the dot product"],
    ...data.steps.map((name) => NAMES[name](data)),
    ["− logsumexp", `minus ${signed(data.logsumexp, 3)}, the log of softmax’s denominator`],
    ["", "", "wide"],
    ["weight", "e to the power of that"],
    ...(isViewed(data) ? [[WORDS[data.shows].entry, ENTRIES[data.shows] ?? ""]] : []),
    ...(d == null ? [] : [[`× v[${d}]`, `the weight times number ${d} of the key’s value`]]),
  ];
  const head = columns.map(([textContent, title, className = ""]) =>
    textContent ? make("th", { textContent, title, className, scope: "col" }) : make("td", { className }),
  );
  const most = Math.max(1e-12, ...data.entries.map((one) => Math.abs(one.entry ?? one.weight)));
  const row = (/** @type {StepKey} */ one) => keyRow(one, data, { d, most, on });
  const rows = [...data.entries, ...(data.extra ? [data.extra] : [])].map(row);
  const tail = { data, d, spare: columns.length - 2 - Number(isViewed(data)) - (d == null ? 0 : 1), on };
  rows.push(...restRow(tail), ...hiddenRows(tail, row), sumRow(tail));
  return table(`Steps of query ${data.at}`, head, rows);
}

/** @param {StepKey} one @param {StepsShown} data @param {{d: number|null, most: number, on: Handlers}} how */
function keyRow(one, data, { d, most, on }) {
  const { labels } = data.run;
  const figure = (/** @type {number|null} */ value, /** @type {number} */ decimals) =>
    make("td", { textContent: value == null ? "–" : signed(value, decimals), title: value == null ? "" : full(value) });
  const masked = (/** @type {number|null} */ value) =>
    one.visible ? figure(value, 3) : make("td", { textContent: "−∞" });
  const pick = () => on.pick(one);
  return make(
    "tr",
    {
      className: one.visible ? "" : "masked",
      dataset: { key: one.position },
      onclick: () => on.choose(one),
      onpointerenter: pick,
      onfocusin: pick,
    },
    make(
      "td",
      { className: "start" },
      keyButton(labels, one.position, one.visible ? `weight ${weight(one.weight)}` : "hidden by the mask"),
    ),
    figure(one.score, 2),
    ...data.steps.map((name) => (name === "masked" ? masked(one.masked) : figure(one[name], 3))),
    masked(one.masked == null ? null : one.masked - (data.logsumexp ?? 0)),
    make("td", { className: "wide" }, one.visible ? bar((one.entry ?? one.weight) / most) : null),
    make("td", { textContent: weight(one.weight), title: full(one.weight) }),
    one.entry == null ? null : make("td", { textContent: weight(one.entry), title: full(one.entry) }),
    d == null ? null : figure(one.weight * one.value[d], 3),
  );
}

const product = (/** @type {StepKey} */ one, /** @type {number} */ d) => one.weight * one.value[d];
const soFar = (/** @type {StepsShown} */ data, /** @type {number} */ d) =>
  data.entries.reduce((sum, one) => sum + product(one, d), 0);

/** The weaker keys, together; a button writes the next of them out. */
function restRow(/** @type {Tail} */ { data, d, spare, on }) {
  const { count, weight: together } = data.rest;
  if (!count) return [];
  const more = make("button", {
    type: "button",
    className: "more",
    textContent: `Write out ${count > data.page ? `the next ${data.page}` : "the rest"}`,
    onclick: () => on.page(data.entries.length),
  });
  return [
    make(
      "tr",
      { className: "rest" },
      make("td", { className: "start", colSpan: spare }, `${plural(count, "weaker key")}, together `, more),
      make("td", { className: "wide" }),
      make("td", { textContent: weight(together) }),
      data.rest.entry == null ? null : make("td", { textContent: weight(data.rest.entry) }),
      d == null ? null : make("td", { textContent: signed((data.context?.[d] ?? 0) - soFar(data, d), 3) }),
    ),
  ];
}

/** The keys that the mask hides: written out on request, all of them with a weight of 0. */
function hiddenRows(
  /** @type {Tail} */ { data, d, spare, on },
  /** @type {(one: StepKey) => HTMLTableRowElement} */ row,
) {
  if (!data.hidden) return [];
  const left = data.hidden - data.hiddenEntries.length;
  const shown = data.hiddenEntries.length > 0;
  const more = make("button", {
    type: "button",
    className: "more",
    textContent: shown ? `Write out ${left > data.page ? `${data.page} more` : "the rest"}` : "Write them out",
    onclick: () => on.page(data.count + data.hiddenEntries.length),
  });
  const line = make(
    "tr",
    { className: "rest" },
    make(
      "td",
      { className: "start", colSpan: spare },
      `${plural(data.hidden, "key")} hidden by the mask${data.shows === "without" ? ", or rested on" : ""}: a score of −∞ `,
      left ? more : null,
    ),
    make("td", { className: "wide" }),
    make("td", { textContent: "0" }),
    isViewed(data) ? make("td", { textContent: "0" }) : null,
    d == null ? null : make("td", { textContent: "0" }),
  );
  return [...data.hiddenEntries.map(row), line];
}

function sumRow(/** @type {Tail} */ { data, d, spare }) {
  const sum = data.entries.reduce((total, one) => total + one.weight, 0) + data.rest.weight;
  const entries = data.entries.reduce((total, one) => total + (one.entry ?? 0), 0) + (data.rest.entry ?? 0);
  const sunk = data.count && data.sink ? `, and ${weight(Math.max(0, 1 - sum))} went to the sink` : "";
  return make(
    "tr",
    { className: "sum" },
    make("td", {
      className: "start",
      textContent: `sum over ${plural(data.count, "visible key")}${sunk}`,
      colSpan: spare,
    }),
    make("td", { className: "wide" }),
    make("td", { textContent: data.count ? sum.toFixed(3) : "0" }),
    isViewed(data) ? make("td", { textContent: signed(entries, 3) }) : null,
    d == null ? null : make("td", { textContent: signed(data.context?.[d], 3), title: `context[${d}]` }),
  );
}
