/** The table of an atlas' heads, to be sorted by any column. */
import { make } from "../dom.js";
import { plural } from "../format.js";
import { address, columnNamed, keep } from "./choices.js";
import { cell, columns, groupName, margin, nameOf, pageOf } from "./facts.js";

/** Rows that are made at once; of more, a press makes the others. */
const MOST = 400;

/** @param {(column: number) => void} choose a column was pressed: it is what the overview is coloured by */
export function startTable(choose) {
  const [name, way] = (address().get("sort") ?? "").split(":");
  /** By a column, or null for the order of the layers. */
  let by = columnNamed(name);
  let down = way !== "up";
  let marked = 0;
  /** How much of the scale a value of it is. @type {(value: number) => number} */
  let share = () => 0;
  /** @type {AtlasHead[]} */
  let heads = [];
  const body = make("tbody");
  const more = make("button", {
    type: "button",
    className: "more",
    hidden: true,
    onclick: () => fill(heads, Infinity),
  });

  const sortBy = (/** @type {number|null} */ column) => {
    down = column !== null && (column === by ? !down : true);
    by = column;
    keep("sort", by == null ? "" : `${columns[by].name}${down ? "" : ":up"}`);
    if (column != null) choose(column);
    fill(heads);
  };
  const heading = (/** @type {string} */ title, /** @type {number|null} */ column, before = "") =>
    make(
      "th",
      { scope: "col", className: column == null ? "start" : before ? "first" : "" },
      before ? make("small", { textContent: before }) : null,
      make(
        "button",
        {
          type: "button",
          className: "plain",
          title: column == null ? "Layer by layer" : columns[column].meaning,
          onclick: () => sortBy(column),
        },
        title,
      ),
    );
  const headings = [
    heading("head", null),
    ...columns.map(({ title, group }, k) => heading(title, k, columns[k - 1]?.group === group ? "" : groupName(group))),
  ];
  const [first, ...others] = headings;
  const head = make(
    "tr",
    {},
    first,
    make("th", { scope: "col", className: "start", textContent: "what it does" }),
    ...others,
  );
  const table = make("table", { "aria-label": "All heads" }, make("thead", {}, head), body);
  const root = make(
    "div",
    {},
    make("div", { className: "scrolls", role: "region", tabIndex: 0, "aria-label": "Table of the heads" }, table),
    more,
  );

  const rowOf = (/** @type {AtlasHead} */ one) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", className: "start" }, make("a", { href: pageOf(one), textContent: nameOf(one) })),
      make(
        "td",
        { className: "start does" },
        make("span", { textContent: one.words }),
        one.evidence ? make("small", { textContent: one.evidence }) : null,
      ),
      ...columns.map(({ unit, group }, k) => {
        const own = margin(one.margins[k], unit);
        return make(
          "td",
          { className: columns[k - 1]?.group === group ? "" : "first", title: own && `95 % interval:${own}` },
          cell(one.values[k], unit),
        );
      }),
    );
  const fill = (/** @type {AtlasHead[]} */ all, most = MOST) => {
    heads = all;
    const column = by;
    const value = (/** @type {AtlasHead} */ { values }) => (column == null ? null : values[column]);
    const sorted =
      column == null
        ? all
        : [...all].sort((a, b) => {
            const [x, y] = [value(a), value(b)];
            if (x == null || y == null) return Number(x == null) - Number(y == null); // not measured: below all others
            return down ? y - x : x - y;
          });
    body.replaceChildren(...sorted.slice(0, most).map(rowOf));
    more.hidden = all.length <= most;
    more.textContent = `… ${plural(all.length - most, "head")} more`;
    headings.forEach((one, k) => {
      const own = k ? k - 1 : null;
      one.setAttribute("aria-sort", own !== by ? "none" : own != null && down ? "descending" : "ascending");
    });
    shade(sorted.slice(0, most));
  };
  /** The column that the overview is coloured by is shaded here, too. */
  const shade = (/** @type {AtlasHead[]} */ rows) => {
    headings.forEach((one, k) => one.classList.toggle("on", k - 1 === marked));
    rows.forEach((one, k) => {
      [...body.children[k].children].slice(2).forEach((td, at) => {
        const value = at === marked ? (one.values[at] ?? 0) : 0;
        const deep = Math.round(45 * Math.abs(share(value))); // ink stays readable on it
        const ink = value < 0 ? "--changed" : "--accent";
        /** @type {HTMLElement} */ (td).style.backgroundColor =
          at === marked && deep ? `color-mix(in srgb, var(${ink}) ${deep}%, transparent)` : "";
      });
    });
  };
  const mark = (/** @type {number} */ column, /** @type {(value: number) => number} */ part) => {
    marked = column;
    share = part;
    fill(heads, body.children.length > MOST ? Infinity : MOST);
  };
  return { root, fill, mark };
}
