/** All heads of an atlas: layer × head by any column, the table, search and filters. */
import { differenceScale, differenceRamp, place, ramp, rampPicture, scaleOf } from "../colour.js";
import { byId, lookUp, make, targetOf } from "../dom.js";
import { count, plural } from "../format.js";
import { themeNow } from "../theme.js";
import { address, columnNamed, columnOptions, keep } from "./choices.js";
import { UNMEASURED, about, columns, margin, nameOf, pageOf, unbroken, unitName, written } from "./facts.js";
import { startFilters } from "./filters.js";
import { startTable } from "./heads_table.js";

export function showOverview(/** @type {HTMLElement} */ main, /** @type {AtlasOverview} */ { heads }) {
  byId("places").append(make("b", { textContent: about.model ?? "", className: "model" }));
  const first = columns.findIndex((_, k) => heads.some(({ values }) => values[k] != null));
  /** The column that colours. */
  let chosen = columnNamed(address().get("column")) ?? Math.max(0, first);
  let shown = heads;

  const select = make("select", { id: "column" }, ...columnOptions());
  const meaning = make("p", { id: "column-meaning", className: "note", role: "status" });
  const grid = gridOf(heads);
  const legend = make("div", { className: "scale" });
  const table = startTable((column) => choose(column));
  const filters = startFilters(heads, (those) => {
    shown = those;
    table.fill(shown);
    grid.dim(new Set(shown));
  });
  const choose = (/** @type {number} */ column) => {
    chosen = column;
    select.value = String(column);
    keep("column", columns[column]?.name ?? "");
    paint();
  };
  const paint = () => {
    if (!columns.length) return;
    const scale = scaleFor(heads, chosen);
    const { meaning: words, title } = columns[chosen];
    meaning.replaceChildren(make("b", { textContent: title }), `: ${words}`);
    grid.paint(chosen, scale);
    legend.replaceChildren(...legendOf(scale, chosen));
    table.mark(chosen, (value) => Math.abs(place({ ...scale, signed: false }, Math.abs(value))) * Math.sign(value));
  };
  select.onchange = () => choose(Number(select.value));

  main.append(
    make("section", { id: "about-atlas", "aria-label": "The atlas" }, opening(heads), provenance()),
    make(
      "section",
      { id: "all", "aria-label": "Overview" },
      make("h2", { textContent: "Which head does what?" }),
      make("label", { className: "choice" }, "coloured by ", select),
      meaning,
      grid.root,
      legend,
      grid.pointed,
    ),
    make(
      "section",
      { id: "listed", "aria-label": "All heads" },
      make("h2", { textContent: "All heads" }),
      filters.root,
      table.root,
    ),
  );
  filters.start();
  table.fill(shown);
  paint();
  document.addEventListener("inks", paint);
}

/** A column's colours: around 0 where it has a sign. @returns {import("../colour.js").Scale} */
function scaleFor(/** @type {AtlasHead[]} */ heads, /** @type {number} */ column) {
  const values = heads.map(({ values: all }) => all[column] ?? 0);
  const most = values.reduce((best, value) => Math.max(best, Math.abs(value)), 0);
  return Math.min(...values) < 0 ? differenceScale("linear", most) : scaleOf("moved", "linear", most, true);
}

function legendOf(/** @type {import("../colour.js").Scale} */ scale, /** @type {number} */ column) {
  const { unit } = columns[column];
  const picture = rampPicture(scale, themeNow());
  picture.setAttribute("aria-hidden", "true");
  const high = `${written(scale.high, unit)}${unitName(unit)}`;
  return [
    make("span", { textContent: written(scale.signed ? -scale.high : 0, unit) }),
    picture,
    make("span", { textContent: high }),
    make("span", { className: "key" }, make("i", { className: "none" }), UNMEASURED),
  ];
}

/** The sentence that a reader sees first. */
function opening(/** @type {AtlasHead[]} */ heads) {
  const layers = new Set(heads.map(({ layer }) => layer)).size;
  const read = [
    about.tokens == null ? "" : plural(about.tokens, "token"),
    about.documents == null ? "" : plural(about.documents, "document"),
  ].filter(Boolean);
  const over = read.length ? `, over ${read.join(" of ")}` : "";
  return make(
    "h2",
    { className: "says" },
    heads.length === 1 ? "What the " : "What each of the ",
    make("em", { textContent: plural(heads.length, "head") }),
    ` in ${plural(layers, "layer")} of `,
    make("em", { textContent: about.model ?? "a model" }),
    unbroken(` does${over}.`),
  );
}

/** Where it comes from, to be opened. */
function provenance() {
  const { effects, corpus, strided, duplicates, length } = about;
  /** @type {[string, string|number|null|undefined][]} */
  const facts = [
    ["model", about.model],
    ["its fingerprint", about.model_fingerprint],
    ["corpus", corpus?.join(", ")],
    ["documents", about.documents],
    ["tokens", about.tokens],
    ["duplicates left out", duplicates],
    ["longer documents, cut into parts", strided],
    ["tokens at a time, at most", length],
    [
      "sample for effects",
      effects &&
        `${plural(effects.documents, "document")}, ${Number((100 * effects.share).toPrecision(3))} % drawn by the seed`,
    ],
    ["seed", about.seed == null ? null : String(about.seed)],
    ["made with", [about.made_with, about.torch && `torch ${about.torch}`].filter(Boolean).join(", ")],
    ["threads", about.threads],
  ];
  const pairs = facts.flatMap(([name, value]) => [
    make("dt", { textContent: name }),
    make("dd", { textContent: value == null || value === "" ? "–" : typeof value === "number" ? count(value) : value }),
  ]);
  return make(
    "details",
    { id: "provenance" },
    make("summary", { textContent: "Where it comes from" }),
    make("dl", {}, ...pairs),
  );
}

/** The grid of all heads; Tab comes to one of them, arrows go on from there. */
function gridOf(/** @type {AtlasHead[]} */ heads) {
  const across = Math.max(...heads.map(({ head }) => head)) + 1;
  const layers = [...new Set(heads.map(({ layer }) => layer))].sort((a, b) => a - b);
  // Of many heads not each has room for its number, and then no layer has.
  const every = Math.ceil(across / 16);
  const isSmall = across > 24;
  const pointed = make("p", { id: "pointed", className: "note" });
  const hint = "Point at a head, or press it to open its page.";
  const cells = heads.map((head) =>
    make("a", {
      className: "head-cell",
      href: pageOf(head),
      tabIndex: -1,
      dataset: { head: nameOf(head) },
      style: { gridRow: String(layers.indexOf(head.layer) + 2), gridColumn: String(head.head + 2) },
    }),
  );
  const root = make(
    "div",
    { id: "grid-of-heads", className: isSmall ? "small" : "", role: "group", "aria-label": "Heads, a row a layer" },
    ...Array.from({ length: across }, (_, k) =>
      make("span", {
        className: "number",
        "aria-hidden": "true",
        textContent: k % every ? "" : String(k),
        style: { gridColumn: String(k + 2) },
      }),
    ),
    ...layers.map((layer, k) =>
      make("span", {
        className: "row-name",
        "aria-hidden": "true",
        textContent: isSmall && k % 4 ? "" : String(layer),
        style: { gridRow: String(k + 2) },
      }),
    ),
    ...cells,
  );
  root.style.setProperty("--across", String(across));
  pointed.textContent = hint;
  if (cells.length) cells[0].tabIndex = 0;
  let column = 0;
  const tell = (/** @type {Event} */ event) => {
    const at = cells.indexOf(/** @type {HTMLAnchorElement} */ (targetOf(event)));
    if (at < 0) return;
    const head = heads[at];
    pointed.replaceChildren(make("b", { textContent: `${nameOf(head)} ` }), `${head.words} · ${valueOf(head, column)}`);
  };
  root.addEventListener("pointerover", tell);
  root.addEventListener("focusin", tell);
  root.addEventListener("keydown", (event) => {
    const at = cells.indexOf(/** @type {HTMLAnchorElement} */ (targetOf(event)));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = lookUp({ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }, event.key);
    if (!step) return;
    event.preventDefault();
    const { layer, head } = heads[at];
    const row = layers[layers.indexOf(layer) + step[0]];
    const next = heads.findIndex((one) => one.layer === row && one.head === head + step[1]);
    if (next < 0) return;
    for (const one of cells) one.tabIndex = -1;
    cells[next].tabIndex = 0;
    cells[next].focus();
  });
  const paint = (/** @type {number} */ k, /** @type {import("../colour.js").Scale} */ scale) => {
    column = k;
    const colours = scale.signed ? differenceRamp(themeNow()) : ramp(themeNow());
    heads.forEach((head, at) => {
      const value = head.values[k];
      const level = 3 * Math.round(255 * place(scale, value ?? 0));
      cells[at].classList.toggle("none", value == null);
      cells[at].style.backgroundColor = value == null ? "" : `rgb(${colours.slice(level, level + 3).join(" ")})`;
      cells[at].setAttribute("aria-label", `${nameOf(head)} ${head.words}, ${valueOf(head, k)}`);
    });
  };
  const dim = (/** @type {Set<AtlasHead>} */ those) =>
    heads.forEach((head, at) => cells[at].classList.toggle("dim", !those.has(head)));
  return { root, pointed, paint, dim };
}

/** A column's number of a head with the column's name. */
function valueOf(/** @type {AtlasHead} */ head, /** @type {number} */ k) {
  if (!columns[k]) return UNMEASURED;
  const { title, unit } = columns[k];
  const value = head.values[k];
  if (value == null) return `${title}: ${UNMEASURED}`;
  return `${title} ${written(value, unit)}${margin(head.margins[k], unit)}${unitName(unit)}`;
}
