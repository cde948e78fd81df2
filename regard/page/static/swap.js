/** Swap: a word that is clicked, another in its place, and what becomes of the answer; the control of all else here. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { byId, make, settled } from "./dom.js";
import { Replaced, ServerError } from "./errors.js";
import { LITTLE, part, quoted, said } from "./format.js";
import { during } from "./pending.js";
import { prepare, show } from "./session.js";
import { get, set, sourceOf, subscribe } from "./store.js";
import { formerRun, readSwap, returnedTo, swapOf } from "./swapped.js";
import { before, expectedOf, peersOf, withWord, wordAt } from "./swap_words.js";

/** Words that the model expects in a place, of which so many are offered. */
const EXPECTED = 4;

/** The word that others are offered for. @type {import("./swap_words.js").Word|null} */
let chosen = null;
/** What the model expects, by what it has read before. @type {Map<string, Candidate[]>} */
const known = new Map();

export function startSwap() {
  const field = byId("swap-word");
  byId("swap-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) swapFor(field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    event.stopPropagation(); // what is typed is not a command
    if (event.key === "Escape") field.blur();
  });
  byId("swap-back").onclick = swapBack;
  const expect = settled(120, () => during(askExpected())); // a key that goes through the text asks for the last alone
  subscribe("plain", ({ plain, swap }) => {
    if (swap && swap.run !== plain?.id) set({ swap: null });
  });
  subscribe("plain query about view swap", () => {
    choose();
    offer();
    tell();
    if (chosen) expect();
  });
}

/** Finds the word of the token that is selected, in the opening of a model that reads other texts. */
function choose() {
  const { about, plain, view } = get();
  const { query, run } = sourceOf("first");
  const able = view === "opening" && about?.writes && plain?.text != null;
  byId("swap-form").hidden = !able;
  const word = able && query != null && run?.length === plain.length ? wordAt(plain, query) : null;
  if (word?.start !== chosen?.start || word?.word !== chosen?.word) byId("swap-word").value = "";
  chosen = word;
}

/** The swap of now, where it is of the word that is selected: another one takes its place. */
function sameAgain() {
  const swap = swapOf(get().plain);
  return swap && chosen && swap.start === chosen.start && swap.stop === chosen.stop ? swap : null;
}

/** Puts the words on the page that may come in the place of the chosen one. */
function offer() {
  const { plain } = get();
  byId("swap-word").hidden = !chosen;
  byId("swap-words").replaceChildren();
  byId("swap-of").textContent = chosen
    ? `Swap ${quoted(chosen.word)} for`
    : "Click a word to swap it for another, and see what becomes of the answer.";
  if (!chosen || plain?.text == null) return;
  const was = sameAgain()?.old;
  const own = peersOf(plain.text, chosen);
  const peers = was ? [was, ...own.filter((one) => one !== was)] : own;
  const read = before(plain.text, chosen);
  const more = expectedOf(known.get(read) ?? [], read.length < chosen.start)
    .filter(({ word }) => word !== chosen?.word && !peers.includes(word))
    .slice(0, EXPECTED);
  const chip = (/** @type {string} */ word, /** @type {string} */ title) =>
    make("button", { type: "button", textContent: word, title, onclick: () => swapFor(word) });
  byId("swap-words").append(...peers.map((word) => chip(word, "In this place it would be a word of the same kind")));
  if (!more.length) return;
  byId("swap-words").append(
    make("span", {
      className: "note",
      textContent: peers.length ? "or, as the model expects," : "as the model expects,",
    }),
    ...more.map(({ word, probability }) =>
      chip(word, `The model expects it here with probability ${part(probability)}`),
    ),
  );
}

/** Asks what the model expects in the place of the chosen word: what comes next after all before it. */
async function askExpected() {
  const { plain } = get();
  if (!chosen || plain?.text == null || plain.tokens.some(({ added }, k) => added && k > 0)) return; // a template's end
  const read = before(plain.text, chosen);
  if (!read || known.has(read)) return;
  try {
    const run = await api.open(read, "expected");
    if (known.size > 100) known.clear();
    known.set(read, run.next ?? []);
    offer();
  } catch (error) {
    if (!(error instanceof ServerError || error instanceof Replaced)) throw error; // then the text's words are offered
  }
}

/** Reads the text with another word in the place of the chosen one. */
async function swapFor(/** @type {string} */ word) {
  const { plain } = get();
  if (!chosen || plain?.text == null || word === chosen.word) return;
  const again = sameAgain();
  if (again && word === again.old) return swapBack();
  const within = byId("swap").contains(document.activeElement);
  const { start, word: old } = chosen;
  set({ busy: "reading the text …" });
  const run = await awaitAnswer(api.open(withWord(plain.text, chosen, word), "open"));
  set({ busy: "" });
  if (!run || get().plain !== plain) return;
  const was = again?.was ?? plain;
  set({ swap: { run: run.id, start, stop: start + word.length, old: again?.old ?? old, was } });
  show(run);
  if (within) queueMicrotask(() => queueMicrotask(() => byId("swap-back").focus()));
}

/** The text with the word before. */
async function swapBack() {
  const swap = swapOf(get().plain);
  if (!swap) return;
  const run = await awaitAnswer(formerRun(swap));
  if (!run) return;
  returnedTo(run.id);
  show(run);
}

/** Opens the run before the swap that an address has, beside the one that is open. */
export async function openSwap(/** @type {URLSearchParams} */ fields) {
  const { plain } = get();
  const found = plain && readSwap(fields.get("m"), plain.text);
  if (!found) return set({ swap: null });
  if (swapOf(plain)?.old === found.old && swapOf(plain)?.start === found.start) return;
  const was = await awaitAnswer(api.open(found.before, "former"));
  if (was && get().plain === plain)
    set({ swap: { run: plain.id, start: found.start, stop: found.stop, old: found.old, was: prepare(was) } });
}

/** What became of the answer. */
function tell() {
  const { plain } = get();
  const swap = swapOf(plain);
  byId("swap-told").hidden = !swap;
  byId("swap").hidden = !swap && byId("swap-form").hidden;
  if (!swap || !plain) return;
  const [now, then] = [plain.next?.[0], swap.was.next?.[0]];
  const old = quoted(swap.old);
  if (!now || !then) return byId("swap-says").replaceChildren(`In place of ${old}.`);
  const name = make("i", { textContent: said(now.label) });
  const [p, q] = [part(now.probability), part(then.probability)];
  if (now.token !== then.token)
    return byId("swap-says").replaceChildren(
      name,
      ` ${p} — was `,
      make("em", { textContent: said(then.label) }),
      ` ${q} with ${old}.`,
    );
  const isMoved = Math.abs(now.probability - then.probability) >= LITTLE;
  byId("swap-says").replaceChildren(name, isMoved ? ` ${p} — was ${q} with ${old}.` : ` ${p}, as with ${old}.`);
}
