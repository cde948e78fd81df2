/** Small charts of a head's numbers: pictures for the eye, with all of their numbers in words. */
import { make } from "../dom.js";
import { count } from "../format.js";
import { UNMEASURED, percent } from "./facts.js";

/**
 * Columns beside each other.
 * @param {string} label
 * @param {{name: string, short: string, value: number|null, even?: number|null, words: string}[]} entries
 *   short: what stands below the column; even: what is marked by a line
 */
export function columnChart(label, entries) {
  const most = Math.max(1e-9, ...entries.flatMap(({ value, even }) => [value ?? 0, even ?? 0]));
  const high = (/** @type {number|null|undefined} */ value) => `${(100 * (value ?? 0)) / most}%`;
  return make(
    "div",
    {
      className: "columns",
      role: "img",
      "aria-label": `${label}: ${entries.map(({ name, words }) => `${name}: ${words}`).join("; ")}`,
    },
    ...entries.map(({ name, short, value, even, words }) =>
      make(
        "span",
        { title: `${name}: ${words}` },
        make(
          "span",
          { className: "room" },
          value ? make("i", { className: "bar", style: { height: high(value) } }) : null,
          even == null ? null : make("i", { className: "even", style: { bottom: high(even) } }),
        ),
        make("small", { textContent: short }),
      ),
    ),
  );
}

/** 1024 as 1k, where there is little room. */
const thousands = (/** @type {number} */ value) => (value < 1000 ? String(value) : `${Math.floor(value / 1000)}k`);

/** A distance's bin: 4–7, or 256 or more. */
export const binName = (/** @type {number[]} */ edges, /** @type {number} */ k) => {
  const stop = edges[k + 1];
  if (stop == null) return `${edges[k]} or more`;
  return stop - edges[k] === 1 ? String(edges[k]) : `${edges[k]}–${stop - 1}`;
};

/**
 * Rows of a name, a bar and a number; shares of one whole.
 * @param {string} label @param {[name: string, share: number|null, title?: string][]} rows
 */
export const shareRows = (label, rows) =>
  make(
    "dl",
    { className: "shares", "aria-label": label },
    ...rows.flatMap(([name, share, title = ""]) => [
      make("dt", { textContent: name, title }),
      make(
        "dd",
        {},
        make(
          "span",
          { className: "room" },
          share ? make("i", { className: "bar", style: { width: percentOf(share) } }) : null,
        ),
        make("b", { textContent: share == null ? UNMEASURED : percent(share) }),
      ),
    ]),
  );

const percentOf = (/** @type {number} */ share) => `${100 * Math.max(0, Math.min(1, share))}%`;

/** The distance profile against the head that looks everywhere alike. */
export function profileChart(/** @type {NonNullable<AtlasDetails["profile"]>} */ { edges, share, uniform }) {
  const word = (/** @type {number|null|undefined} */ value) => (value == null ? UNMEASURED : percent(value));
  return columnChart(
    "Weight beside the sinks by distance in tokens, and that of a head that looks everywhere alike",
    share.map((value, k) => ({
      name: binName(edges, k),
      short: k + 1 < share.length ? thousands(edges[k]) : `${thousands(edges[k])}+`,
      value,
      even: uniform[k],
      words: `${word(value)}, everywhere alike ${word(uniform[k])}`,
    })),
  );
}

/** How large the largest weight of a row is. */
export const histogramChart = (/** @type {NonNullable<AtlasDetails["histogram"]>} */ { edges, counts }) =>
  columnChart(
    "Rows by their largest weight beside the sinks",
    counts.map((value, k) => ({
      name: `${edges[k]}–${edges[k + 1] ?? 1}`,
      short: String(edges[k]),
      value,
      words: `${count(value)} rows`,
    })),
  );
