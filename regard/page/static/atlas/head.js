/** One head of an atlas: its name with evidence, what breaks without it, all of its numbers, its examples. */
import { byId, make, table } from "../dom.js";
import { plural, signed } from "../format.js";
import { binName, histogramChart, profileChart, shareRows } from "./charts.js";
import { startExamples } from "./examples.js";
import {
  UNMEASURED,
  about,
  cell,
  columns,
  groupName,
  margin,
  nameOf,
  pageOf,
  percent,
  unitName,
  written,
} from "./facts.js";

export function showHead(/** @type {HTMLElement} */ main, /** @type {AtlasDetails} */ details) {
  const { row } = details;
  places(details);
  main.append(
    make(
      "section",
      { id: "name", "aria-label": "The head" },
      make(
        "h2",
        { className: "says" },
        "Head ",
        make("em", { textContent: nameOf(row) }),
        ...(about.model ? [" of ", make("span", { textContent: `${about.model}:` }), " "] : [": "]),
        row.words || row.role || UNMEASURED,
        ".",
      ),
      make("p", { className: "evidence" }, ...evidence(row)),
    ),
    make(
      "section",
      { id: "facts", "aria-label": "What it does" },
      part("What breaks without it?", needed(details)),
      part("Where does it rest?", resting(details)),
      part("How far does it look?", profile(details)),
      part("How sharply?", histogram(details)),
    ),
    startExamples(details),
    make(
      "section",
      { id: "more", "aria-label": "All numbers" },
      part("Which tokens?", classes(details)),
      part("All numbers", numbers(row)),
    ),
  );
}

/** The head before, the head after, and all of them. */
function places(/** @type {AtlasDetails} */ { previous, next }) {
  const to = (/** @type {[number, number]|null} */ place, /** @type {string} */ rel) => {
    if (!place) return null;
    const [layer, head] = place;
    const name = nameOf({ layer, head });
    const text = rel === "prev" ? `← ${name}` : `${name} →`;
    const label = `${rel === "prev" ? "Previous" : "Next"} head, ${name}`;
    return make("a", { href: `../${pageOf({ layer, head })}`, rel, textContent: text, "aria-label": label });
  };
  byId("places").append(
    make("a", {
      href: "../index.html",
      className: "model",
      textContent: `All heads${about.model ? ` of ${about.model}` : ""}`,
    }),
    make("span", { className: "steps-between" }, to(previous, "prev"), to(next, "next")),
  );
}

const part = (/** @type {string} */ title, /** @type {Node[]} */ nodes) =>
  make("div", { className: "part" }, make("h3", { textContent: title }), ...nodes);

const note = (/** @type {(Node|string)[]} */ ...parts) => make("p", { className: "note" }, ...parts);
const unmeasured = (why = "") => [note(`${UNMEASURED[0].toUpperCase()}${UNMEASURED.slice(1)}${why}.`)];

/** @returns {(Node|string)[]} */
function evidence(/** @type {AtlasHead} */ { evidence: words, discovery }) {
  const rate = discovery
    ? "The name holds with all heads of the model counted as tests."
    : "With all heads of the model counted as tests, this may be chance.";
  return [
    words ? `${words}. ` : "",
    discovery == null ? "" : make("span", { className: discovery ? "chip" : "chip unsure", textContent: rate }),
  ];
}

/** @returns {Node[]} */
function needed(/** @type {AtlasDetails} */ { needed: one, row }) {
  if (!one) return unmeasured(": it is measured for heads whose name is about tokens");
  const change = one.without - one.loss;
  const rows = [
    ["as it is", one.loss],
    [`without ${nameOf(row)}`, one.without],
    [`without ${one.control}, a control`, one.control == null ? null : one.without_control],
  ].filter(([, loss]) => loss != null);
  const most = Math.max(...rows.map(([, loss]) => Number(loss)));
  return [
    make(
      "p",
      {},
      `On ${one.tokens}, the loss ${change < 0 ? "falls" : "rises"} by `,
      make("em", { textContent: signed(Math.abs(change), 2) }),
      " nats without it",
      one.without_control == null
        ? "."
        : `; without ${one.control}, a control without the name, it changes by ${signed(one.without_control - one.loss, 2)}. The difference is ${signed(one.without - one.without_control, 2)}${margin(one.margin, "nats")} nats.`,
    ),
    make(
      "dl",
      { className: "shares" },
      ...rows.flatMap(([name, loss]) => [
        make("dt", { textContent: name }),
        make(
          "dd",
          {},
          make(
            "span",
            { className: "room" },
            make("i", { className: "bar", style: { width: `${(100 * Number(loss)) / (most || 1)}%` } }),
          ),
          make("b", { textContent: signed(Number(loss), 2) }),
        ),
      ]),
    ),
    note(`Loss in nats, over ${plural(one.queries, "token")} of a sample.`),
  ];
}

/** @returns {Node[]} */
function resting(/** @type {AtlasDetails} */ { resting: kinds }) {
  const entries = Object.entries(kinds ?? {});
  if (!entries.length) return unmeasured();
  const known = entries.every(([, share]) => share != null);
  const rest = 1 - entries.reduce((sum, [, share]) => sum + (share ?? 0), 0);
  return [
    shareRows("Share of the weight on each kind of sink", [
      ...entries,
      ["beside the sinks", known ? Math.max(0, rest) : null],
    ]),
    note("Share of the weight on the keys it rests on, by their kind."),
  ];
}

/** @returns {Node[]} */
function profile(/** @type {AtlasDetails} */ { profile: one }) {
  if (!one) return unmeasured();
  const shares = one.share.map((value) => value ?? -1);
  const most = shares.indexOf(Math.max(...shares));
  const words = `Most, ${percent(Math.max(0, shares[most]))}, at a distance of ${binName(one.edges, most)}.`;
  return [
    profileChart(one),
    note(
      `Weight beside the sinks by distance in tokens. ${words} `,
      make("i", { className: "even-key" }),
      " a head that looks everywhere alike",
    ),
  ];
}

/** @returns {Node[]} */
function histogram(/** @type {AtlasDetails} */ { histogram: one }) {
  if (!one?.counts.length) return unmeasured();
  const all = one.counts.reduce((sum, value) => sum + value, 0);
  return [histogramChart(one), note(`${plural(all, "row")} by their largest weight beside the sinks.`)];
}

/** @returns {Node[]} */
function classes(/** @type {AtlasDetails} */ { classes: all }) {
  const queries = all?.query ?? {};
  const keys = all?.key ?? {};
  const names = [...new Set([...Object.keys(queries), ...Object.keys(keys)])];
  if (!names.length) return unmeasured();
  const heading = (/** @type {string} */ text, title = "", start = false) =>
    make("th", { scope: "col", textContent: text, title, className: start ? "start" : "" });
  const head = [
    heading("tokens", "", true),
    heading("queries", "Rows that were read"),
    heading("at rest", "Share of these queries' weight on the sinks"),
    heading("entropy", "Of the weights beside the sinks, in nats"),
    heading("moved", "How much arrives at these tokens"),
    heading("toward", "How much it adds to the logit of the token that follows"),
    heading("looked at", "Share of all weight beside the sinks that goes to these keys"),
    heading("alike", "The same of a head that looks everywhere alike"),
  ];
  const rows = names.map((name) => {
    const query = queries[name] ?? {};
    const key = keys[name] ?? {};
    /** @type {[number|null|undefined, string][]} */
    const cells = [
      [query.queries, ""],
      [query.resting, "share"],
      [query.entropy, "nats"],
      [query.moved, ""],
      [query.toward, ""],
      [key.share, "share"],
      [key.uniform, "share"],
    ];
    return make(
      "tr",
      {},
      make("th", { scope: "row", className: "start", textContent: name }),
      ...cells.map(([value, unit]) => make("td", {}, cell(value, unit))),
    );
  });
  return [
    make(
      "div",
      { className: "scrolls", role: "region", tabIndex: 0, "aria-label": "Table of the classes of tokens" },
      table("Classes of tokens", head, rows),
    ),
    note(
      "As queries: how they rest, look and receive. As keys: how much they are looked at, and by a head that looks everywhere alike.",
    ),
  ];
}

/** @returns {Node[]} */
function numbers(/** @type {AtlasHead} */ { values, margins }) {
  return [...new Set(columns.map(({ group }) => group))].map((group) =>
    make(
      "div",
      { className: "group" },
      make("h4", { textContent: groupName(group) }),
      make(
        "dl",
        {},
        ...columns.flatMap((column, k) => {
          if (column.group !== group) return [];
          const value = values[k];
          return make(
            "div",
            {},
            make("dt", {}, column.title, make("small", { textContent: column.meaning })),
            make(
              "dd",
              { className: value == null ? "none" : "", dataset: { column: column.name } },
              make("b", { textContent: written(value, column.unit) }),
              value == null ? "" : `${margin(margins[k], column.unit)}${unitName(column.unit)}`,
            ),
          );
        }),
      ),
    ),
  );
}
