/** Numbers as CSV files: those of what is seen. */
import * as api from "./api.js";
import { make } from "./dom.js";
import { csvRow, short } from "./format.js";
import { ordered } from "./heads_shown.js";
import { activeColumn } from "./map.js";
import { readoutsOf } from "./along.js";
import { awaitAnswer } from "./answers.js";
import { READOUTS, SCORES, areWeights, readoutOf, unitOf } from "./quantities.js";
import { figuresOf, get, openSourceOf, placeOf, queryNow, queryRead, set } from "./store.js";

const WRITTEN = 256; // keys of a query's steps that the server writes out at a time
export const UNFINISHED = "That is still being computed; export it once it is there.";

/** Hands a file over. */
export function save(/** @type {Blob} */ blob, /** @type {string} */ name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: short(name, 120) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A file's name says what it is of; a mean is called so. */
export const fileName = (/** @type {string} */ what, /** @type {OpenSource} */ source) => {
  const [layer, head, shows] = placeOf(source);
  return [`regard-${what}-layer${layer}-head${head}`, ...(shows ? [shows] : [])].join("-");
};

/** The column of the entries: the view by its name. */
const columnName = () => get().shows;

const table = (/** @type {string} */ name, /** @type {string[]} */ header, /** @type {any[][]} */ rows) =>
  save(
    new Blob([[header, ...rows].map((cells) => `${csvRow(cells)}\r\n`).join("")], {
      type: "text/csv;charset=utf-8",
    }),
    `${name}.csv`,
  );

/** Layer and head by their own numbers; "mean" for a mean. */
function names(/** @type {OpenSource} */ source) {
  const { run, layer, head, average } = source;
  if (average === "model") return ["mean", "mean"];
  return [run.layers[layer].index, average === "layer" ? "mean" : run.layers[layer].heads[head]];
}

/** The cells of the map that are seen: each a weight, or the mean of a square of them. */
function mapTable() {
  const column = activeColumn();
  const source = column.openSourceOf();
  const { sharp } = column;
  if (!sharp || !column.current()) return set({ problem: UNFINISHED });
  const { queries, keys, block, rows, columns, values } = sharp;
  const cell = (/** @type {number} */ i, /** @type {number} */ j) => [
    queries[0] + i * block,
    Math.min(queries[0] + (i + 1) * block, queries[1]) - 1,
    keys[0] + j * block,
    Math.min(keys[0] + (j + 1) * block, keys[1]) - 1,
    values[i * columns + j],
  ];
  table(
    fileName("map", source),
    ["first_query", "last_query", "first_key", "last_key", `mean_${columnName()}`],
    Array.from({ length: rows * columns }, (_, at) => cell(Math.floor(at / columns), at % columns)),
  );
}

async function rowTable() {
  const source = openSourceOf();
  const { run } = source;
  const query = queryNow();
  const data = await awaitAnswer(api.row(run.id, placeOf(source), query, "row-export"));
  if (!data) return;
  table(
    `${fileName("row", source)}-query${query}`,
    ["layer", "head", "query", "query_token", "key", "key_token", columnName()],
    Array.from(data.values, (entry, key) => [...names(source), query, run.labels[query], key, run.labels[key], entry]),
  );
}

/** All keys of the query, with every step; the hidden ones have no score. */
async function stepsTable() {
  /** @type {OpenSource} */
  const source = { ...openSourceOf(), average: "head" };
  const { run } = source;
  const query = queryRead();
  const entry = areWeights(get().shows) ? [] : [columnName()];
  /** @type {StepKey[]} */
  const keys = [];
  let steps = ["scaled", "masked"];
  while (keys.length < run.length) {
    const part = await awaitAnswer(
      api.steps(run.id, placeOf(source), query, { first: keys.length, count: WRITTEN }, "steps-export"),
    );
    if (!part) return;
    steps = part.steps;
    keys.push(...part.keys);
    if (!part.keys.length) break;
  }
  table(
    `${fileName("steps", source)}-query${query}`,
    ["layer", "head", "query", "rank", "key", "key_token", "visible", "score", ...steps, "weight", ...entry],
    keys.map((one) => [
      ...names(source),
      query,
      one.rank,
      one.position,
      run.labels[one.position],
      Number(one.visible),
      one.score,
      ...steps.map((name) => one[name]),
      one.weight,
      ...(entry.length ? [one.entry] : []),
    ]),
  );
}

async function readoutsTable() {
  const source = openSourceOf();
  const { run } = source;
  const data = await readoutsOf(source.side, { anew: true });
  if (!data) return;
  const columns = READOUTS.map((name) => readoutOf(name, data.values));
  table(
    fileName("readouts", source),
    ["position", "token", ...READOUTS.map((name) => [name, unitOf(name)].filter(Boolean).join("_"))],
    run.labels.map((label, k) => [k, label, ...columns.map((values) => values[k])]),
  );
}

function headsTable() {
  const source = openSourceOf(get().compare === "text" ? undefined : "first");
  const { run } = source;
  const known = (/** @type {{layer: number, head: number}} */ { layer, head }) =>
    figuresOf(layer, head, source.heads)?.run === run.id;
  if (!ordered(source).every(known)) return set({ problem: UNFINISHED });
  table(
    "regard-heads",
    ["layer", "head", "layer_name", "role", "score", "margin", "queries", "meaning", ...SCORES],
    ordered(source).map(({ layer, head }) => {
      const figures = figuresOf(layer, head, source.heads);
      return [
        run.layers[layer].index,
        run.layers[layer].heads[head],
        run.layers[layer].name,
        figures?.role ?? "",
        figures?.score ?? null,
        figures?.margin ?? null,
        figures?.queries ?? null,
        figures?.meaning ?? "",
        ...SCORES.map((name) => figures?.[name] ?? null),
      ];
    }),
  );
}

export const tables = {
  map: mapTable,
  row: rowTable,
  steps: stepsTable,
  readouts: readoutsTable,
  heads: headsTable,
};
