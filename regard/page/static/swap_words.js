/** The words of a text: where each stands in it and in its tokens, and which others stand in the same role. */
import { characterAt } from "./characters.js";

/** @typedef {{word: string, start: number, stop: number}} Word start and stop: in the text, one past the last */

const WORD = /[\p{L}\p{N}\p{M}]+(?:['’-][\p{L}\p{N}\p{M}]+)*/gu;
const SIGNS = /** @type {Record<string, string>} */ ({ "↵": "\n", "⇥": "\t", "␍": "\r" });
/** Words of the text that are offered for another. */
const OFFERED = 4;
/** Words of a kind so small that a text seldom has another: each stands for the others of its line. */
const SETS = [
  ["he", "she", "they"],
  ["him", "her", "them"],
  ["his", "her", "their"],
];

/**
 * Where each token stands in its text, first and one past its last; null of those that are not of the text, and from
 * the first on that can't be found there, as of a tokenizer that writes the text anew.
 * @param {Run} run @returns {(Span|null)[]}
 */
export function placesOf(run) {
  const { text, tokens } = run;
  /** @type {(Span|null)[]} */
  const places = tokens.map(() => null);
  if (text == null) return places;
  const labels = tokens.map(({ label }) => label);
  for (let [k, at] = [0, 0]; k < tokens.length; k++) {
    if (tokens[k].added) continue;
    const whole = characterAt(labels, k);
    const said = whole ? [whole.character] : writings(tokens[k].text, at);
    const found = said.find((one) => text.startsWith(one, at));
    if (found == null) break;
    const stop = at + found.length;
    for (const last = whole?.stop ?? k + 1; k < last; k++) places[k] = [at, stop];
    [k, at] = [k - 1, stop];
  }
  return places;
}

/** What a token may be in its text: as it is shown, or with the characters that signs stand for. */
function writings(/** @type {string} */ shown, /** @type {number} */ at) {
  const meant = shown
    .replace(/[↵⇥␍]/gu, (sign) => SIGNS[sign])
    .replace(/<U\+([0-9A-F]{4,6})>/g, (_, digits) => String.fromCodePoint(Number.parseInt(digits, 16)))
    .replace(/^◌/u, "");
  return at ? [shown, meant] : [shown, meant, shown.trimStart()]; // some write a space before the first word
}

/**
 * The word that a token is of; a token without letters is one by itself, and white space is none.
 * @param {Run} run @param {number} token @returns {Word|null}
 */
export function wordAt(run, token) {
  const place = placesOf(run)[token];
  const text = run.text ?? "";
  if (!place) return null;
  const [start, stop] = place;
  const whole = wordsOf(text).find((one) => one.start < stop && one.stop > start);
  if (whole) return whole;
  const word = text.slice(start, stop).trim();
  const at = text.indexOf(word, start);
  return word ? { word, start: at, stop: at + word.length } : null;
}

/** @param {string} text @returns {Word[]} */
const wordsOf = (text) =>
  [...text.matchAll(WORD)].map((one) => ({ word: one[0], start: one.index, stop: one.index + one[0].length }));

/** A text with another word in the place of one. */
export const withWord = (/** @type {string} */ text, /** @type {Word} */ { start, stop }, /** @type {string} */ word) =>
  text.slice(0, start) + word + text.slice(stop);

/** What is read before a word to expect it: a token holds the space before its word. */
export const before = (/** @type {string} */ text, /** @type {Word} */ { start }) =>
  text.slice(0, start).replace(/ $/, "");

/** A word that could be written like another: both begin with a capital letter, with a small one, or with a digit. */
const kindOf = (/** @type {string} */ word) =>
  /^\p{N}/u.test(word) ? "number" : /^\p{Lu}/u.test(word) ? "name" : "word";

/**
 * Other words in the role of one, the likeliest first: for a pronoun the others, then those of the text that follow or
 * come before the same words as it does anywhere, names among names, numbers among numbers.
 * @param {string} text @param {Word} word @returns {string[]}
 */
export function peersOf(text, { word }) {
  const words = wordsOf(text).map((one, k, all) => {
    const [last, next] = [all[k - 1], all[k + 1]];
    const gap = (/** @type {number} */ from, /** @type {number} */ to) => text.slice(from, to);
    return {
      ...one,
      after: last && gap(last.stop, one.start) === " " ? last.word.toLowerCase() : null,
      before: next && gap(one.stop, next.start) === " " ? next.word.toLowerCase() : null,
      isFirst: !last || /[.!?:\n"“]\s*["“]?$/.test(gap(last.stop, one.start)),
    };
  });
  const own = words.filter((one) => one.word === word);
  const isName = own.some(({ isFirst }) => !isFirst) && kindOf(word) === "name";
  /** @type {Map<string, number>} */
  const worth = new Map();
  for (const one of words) {
    if (one.word.toLowerCase() === word.toLowerCase() || kindOf(one.word) !== kindOf(word)) continue;
    const shared = (/** @type {"after"|"before"} */ side) =>
      Number(one[side] != null && own.some((mine) => mine[side] === one[side]));
    const alike = kindOf(word) === "number" || (isName && !one.isFirst) ? 1 : 0;
    worth.set(one.word, Math.max(worth.get(one.word) ?? 0, 2 * shared("after") + 2 * shared("before") + alike));
  }
  const peers = [...worth].filter(([, much]) => much > 0).sort((a, b) => b[1] - a[1]);
  const others = SETS.find((one) => one.includes(word))?.filter((one) => one !== word) ?? [];
  return [...new Set([...others, ...peers.map(([one]) => one)])].slice(0, OFFERED);
}

/**
 * The words that a model expects at a place, of its likeliest next tokens after what is read before it.
 * @param {Candidate[]} next @param {boolean} spaced whether a space stands before the word
 */
export function expectedOf(next, spaced) {
  return next.flatMap(({ label, probability }) => {
    const word = label.replace(/^␣/u, "");
    return (label !== word) === spaced && /^[\p{L}\p{N}]+$/u.test(word) ? [{ word, probability }] : [];
  });
}

/**
 * The token of a text in the place of another's, where a word of the first is another: before it they are the same,
 * after it they are counted from the end, and within it the first of the word stands for all.
 * @param {Run} to @param {Run} from @param {number} token of `from`
 */
export function placeIn(to, from, token) {
  const most = Math.min(to.length, from.length);
  let first = 0;
  while (first < most && to.labels[first] === from.labels[first]) first++;
  let last = 0;
  while (last < most - first && to.labels[to.length - 1 - last] === from.labels[from.length - 1 - last]) last++;
  if (token < first) return token;
  return token >= from.length - last ? token + to.length - from.length : Math.min(first, to.length - 1);
}
