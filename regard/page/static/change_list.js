/** Changes of a model's attention, as the address and the page's words have them. Knows nothing of the page. */
import { quoted } from "./format.js";

const ALL = "all";

/** Changes as a word of an address: `off.2.0_cut.1.3.5-8.0-2`, where "all" stands for all there are. */
export const writeChanges = (/** @type {Change[]} */ changes) => changes.map(written).join("_");

function written(/** @type {Change} */ change) {
  if (change.kind === "off") return `off.${change.layer}.${change.head}`;
  const { layer, head, queries, keys } = change;
  const span = (/** @type {Span|null} */ one) => one?.join("-") ?? ALL;
  return ["cut", layer ?? ALL, head ?? ALL, span(queries), span(keys)].join(".");
}

/** Reads them again: only what the text and its model have. */
export function readChanges(/** @type {string|null} */ word, /** @type {Run} */ run) {
  const found = (word ?? "").split("_").map((one) => read(one.split("."), run));
  /** @type {Change[]} */
  const changes = [];
  for (const change of found) if (change && !changes.some((other) => isSame(other, change))) changes.push(change);
  return changes.slice(0, MOST_CHANGES);
}

/** Most changes that the server takes. */
export const MOST_CHANGES = 64;

/** @returns {Change|null} */
function read(/** @type {string[]} */ [kind, ...parts], /** @type {Run} */ run) {
  const [layer, head] = [number(parts[0]), number(parts[1])];
  const heads = layer == null ? 0 : (run.layers[layer]?.heads.length ?? 0);
  if (kind === "off") return layer != null && head != null && head < heads ? { kind, layer, head } : null;
  const everywhere = parts[0] === ALL && parts[1] === ALL;
  const within = heads > 0 && (parts[1] === ALL || (head != null && head < heads));
  const keys = range(parts[3], run.length);
  const queries = range(parts[2], run.length);
  if (kind !== "cut" || !(everywhere || within) || !keys) return null;
  if (!queries && (parts[2] !== ALL || keys[1] === run.length)) return null;
  return { kind, layer, head, queries, keys };
}

const number = (/** @type {string|undefined} */ text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);

/** @returns {Span|null} */
function range(/** @type {string|undefined} */ text, /** @type {number} */ length) {
  const [first, stop] = (text ?? "").split("-").map(number);
  return first != null && stop != null && first < stop && stop <= length ? [first, stop] : null;
}

export const isSame = (/** @type {Change} */ one, /** @type {Change} */ other) => written(one) === written(other);

/** Whether a change concerns a head, or all heads of a mean. */
export function concerns(/** @type {Change} */ { layer, head }, /** @type {HeadName} */ place) {
  const [inLayer, inHead] = [layer ?? place.layer, head ?? place.head];
  if (place.average === "model") return layer == null;
  return inLayer === place.layer && (place.average === "layer" ? head == null : inHead === place.head);
}

/** A layer and a head as people name them: 2·0. */
export const headName = (/** @type {Run} */ run, /** @type {number} */ layer, /** @type {number} */ head) =>
  `${run.layers[layer].index}·${run.layers[layer].heads[head]}`;

/** Where a change is made. */
function scope(/** @type {Run} */ run, /** @type {Cut} */ { layer, head }) {
  if (layer == null) return "all heads";
  return head == null ? `layer ${run.layers[layer].index}` : headName(run, layer, head);
}

/** A span of tokens in words: one by what it is, several by their numbers. */
export function tokensName(/** @type {Run} */ { labels }, /** @type {Span} */ [first, stop]) {
  if (stop > first + 1) return `${first}–${stop - 1}`;
  return labels[first] === String(first) ? String(first) : `${first} ${quoted(labels[first], 14)}`;
}

/** A change in a few words: what stands on its chip. */
export function changeName(/** @type {Run} */ run, /** @type {Change} */ change) {
  if (change.kind === "off") return `head ${headName(run, change.layer, change.head)} off`;
  const keys = tokensName(run, change.keys);
  const what = change.queries ? `${tokensName(run, change.queries)} → ${keys}` : keys;
  return `${what} cut in ${scope(run, change)}`;
}

/** What a cut does, as a sentence. */
export function cutSentence(/** @type {Run} */ run, /** @type {Cut} */ cut) {
  const queries = cut.queries ? tokensName(run, cut.queries) : "all later tokens";
  return `Hides ${tokensName(run, cut.keys)} from ${queries} in ${scope(run, cut)}.`;
}

/** What changes are made, as the beginning of a sentence: With head 2·0 switched off, … */
export function under(/** @type {Run} */ run, /** @type {Change[]} */ changes) {
  const heads = changes.flatMap((one) => (one.kind === "off" ? [headName(run, one.layer, one.head)] : []));
  const [first] = changes;
  if (changes.length === 1 && first.kind === "cut") {
    const { keys, layer, head } = first;
    const where = layer == null ? "everywhere" : `in ${head == null ? "" : "head "}${scope(run, first)}`;
    return `With token${keys[1] - keys[0] > 1 ? "s" : ""} ${tokensName(run, keys)} cut ${where},`;
  }
  if (heads.length !== changes.length || heads.length > 4) return `With these ${changes.length} changes,`;
  const last = heads.pop();
  return `With head${heads.length ? `s ${heads.join(", ")} and` : ""} ${last} switched off,`;
}
