/** The tables of a widget: those that can be changed, and those that are computed. */
import { written } from "./words.js";
/** @typedef {import("./attention.js").Table} Table */

const DECIMALS = matchMedia("(max-width: 560px)").matches ? 2 : 3;

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Partial<HTMLElementTagNameMap[K]>} [properties] @param {(Node|string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const one = document.createElement(tag);
  Object.assign(one, properties);
  one.append(...children);
  return one;
}

/**
 * A table with a name, a row for each label and a column for each of `columns`.
 * @param {string} name @param {string} note @param {string[]} rows @param {string[]} columns
 * @param {(i: number, j: number) => HTMLTableCellElement} cell
 */
export function table(name, note, rows, columns, cell) {
  const head = make("tr", {}, make("td"), ...columns.map((text) => make("th", { scope: "col", textContent: text })));
  const body = rows.map((label, i) =>
    make("tr", {}, make("th", { scope: "row", textContent: label }), ...columns.map((_, j) => cell(i, j))),
  );
  const caption = make("caption", {}, make("b", { textContent: name }), " ", note);
  const whole = make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...body));
  whole.dataset.name = name;
  return whole;
}

/**
 * A cell in which a number can be changed.
 * @param {string} label @param {string} value @param {(number: number) => void} change
 */
export function inputCell(label, value, change) {
  const input = make("input", { type: "number", step: "0.1", value, ariaLabel: label });
  input.addEventListener("input", () => {
    if (Number.isFinite(input.valueAsNumber)) change(input.valueAsNumber);
  });
  return make("td", {}, input);
}

/** How many decimals the numbers of a table take, two or more: those of a column stand below each other. */
export const decimalsOf = (/** @type {Table} */ numbers) =>
  Math.max(2, ...numbers.flat().map((number) => String(number).split(".")[1]?.length ?? 0));

/** A cell that shows a number, and chooses its row as the query. */
export function outputCell(/** @type {() => void} */ choose) {
  const one = make("td");
  one.addEventListener("click", choose);
  return one;
}

/**
 * Show numbers; those that are not the page's are marked, weights are shaded.
 * @param {HTMLTableElement} whole @param {Table} now @param {Table} page @param {boolean} shaded
 */
export function show(whole, now, page, shaded) {
  [...whole.tBodies[0].rows].forEach((row, i) =>
    [...row.cells].slice(1).forEach((one, j) => {
      one.textContent = written(now[i][j], DECIMALS);
      one.classList.toggle("changed", written(now[i][j]) !== written(page[i][j]));
      if (shaded) one.style.setProperty("--weight", String(Math.min(1, now[i][j])));
    }),
  );
}
