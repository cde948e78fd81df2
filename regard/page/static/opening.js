/** What the opening shows of a text at first: the head that matters most for its next token. */
import * as api from "./api.js";
import { parseAddress } from "./address.js";
import { awaitAnswer } from "./answers.js";
import { Replaced, ServerError } from "./errors.js";
import { isBlank } from "./format.js";
import { measureHeads, worstHead } from "./matters.js";
import { during } from "./pending.js";
import { restsOf, strongestOf } from "./quantities.js";
import { SHORT, chooseHead, get, headCount, set, subscribe } from "./store.js";
import { isBeside, movedKeys } from "./swapped.js";

/** Most heads that are switched off one by one. */
export const MANY = 64;
/** From so much loss on, in nats, a head that looks at a copy of the next token is preferred. */
const NOTABLE = 0.3;
/** With less weight a head does not look at one place. */
const SEEN = 0.3;

export function startOpening() {
  /** The text whose head was chosen. @type {Run|null} */
  let seen = null;
  subscribe("plain view generating", ({ plain, view, grown, generating }) => {
    if (view !== "opening" || !plain || plain === seen || generating) return;
    seen = plain;
    if (plain.length <= SHORT) during(open(plain, grown || isBeside(plain) ? isOwn() : !isAddressed(plain)));
  });
}

/** The head that was chosen here last. @type {{layer: number, head: number}|null} */
let own = null;

/** Whether the head is still the one that was chosen here, and nobody took another. */
export const isOwn = () => {
  const { layer, head, average } = get().sides.first;
  return average === "head" && own?.layer === layer && own.head === head;
};

/** Whether the address of a text names the head that is to be seen. */
const isAddressed = (/** @type {Run} */ run) => {
  const { fields, run: name, text } = parseAddress(location.hash);
  return fields.has("l") && (name === run.id || text === run.text);
};

/** @param {Run} run @param {boolean} free whether its head may be chosen here */
async function open(run, free) {
  set({ choosing: run, undecided: free });
  const { layer, head } = get().sides.first;
  const isWritten = get().about?.writes && run.next && run.kept !== false && headCount(run) > MANY;
  const isAsked = run.length > 1 && !isBlank(run.next?.[0].label ?? "");
  const writer = isWritten && isAsked ? await writerOf(run) : null;
  if (get().plain !== run) return;
  if (writer) set({ writer: { ...writer, run: run.id } });
  const isLater = free && isWritten && (writer || !isAsked); // what heads rest on, which takes seconds
  const best = isLater ? writer : await choose(run, free);
  if (get().plain !== run) return;
  const now = get().sides.first;
  if (free && now.query == null && now.layer === layer && now.head === head) {
    own = best ? { layer: best.layer, head: best.head } : { layer, head };
    chooseHead(own.layer, own.head, "first");
  }
  set({ choosing: null, undecided: false });
  if (isLater) await tellRests(run); // behind what is shown at first
}

/** Tell on which keys the model's heads rest. */
async function tellRests(/** @type {Run} */ run) {
  const sinks = await sinksOf(run);
  if (get().plain === run) set({ rests: { run: run.id, keys: restsOf(sinks.flat()) } });
}

/**
 * The head that the next token depends on most among those that look far, or among all where no loss of theirs is
 * notable. Where heads can't be switched off, or are too many for it, it is the one that looks back with most weight,
 * at no key on which it rests. Null where there is none, where it is not free to be chosen, and where queries and keys
 * are not kept.
 * @param {Run} run @param {boolean} free
 */
async function choose(run, free) {
  if (run.kept === false) return null; // each layer's rows would take a run of the model
  const heads = run.layers.flatMap((layer, at) => layer.heads.map((_, head) => ({ layer: at, head })));
  const isMeasured = get().about?.writes && run.next && heads.length <= MANY;
  const [sinks] = await Promise.all([sinksOf(run), isMeasured ? measureHeads(run) : null]);
  if (get().plain !== run) return null;
  set({ rests: { run: run.id, keys: isMeasured ? [] : restsOf(sinks.flat()) } });
  if (!free) return null;
  const rows = await Promise.all(
    heads.map(({ layer, head }) =>
      awaitAnswer(api.row(run.id, [layer, head], run.length - 1, `look-${layer}-${head}`)),
    ),
  );
  const moved = await movedKeys(run, heads, rows); // of a text in which a word was swapped, what that moves is seen
  const worths = heads.map((one, k) =>
    moved.length && !moved.includes(k) ? 0 : worthOf(run, rows[k]?.values ?? [], one, sinks[one.layer]?.[one.head]),
  );
  const most = Math.max(...worths);
  const best = most > 0 ? heads[worths.indexOf(most)] : null;
  const worst = worstHead();
  const isLost = (/** @type {HeadPlace|null} */ one) => one != null && lossOf(one) > NOTABLE;
  return isLost(worst) && !isLost(best) && !moved.length ? worst : best;
}

/** The head that writes the next token; null where that can't be known of the model. */
async function writerOf(/** @type {Run} */ run) {
  try {
    return await during(api.writer(run.id, "writer"));
  } catch (error) {
    if (error instanceof ServerError || error instanceof Replaced) return null;
    throw error;
  }
}

/** The keys on which each head rests, `[layer][head]`, as far as there was an answer. */
async function sinksOf(/** @type {Run} */ run) {
  /** @type {number[][][]} */
  const sinks = [];
  const each = (/** @type {StreamLine} */ { layer, heads }) => {
    if (layer != null && heads) sinks[layer] = heads.map((one) => one.sinks);
  };
  try {
    await during(api.heads(run.id, each, "look-heads", 0));
  } catch (error) {
    if (!(error instanceof ServerError || error instanceof Replaced)) throw error;
  }
  return sinks;
}

/** What the next token loses without a head, in nats. */
const lossOf = (/** @type {HeadPlace} */ { layer, head }) => -(get().effects?.heads?.effects[layer]?.[head] ?? -1);

/** How much there is to say about a head at the last token: what is lost without it, for the weight that looks far. */
function worthOf(
  /** @type {Run} */ run,
  /** @type {ArrayLike<number>} */ weights,
  /** @type {HeadPlace} */ at,
  /** @type {number[]} */ sinks = [],
) {
  const key = strongestOf(weights);
  if (key < 0 || key > run.length - 3 || weights[key] < SEEN || isBlank(run.labels[key]) || sinks.includes(key))
    return 0;
  const loss = Math.min(5, Math.max(1e-6, lossOf(at)));
  const isCopied = loss > NOTABLE && run.labels[key] === run.next?.[0].label;
  return weights[key] * loss * (isCopied ? 4 : 1);
}
