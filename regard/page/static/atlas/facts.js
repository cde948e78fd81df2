/** What an atlas' pages read: data that all share, data of their own, and how its numbers are written. */
import { make } from "../dom.js";
import { count, signed, weight } from "../format.js";

export const UNMEASURED = "not measured";

/** Data of this page alone. @returns {any} */
export const own = () => JSON.parse(document.getElementById("data")?.textContent ?? "null");

export const about = regardAtlas.about;
export const columns = regardAtlas.columns;

/** @type {Record<string, string>} */
const GROUPS = {
  roles: "Roles",
  rest: "At rest",
  reach: "Reach",
  moved: "Moved",
  headvis: "HeadVis",
  needed: "Needed",
};

export const groupName = (/** @type {string} */ group) => GROUPS[group] ?? group;

export const nameOf = (/** @type {HeadPlace} */ { layer, head }) => `${layer}.${head}`;

/** A head's page, from the atlas' folder. */
export const pageOf = (/** @type {HeadPlace} */ { layer, head }) => `L${layer}H${head}/index.html`;

/** A share in percent: figures that count, and never a 0 that is none. */
export function percent(/** @type {number} */ value) {
  const size = Math.abs(100 * value);
  if (size > 0 && size < 0.005) return "under 0.01\u00a0%";
  return `${signed(100 * value, size >= 9.95 || size === 0 ? 0 : size >= 0.995 ? 1 : 2)}\u00a0%`;
}

/** A count in a sentence, on one line. */
export const unbroken = (/** @type {string} */ text) => text.replace(/(?<=\d) (?=\d)/g, "\u00a0");

/** A number in its unit. */
export function written(/** @type {number|null|undefined} */ value, /** @type {string} */ unit) {
  if (value == null) return UNMEASURED;
  if (unit === "share") return percent(value);
  if (unit === "lead" || unit === "nats") return signed(value, 2);
  if (unit === "tokens") return Math.abs(value) >= 100 ? count(Math.round(value)) : signed(value, 1);
  return Number.isInteger(value) ? count(value) : weight(value);
}

/** What a unit is called beside a number; a share and a lead say it themselves. */
export const unitName = (/** @type {string} */ unit) => (unit === "nats" || unit === "tokens" ? ` ${unit}` : "");

/** Half the width of an interval, after its number. */
export const margin = (/** @type {number|null|undefined} */ value, /** @type {string} */ unit) =>
  value == null ? "" : ` ± ${written(value, unit)}`;

/** A number in a table, where there is little room for words; a voice says them. @returns {Node|string} */
export const cell = (/** @type {number|null|undefined} */ value, /** @type {string} */ unit) =>
  value == null
    ? make("span", { className: "none", title: UNMEASURED }, make("span", { "aria-hidden": "true" }, "–"), unseen())
    : written(value, unit);

const unseen = () => make("span", { className: "unseen", textContent: UNMEASURED });
