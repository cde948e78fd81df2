/** What happens here, in one sentence made from the data: where a head looks, and what the next token is without it. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { headName, under } from "./change_list.js";
import { changedNow, isOff } from "./changes.js";
import { byId, make, markStale, settled } from "./dom.js";
import { LITTLE, atLeast, isBlank, isEnd, part, plural, quoted, said, signed, weight } from "./format.js";
import { worstHead } from "./matters.js";
import { MANY, isOwn } from "./opening.js";
import { TOO_SHORT, areWeights, strongestOf } from "./quantities.js";
import { append, prepare } from "./session.js";
import { figuresOf, get, headCount, placeOf, set, sourceOf, subscribe } from "./store.js";
import { putWords } from "./words.js";

/** Below it no single token is looked at. */
const FAINT = 0.1;
/** Neighbours of the strongest key that are named with it have at least so much of its weight. */
const NEAR = 0.25;
/** Keys on which heads rest that are named. */
const NAMED = 3;
/** Below this probability the model is said not to know. */
const SURE = 0.5;

let requests = 0;
/** Runs without a head, by text and head. @type {Map<string, Run>} */
const known = new Map();

export function startSentence() {
  const soon = settled(30, writeSentence);
  subscribe("plain view query layer head average shows about rests writer choosing changes changed effects", () => {
    const { view, plain, without } = get();
    if (without && (view !== "opening" || without.of !== plain?.id)) set({ without: null });
    byId("saying").hidden = view !== "opening" || !plain;
    markStale(byId("sentence"), view === "opening");
    soon();
  });
  subscribe("measuring", () => isAwaited() && announce());
}

/** Whether the head of the text is still being chosen, so that there is no sentence about it yet. */
function isAwaited() {
  const { view, plain, choosing, changes } = get();
  return view === "opening" && plain && choosing === plain && !changes.length && sourceOf("first").query == null;
}

/** Says what comes next, which is known at once, and what is being measured. */
function announce() {
  const { plain, measuring, about } = get();
  const answer = plain && likeliest(plain);
  if (!plain || !answer || !about?.writes) return;
  write(coming(answer), [
    measuring
      ? `Measuring what is lost with each head switched off: ${measuring} …`
      : headCount(plain) > MANY
        ? "Finding the head that adds most to it, and measuring what is lost without it …"
        : "Looking where its heads look …",
  ]);
}

async function writeSentence() {
  const { view, plain, about, changes } = get();
  const source = sourceOf("first");
  const mine = ++requests;
  const run = changes.length ? changedNow() : plain;
  if (view !== "opening" || !plain || !run) return;
  if (isAwaited()) return announce();
  const query = source.query ?? run.length - 1;
  const row = await awaitAnswer(api.row(run.id, placeOf(source), query, "sentence"));
  if (!row || mine !== requests) return;
  const { layer, head, average } = source;
  const last = query === run.length - 1;
  /** @type {Run|null} */
  let without = null;
  if (about?.writes && last && plain.next && average === "head" && !changes.length && !isMute(plain)) {
    const name = `${plain.id}/${layer}/${head}`;
    without = known.get(name) ?? null;
    if (!without) {
      write(saying(run, source, query, row.values), asides(plain, source, null)); // what is known already
      const answer = await awaitAnswer(api.change(plain.id, [{ kind: "off", layer, head }], "sentence-without"));
      if (mine !== requests) return;
      if (answer) {
        if (known.size > 100) known.clear();
        known.set(name, (without = prepare(answer)));
      }
    }
  }
  set({ without: without && { of: plain.id, layer, head, run: without } });
  write(
    [...saying(run, source, query, row.values), ...(without ? becomes(plain, without, source) : [])],
    last && !changes.length ? asides(plain, source, without) : [],
  );
}

/** @param {(Node|string)[]} sentence @param {(Node|string)[]} aside */
function write(sentence, aside) {
  const seen = new Set();
  putWords(byId("sentence"), sentence, seen);
  putWords(byId("aside"), aside, seen);
  markStale(byId("sentence"), false);
}

/** Whether there is nothing to say of heads: nothing is asked of them before a word, or there is nothing to look at. */
function isMute(/** @type {Run} */ run) {
  const answer = likeliest(run);
  return answer != null && isOwn() && (run.length === 1 || isBlank(answer.label));
}

const accented = (/** @type {string} */ textContent) => make("em", { textContent });
const listed = (/** @type {string[]} */ words) =>
  [words.slice(0, -1).join(", "), ...words.slice(-1)].filter(Boolean).join(" and ");
const changed = (/** @type {string} */ textContent) => make("i", { textContent });

/** What comes next, or that the model does not know. @returns {(Node|string)[]} */
function coming(/** @type {Candidate} */ { label, probability }) {
  const [name, p] = [accented(said(label)), part(probability)];
  return probability < SURE
    ? ["The model does not know what comes next: its likeliest, ", name, `, has probability ${p}.`]
    : ["Next comes ", name, ` (probability ${p}).`];
}

/** The same where heads have nothing to do with it, or what they have to do with it is not asked. */
function only(/** @type {Run} */ run, /** @type {Candidate} */ answer) {
  if (run.length === 1) return [...coming(answer), " With a single token there is nothing to look back at."];
  const onward = make("button", { type: "button", textContent: "Read past it", onclick: () => append(answer.token) });
  return [...coming(answer), " Which word comes after that is not asked yet. ", onward];
}

/**
 * The first half: what comes next, and who looks where for it.
 * @param {Run} run @param {HeadName} source @param {number} query @param {Float32Array} weights
 * @returns {(Node|string)[]}
 */
function saying(run, source, query, weights) {
  const { changes } = get();
  const answer = query === run.length - 1 ? likeliest(run) : null;
  const made = changes.length ? `${under(run, changes)} ` : "";
  if (answer && !made && isMute(run)) return only(run, answer);
  const off = source.average === "head" && isOff(source.layer, source.head);
  const who = whoOf(run, source);
  const where = off ? [] : [who, ...looks(run, query, weights, !answer)];
  if (!answer && off) return [made, `${who} adds nothing at ${quoted(run.labels[query])}.`];
  if (!answer) return [made, made ? "at " : "At ", quoted(run.labels[query]), " ", ...where, "."];
  const written = made ? null : wrote(run, source, answer);
  if (written) return written;
  const name = accented(said(answer.label));
  const p = part(answer.probability);
  if (answer.probability < SURE) {
    const lead = [made, made ? "the" : "The", " model does not know what comes next: its likeliest, ", name];
    return [...lead, `, has probability ${p}.`, ...(off ? [] : [" ", ...sentenceCase(where), "."])];
  }
  if (made) return [made, "the model says ", name, ` (probability ${p})`, ...(off ? [] : ["; ", ...where]), "."];
  const doing = isEnd(answer.label) ? ["To ", accented("end the text")] : ["To say ", name];
  return [...doing, ` (probability ${p}), `, ...where, "."];
}

/** The token that is likeliest now; null where none is known. */
const likeliest = (/** @type {Run} */ run) =>
  run.next?.reduce((best, one) => (one.probability > best.probability ? one : best)) ?? null;

/** @param {(Node|string)[]} parts the first is a string */
const sentenceCase = ([first, ...rest]) => [`${String(first)[0].toUpperCase()}${String(first).slice(1)}`, ...rest];

/**
 * That a head writes the answer, and from where, or that no single head does; null where another head is chosen, or it
 * is not known.
 * @param {Run} run @param {HeadName} source @param {Candidate} answer @returns {(Node|string)[]|null}
 */
function wrote(run, source, answer) {
  const writer = writerNow(run, source);
  if (!writer) return null;
  const name = headName(run, writer.layer, writer.head);
  const from = accented(quoted(run.labels[writer.source]));
  const [says, p] = [accented(said(answer.label)), part(answer.probability)];
  if (!writer.decides) return [...coming(answer), " No single head decides it."];
  if (answer.probability < SURE) return [...coming(answer), ` Head ${name} adds most to it, from `, from, "."];
  return [`Head ${name} writes `, says, ` (probability ${p}) from `, from, "."];
}

/** The head that writes the next token, where it is the chosen one. @param {Run} run @param {HeadName} source */
function writerNow(run, { layer, head, average }) {
  const { writer, shows } = get();
  const isChosen = writer?.run === run.id && writer.layer === layer && writer.head === head && average === "head";
  return isChosen && shows === "weight" ? writer : null;
}

/**
 * The quiet line: how much the head adds that writes it, which head more is lost without, and on what heads rest.
 * @param {Run} run @param {HeadName} source @param {Run|null} without @returns {string[]}
 */
function asides(run, source, without) {
  const { rests } = get();
  const writer = isMute(run) ? null : writerNow(run, source);
  return [
    writer ? adds(run, writer) : without ? more(run, without) : "",
    rests?.run === run.id ? resting(run, rests.keys) : "",
  ];
}

/** @param {Run} run @param {Writer} writer */
function adds(run, { layer, head, share, margin, against, source, decides, loss }) {
  const who = decides
    ? "It"
    : `Most is added by head ${headName(run, layer, head)}, from ${quoted(run.labels[source])}: it`;
  // Of a token that the model is sure of, the sentence has it.
  const isTold = (run.next?.[0].probability ?? 0) >= SURE;
  const change = loss > 0 ? `falls by ${signed(loss, 2)}` : `rises by ${signed(-loss, 2)}`;
  const lost = isTold ? "" : `; with it switched off, the log-probability ${change}`;
  const lead = `adds ${signed(share, 1)} to a lead in logit of ${signed(margin, 1)} over ${quoted(against)}`;
  return `${who} ${lead}${lost}. `;
}

/** The head without which most is lost, where that is another than the one in the sentence. */
function more(/** @type {Run} */ run, /** @type {Run} */ without) {
  const worst = worstHead();
  const [answer] = run.next ?? [];
  const after = without.next?.find(({ token }) => token === answer.token);
  if (!worst || !after || after.probability - worst.left < LITTLE) return "";
  if (answer.probability < SURE || answer.probability - after.probability < LITTLE) return ""; // or the sentence names it
  const { role } = figuresOf(worst.layer, worst.head, sourceOf("first").heads) ?? {};
  const name = `head ${headName(run, worst.layer, worst.head)}${role && role !== TOO_SHORT ? ` (${role})` : ""}`;
  return `More is lost with ${name} switched off: ${part(worst.left)} is left. The one above looks further back. `;
}

/**
 * Where it looks, after who does, or what it does from where.
 * @param {Run} run @param {number} query @param {Float32Array} weights @param {boolean} numbered with the weight
 * @returns {(Node|string)[]}
 */
function looks(run, query, weights, numbered) {
  const { shows } = get();
  const key = strongestOf(weights);
  if (key < 0) return [shows === "without" ? " sees nothing beside its sink" : " sees nothing"];
  if (!areWeights(shows)) {
    const from = accented(quoted(run.labels[key]));
    if (shows === "moved") return [" moves most from ", from, `, ${weight(weights[key])} long`];
    return weights[key] < 0
      ? [" takes most by ", from, `, ${weight(weights[key])} off its logit`]
      : [" adds most from ", from, `, ${weight(weights[key])} to its logit`];
  }
  if (weights[key] < FAINT) return [` looks everywhere, nowhere with more than ${part(weights[key])}`];
  const number = numbered ? [", with weight ", accented(part(weights[key]))] : [];
  if (key === query) return [" stays where it is, on ", accented(quoted(run.labels[key])), ...number];
  const beside = shows === "without" ? ", beside any sink," : "";
  return [
    `${beside}${key < query ? " looks back at " : " looks ahead at "}`,
    accented(phrase(run, weights, key)),
    ...number,
  ];
}

/** On what heads rest, where they do. */
function resting(/** @type {Run} */ run, /** @type {Rest[]} */ rests) {
  if (!rests.length) return "";
  const heads = run.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  const counts = rests
    .slice(0, NAMED)
    .map(({ key, heads: some }, k) => `${some}${k ? "" : some > 1 ? " rest" : " rests"} on ${quoted(run.labels[key])}`);
  return `Of ${plural(heads, "head")}, ${listed(counts)}.`;
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

/**
 * The second half: what becomes of the next token where the head is switched off; of one that the model is sure of.
 * @param {Run} plain @param {Run} without @param {HeadName} source @returns {(Node|string)[]}
 */
function becomes(plain, without, { layer, head }) {
  const [answer] = plain.next ?? [];
  const after = without.next?.find(({ token }) => token === answer.token);
  const winner = likeliest(without);
  if (!after || !winner || answer.probability < SURE) return [];
  const most = writerNow(plain, { layer, head, average: "head" })?.decides === false ? ", which adds most," : "";
  const off = ` With head ${headName(plain, layer, head)}${most} switched off`;
  if (winner.token !== answer.token)
    return [`${off}, the answer becomes `, changed(said(winner.label)), ` (${part(winner.probability)}).`];
  const name = said(answer.label);
  const [p, q] = [answer.probability, after.probability];
  if (Math.abs(p - q) >= LITTLE) return [`${off}, ${name} ${q < p ? "falls" : "rises"} to `, changed(part(q)), "."];
  const worst = worstHead(); // null where there are too many heads to switch them off one by one
  if (!worst) return [`${off}, ${name} keeps ${part(q)}.`];
  if (p - worst.left < LITTLE)
    return [` No single head is needed: with any one switched off, ${name} keeps ${atLeast(worst.left)}.`];
  const other = headName(plain, worst.layer, worst.head);
  return [`${off}, ${name} keeps ${part(q)}; with head ${other} switched off, `, changed(part(worst.left)), "."];
}
