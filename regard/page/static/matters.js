/** What the next token rests on: each head switched off in turn, then each token hidden, and what that does to it. */
import * as api from "./api.js";
import { during } from "./pending.js";
import { Replaced, ServerError } from "./errors.js";
import { byId } from "./dom.js";
import { headName, tokensName } from "./change_list.js";
import { LITTLE, atLeast, part, plural, said, sentence, signed } from "./format.js";
import { get, set, subscribe } from "./store.js";

const UNITS = { heads: "head", keys: "token", layers: "layer" };
const ENOUGH = 3; // measurements after which it is said how long the others take
const SHORT = 10; // seconds that are not worth a word

/** @type {AbortController|null} */
let measuring = null;

export function startMatters() {
  byId("matters").onclick = () => {
    if (measuring) return measuring.abort();
    const { plain, effects, view } = get();
    // The opening goes on showing what is lost without each head.
    if (effects?.keys) return set({ effects: view === "opening" ? { ...effects, keys: null } : null });
    if (plain) during(measure(plain, ["heads", "keys"]));
  };
  subscribe("plain", () => {
    measuring?.abort(); // another text
    set({ effects: null });
  });
  subscribe("effects measuring plain about", show);
}

/** Measures what the next token loses without each head. */
export const measureHeads = (/** @type {Run} */ run) => during(measure(run, ["heads"]));

/** @param {Run} run @param {("heads"|"keys")[]} wanted */
async function measure(run, wanted) {
  const control = new AbortController();
  measuring = control;
  /** @type {Effects} */
  const effects = get().effects ?? { run: run.id, heads: null, keys: null };
  try {
    for (const over of wanted) {
      if (effects[over] && !(over === "heads" && effects.heads?.partial)) continue;
      set({ measuring: `${UNITS[over]}s …` });
      const left = timeLeft();
      await api.effects(
        run.id,
        over,
        (line) => {
          if (control.signal.aborted) return;
          if (line.error) set({ problem: line.error });
          else if (line.total) {
            set({ measuring: `${UNITS[line.over ?? over]} ${line.done} of ${line.total}${left(line)}` });
            keepPart(run, effects, line);
          } else if (line.effects) Object.assign(effects, { [over]: { ...effects[over], ...line, partial: false } });
        },
        control.signal,
      );
      if (control.signal.aborted || get().plain !== run || !effects[over]) break;
      set({ effects: { ...effects } });
    }
  } catch (error) {
    if (error instanceof ServerError && !error.offline) set({ problem: error.message });
    else if (!(error instanceof ServerError || error instanceof Replaced)) throw error;
  }
  if (measuring === control) measuring = null;
  set({ measuring: "" });
}

/** Of many heads what is measured comes as it is, with estimates of all where a server has them. */
function keepPart(/** @type {Run} */ run, /** @type {Effects} */ effects, /** @type {StreamLine} */ line) {
  const { unchanged, estimates, measured } = line;
  if (unchanged !== undefined && !effects.heads?.partial)
    effects.heads = {
      ...{ unchanged, partial: true, ...(estimates && { estimates }) },
      effects: (estimates ?? run.layers.map(({ heads }) => heads)).map((row) => row.map(() => null)),
    };
  for (const [layer, head, value] of measured ?? []) if (effects.heads) effects.heads.effects[layer][head] = value;
  if (estimates || measured) set({ effects: { ...effects } });
}

/** Says how long the rest of a measurement takes, where that is long, by what it took so far. */
function timeLeft() {
  /** @type {{over?: string, done: number, at: number}|null} */
  let first = null;
  return (/** @type {StreamLine} */ { over, done = 0, total = 0 }, now = performance.now()) => {
    if (first?.over !== over || !first) first = { over, done, at: now };
    const seconds = ((now - first.at) / 1000 / Math.max(done - first.done, 1)) * (total - done);
    if (done - first.done < ENOUGH || seconds < SHORT) return "";
    return seconds < 90 ? `, ${Math.ceil(seconds / 10) * 10} s left` : `, ${Math.round(seconds / 60)} min left`;
  };
}

function show() {
  const { effects, measuring: doing, plain } = get();
  byId("matters").textContent = doing ? `Stop (${doing})` : effects?.keys ? "Hide what matters" : "What matters here?";
  byId("matters").setAttribute("aria-pressed", String(Boolean(effects?.keys)));
  byId("page").classList.toggle("measured", Boolean(effects));
  byId("finding").textContent =
    !plain || !effects ? "" : effects.keys ? finding(plain, effects) : stopped(effects, doing);
}

/** How far a measurement is that was called off. */
function stopped(/** @type {Effects} */ { heads }, /** @type {string} */ doing) {
  if (doing || !heads?.partial) return "";
  const all = heads.effects.flat();
  const done = all.filter((value) => value != null).length;
  const rest = heads.estimates
    ? "the others are estimated to first order"
    : "those first that are of the layers without which most is lost";
  return `${done} of ${plural(all.length, "head")} are measured, ${rest}; press again to go on.`;
}

/** How much of its probability a token has left. */
const left = (/** @type {{unchanged: number}} */ { unchanged }, /** @type {number} */ effect) =>
  Math.exp(unchanged + effect);

/** Which of some numbers takes most away; -1 where there are none. */
function mostTaken(/** @type {(number|null)[]} */ values) {
  const [least] = values.map((value, k) => ({ value: value ?? 0, k })).sort((a, b) => a.value - b.value);
  return least?.k ?? -1;
}

/** What was found, in a sentence. */
function finding(/** @type {Run} */ run, /** @type {Effects} */ { heads, keys }) {
  const first = run.next?.[0];
  if (!first) return "";
  /** @type {string[]} */
  const parts = [];
  const add = (/** @type {string} */ one, /** @type {string} */ any, /** @type {number} */ rest) => {
    const name = parts.length ? "it" : `${said(first.label)} (${part(first.probability)})`;
    const isLost = first.probability - rest >= LITTLE;
    parts.push(isLost ? `${one}, ${name} falls to ${part(rest)}` : `${any}, ${name} keeps ${atLeast(rest)}`);
  };
  const worst = worstHead();
  if (heads && worst)
    add(
      `with head ${headName(run, worst.layer, worst.head)} switched off`,
      "with any one head switched off",
      worst.left,
    );
  const at = keys ? mostTaken(keys.effects) : -1;
  if (keys?.spans && at >= 0) {
    const [start, stop] = keys.spans[at];
    const what = `token${stop - start > 1 ? "s" : ""} ${tokensName(run, [start, stop])}`;
    add(`with ${what} hidden`, "with any one token hidden", left(keys, keys.effects[at]));
  }
  return parts.length ? sentence(parts.join("; ")) : "";
}

/** The head that takes most away, and the probability that the next token has left then; null before. */
export function worstHead() {
  const { heads } = get().effects ?? {};
  if (!heads) return null;
  const flat = heads.effects.flatMap((row, layer) => row.map((value, head) => ({ layer, head, value })));
  const at = mostTaken(flat.map(({ value }) => value));
  const value = flat[at]?.value;
  return value == null ? null : { ...flat[at], left: left(heads, value) };
}

/** What a head takes away by being switched off, as a part of the most that any does, and in words; null before. */
export function needOfHead(/** @type {number} */ layer, /** @type {number} */ head) {
  const { effects, plain } = get();
  const { heads } = effects ?? {};
  const measured = heads?.effects[layer]?.[head];
  const value = measured ?? heads?.estimates?.[layer]?.[head];
  if (!heads || value == null || !plain?.next) return null;
  let most = 1e-9;
  for (const row of [...heads.effects, ...(heads.estimates ?? [])])
    for (const one of row) most = Math.max(most, Math.abs(one ?? 0));
  const how = measured == null ? "estimated to first order, not measured: switched off" : "switched off";
  return { part: value / most, words: words(how, plain.next[0], heads, value) };
}

const words = (
  /** @type {string} */ how,
  /** @type {Candidate} */ { label },
  /** @type {{unchanged: number}} */ measured,
  /** @type {number} */ value,
) =>
  `${how}: ${said(label)} ${part(Math.exp(measured.unchanged))} → ${part(left(measured, value))} (${signed(value)} nats)`;

/** Marks the tokens that the next one rests on, as deep as what it loses without each. */
export function paintNeeds(/** @type {HTMLElement[]} */ spans, /** @type {number} */ first) {
  const { effects, plain } = get();
  const keys = effects?.keys;
  const most = Math.max(...(keys?.effects ?? []).map((value) => -value), 1e-9);
  spans.forEach((span, k) => {
    const at = keys?.spans?.findIndex(([start, stop]) => first + k >= start && first + k < stop) ?? -1;
    const value = at < 0 || !keys ? 0 : keys.effects[at];
    const deep = Math.round(100 * Math.min(1, Math.max(0, -value / most)) ** 0.6);
    span.style.boxShadow = deep > 8 ? `inset 0 2.5px color-mix(in srgb, var(--changed) ${deep}%, transparent)` : "";
    span.title = keys && at >= 0 && plain?.next ? words("hidden", plain.next[0], keys, value) : "";
  });
}
