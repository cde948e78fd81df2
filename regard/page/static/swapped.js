/** A text in which a word was swapped: what the page shows of the run before, beside the one now. */
import * as api from "./api.js";
import { Replaced, ServerError } from "./errors.js";
import { make } from "./dom.js";
import { during } from "./pending.js";
import { strongestOf } from "./quantities.js";
import { get, placeOf } from "./store.js";
import { placeIn, placesOf } from "./swap_words.js";

/** The swap that a run comes from; null where it comes from none. */
export function swapOf(/** @type {Run|null} */ run) {
  const { swap } = get();
  return run && swap?.run === run.id ? swap : null;
}

/** The run that a swap was taken back to. @type {string|null} */
let returned = null;
export const returnedTo = (/** @type {string} */ id) => {
  returned = id;
};

/** Whether a text stands beside another, from which it was swapped or to which it was taken back: a head may stay. */
export const isBeside = (/** @type {Run} */ run) => swapOf(run) !== null || returned === run.id;

/**
 * Marks the word that was put into a text, and writes the one before beside it, struck through.
 * @param {Run} run @param {HTMLElement[]} spans of its tokens @param {number} first the first token there is
 */
export function markSwap(run, spans, first) {
  const swap = swapOf(run);
  for (const span of spans) if (span.previousElementSibling?.matches(".former")) span.previousElementSibling.remove();
  const places = swap ? placesOf(run) : [];
  spans.forEach((span, k) => {
    const place = places[first + k];
    span.classList.toggle("swapped", Boolean(swap && place && place[0] < swap.stop && place[1] > swap.start));
  });
  const put = spans.find((span) => span.classList.contains("swapped"));
  if (!swap || !put) return;
  const gap = /^\s/.test(put.textContent ?? "") ? ["", " "] : [" ", ""]; // a token holds the space before its word
  const old = make("s", { textContent: swap.old });
  put.before(make("span", { className: "former", title: "the word before" }, gap[1], old, gap[0]));
}

/** The run before a swap, open: a server keeps only so many. @returns {Promise<Run>} */
export async function formerRun(/** @type {Swap} */ { was }) {
  try {
    return await api.fetchRun(was.id, "former");
  } catch (error) {
    if (error instanceof Replaced || was.text == null) throw error;
    return api.open(was.text, "former");
  }
}

/**
 * The key that a head attended to most before the swap, as a place in the text now; null without a swap, or where
 * that is the same key still.
 * @param {HeadName & {run: Run|null}} source @param {number} query @param {Float32Array} row of the run now
 * @param {string} [view]
 */
export async function formerKey(source, query, row, view = "former-row") {
  const { run } = source;
  const swap = swapOf(run);
  if (!swap || !run) return null;
  try {
    const at = placeIn(swap.was, run, query);
    const { values } = await during(api.row(swap.was.id, placeOf(source), at, view));
    const key = strongestOf(values);
    const place = key < 0 ? null : placeIn(run, swap.was, key);
    return place === strongestOf(row) ? null : place;
  } catch (error) {
    if (error instanceof ServerError || error instanceof Replaced) return null;
    throw error;
  }
}

/** A head that looks at one token looks there with so much of its weight. */
const AT_ONE = 0.5;

/**
 * Which heads look at one token from the last, and before a swap at another: where they are among those given.
 * @param {Run} run @param {HeadPlace[]} heads @param {(Floats|null)[]} rows of the run now
 */
export async function movedKeys(run, heads, rows) {
  if (!swapOf(run)) return [];
  const sees = heads.map((_, k) => Math.max(...(rows[k]?.values ?? [0])) >= AT_ONE);
  const keys = await Promise.all(
    heads.map((one, k) => {
      const source = { run, ...one, average: /** @type {const} */ ("head") };
      return sees[k] ? formerKey(source, run.length - 1, /** @type {Floats} */ (rows[k]).values, `former-${k}`) : null;
    }),
  );
  return heads.flatMap((_, k) => (keys[k] == null ? [] : [k]));
}

/**
 * What is likely next, with what was so before the swap. Of a run the likeliest are known alone, so another token's
 * probability is at most that of the last of them.
 * @param {Run|null} run
 */
export function besideFormer(run) {
  const next = swapOf(run)?.was.next;
  if (!run?.next || !next) return run;
  const least = (/** @type {Candidate[]} */ some) => some[some.length - 1].probability;
  const [now, then] = [run.next, next].map((some) => new Map(some.map((one) => [one.token, one.probability])));
  const all = new Map([...run.next, ...next].map((one) => [one.token, one]));
  const both = [...all.values()].map((one) => ({
    ...one,
    probability: now.get(one.token) ?? least(run.next ?? []),
    before: then.get(one.token) ?? least(next),
    ...(then.has(one.token)
      ? now.has(one.token)
        ? {}
        : { atMost: /** @type {const} */ ("probability") }
      : { atMost: /** @type {const} */ ("before") }),
  }));
  const most = (/** @type {{probability: number, before: number}} */ { probability, before }) =>
    Math.max(probability, before);
  return { ...run, next: both.toSorted((a, b) => most(b) - most(a)).slice(0, run.next.length) };
}

/** The swap as an address has it: where the word stands, how long it is, and the word before. */
export const writeSwap = (/** @type {Swap} */ { start, stop, old }) => `${start},${stop - start},${old}`;

/**
 * The swap that an address has: where it stands in the text, and the text before.
 * @param {string|null} written @param {string|null} text
 */
export function readSwap(written, text) {
  const [, at, length, old] = /^(\d{1,6}),(\d{1,6}),(.+)$/su.exec(written ?? "") ?? [];
  const [start, stop] = [Number(at), Number(at) + Number(length)];
  if (!old || text == null || stop > text.length || start === stop) return null;
  return { start, stop, old, before: text.slice(0, start) + old + text.slice(stop) };
}
