/** What happens here, in one sentence made from the data: where a head looks, and what the next token is without it. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { headName } from "./change_list.js";
import { byId, make, markStale, settled } from "./dom.js";
import { part, plural, quoted, said } from "./format.js";
import { prepare } from "./session.js";
import { get, placeOf, set, sourceOf, subscribe } from "./store.js";

/** Below it no single token is looked at. */
const FAINT = 0.1;
/** Neighbours of the strongest key that are named with it have at least so much of its weight. */
const NEAR = 0.25;
/** Keys on which heads rest that are named. */
const NAMED = 3;
/** A change of probability that is not worth a number. */
const LITTLE = 0.01;

let requests = 0;
/** Runs without a head, by text and head. @type {Map<string, Run>} */
const known = new Map();

export function startSentence() {
  const soon = settled(30, writeSentence);
  subscribe("plain view query layer head average about rests choosing", () => {
    const { view, plain, without } = get();
    if (without && (view !== "opening" || without.of !== plain?.id)) set({ without: null });
    byId("saying").hidden = view !== "opening" || !plain;
    markStale(byId("sentence"), view === "opening");
    soon();
  });
}

async function writeSentence() {
  const { view, plain, about, rests, choosing } = get();
  const source = sourceOf("first");
  const mine = ++requests;
  if (view !== "opening" || !plain || (choosing === plain && source.query == null)) return;
  const query = source.query ?? plain.length - 1;
  const row = await awaitAnswer(api.row(plain.id, placeOf(source), query, "sentence"));
  if (!row || mine !== requests) return;
  const { layer, head, average } = source;
  const first = looks(plain, source, query, row.values);
  const last = query === plain.length - 1;
  /** @type {Run|null} */
  let without = null;
  if (about?.writes && last && plain.next && average === "head") {
    const name = `${plain.id}/${layer}/${head}`;
    without = known.get(name) ?? null;
    if (!without) {
      const answer = await awaitAnswer(api.change(plain.id, [{ kind: "off", layer, head }], "sentence-without"));
      if (mine !== requests) return;
      if (answer) {
        if (known.size > 100) known.clear();
        known.set(name, (without = prepare(answer)));
      }
    }
  }
  set({ without: without && { of: plain.id, layer, head, run: without } });
  const rest = last && rests?.run === plain.id ? resting(plain, rests.keys) : "";
  byId("sentence").replaceChildren(rest, ...first, ...(without ? becomes(plain, without) : []));
  markStale(byId("sentence"), false);
}

/** Where the greatest of some weights is; -1 where all are 0. */
export function strongestOf(/** @type {ArrayLike<number>} */ weights) {
  let best = -1;
  for (let k = 0; k < weights.length; k++) if (weights[k] > (best < 0 ? 0 : weights[best])) best = k;
  return best;
}

const accented = (/** @type {string} */ textContent) => make("em", { textContent });
const listed = (/** @type {string[]} */ words) =>
  [words.slice(0, -1).join(", "), ...words.slice(-1)].filter(Boolean).join(" and ");
const changed = (/** @type {string} */ textContent) => make("i", { textContent });

const answerOf = (/** @type {Candidate} */ { label }) => said(label);

/**
 * The first half: who looks where.
 * @param {Run} run @param {HeadName} source @param {number} query @param {Float32Array} weights
 * @returns {(Node|string)[]}
 */
function looks(run, source, query, weights) {
  const key = strongestOf(weights);
  const who = whoOf(run, source);
  const next = query === run.length - 1 ? run.next?.[0] : null;
  const lead = next ? ["To say ", accented(answerOf(next)), `, ${who}`] : [`At ${quoted(run.labels[query])} `, who];
  if (key < 0) return [...lead, " sees nothing."];
  if (weights[key] < FAINT) return [...lead, ` looks everywhere, nowhere with more than ${part(weights[key])}.`];
  const number = next ? [] : [", with weight ", accented(part(weights[key]))];
  if (key === query) return [...lead, " stays where it is, on ", accented(quoted(run.labels[key])), ...number, "."];
  const way = key < query ? "looks back at" : "looks ahead at";
  return [...lead, ` ${way} `, accented(phrase(run, weights, key)), ...number, "."];
}

/** On what heads rest, where they do. */
function resting(/** @type {Run} */ run, /** @type {Rest[]} */ rests) {
  if (!rests.length) return "";
  const heads = run.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  const shares = rests
    .slice(0, NAMED)
    .map(({ key, share }, k) => `${part(share)}${k ? "" : " rests"} on ${quoted(run.labels[key])}`);
  return `Of all the weight of ${plural(heads, "head")}, ${listed(shares)}. `;
}

function whoOf(/** @type {Run} */ run, /** @type {HeadName} */ { layer, head, average }) {
  if (average === "model") return "the mean of all heads";
  if (average === "layer") return `layer ${run.layers[layer].index} on average`;
  return `head ${headName(run, layer, head)}`;
}

/** The strongest key with the neighbours that share its weight, as one phrase. */
function phrase(/** @type {Run} */ run, /** @type {Float32Array} */ weights, /** @type {number} */ key) {
  const shares = (/** @type {number} */ k) => weights[k] >= NEAR * weights[key];
  let [start, stop] = [key, key + 1];
  if (start > 0 && shares(start - 1)) start -= 1;
  if (stop < run.length - 1 && shares(stop)) stop += 1;
  return quoted(run.labels.slice(start, stop).join(""), 32);
}

/** The second half: what the next token is without the head. @returns {(Node|string)[]} */
function becomes(/** @type {Run} */ plain, /** @type {Run} */ without) {
  const [answer] = plain.next ?? [];
  const after = without.next?.find(({ token }) => token === answer.token);
  const [winner] = [...(without.next ?? [])].sort((a, b) => b.probability - a.probability);
  if (!after || !winner) return [];
  if (winner.token !== answer.token) return [" Without it, the answer becomes ", changed(answerOf(winner)), "."];
  const [p, q] = [answer.probability, after.probability];
  if (Math.abs(p - q) < LITTLE) return [" Without it, the answer stays the same."];
  return [
    ` Without it, the answer ${q < p ? "falls" : "rises"} from `,
    accented(part(p)),
    " to ",
    changed(part(q)),
    ".",
  ];
}
