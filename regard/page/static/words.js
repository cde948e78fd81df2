/** What the words of the sentences mean: said under the pointer, at the keyboard's focus, and where a finger taps. */
import { byId, make, targetOf } from "./dom.js";

/** @type {[word: RegExp, meaning: string][]} */
const MEANINGS = [
  [
    /\bheads?\b/iu,
    "A head is a part of the model that looks back over the text and passes on what it finds. Head 2·1 is number 1 of " +
      "layer 2; both are counted from 0.",
  ],
  [/\btokens?\b/iu, "A token is what the model reads and writes as one piece: a word, a part of one, or a sign."],
  [/\bweight\b/iu, "A weight is how much of a head’s look goes to one token. Those of a look add up to 1."],
  [/\bprobability\b/iu, "How likely the model takes a token to be next: those of all tokens add up to 1."],
  [
    /\blogit\b/iu,
    "A logit is a token’s score, from which its probability is made: a lead of 1 makes it 2.7 times as likely as the other.",
  ],
  [/\bswitched off\b/iu, "The head’s output is set to 0; all else runs as before."],
  [/\brests?\b/iu, "A head rests on a token that has much of its weight whichever token it looks from."],
];

export function startWords() {
  const root = document.documentElement;
  const told = (/** @type {Event} */ event) =>
    /** @type {HTMLElement|null} */ (targetOf(event).closest?.("dfn[data-meaning]"));
  for (const name of ["pointerover", "focusin", "click"])
    root.addEventListener(name, (event) => targetOf(event) !== byId("meaning") && show(told(event)));
  root.addEventListener("focusout", () => show(null));
  root.addEventListener("keydown", (event) => event.key === "Escape" && show(null));
  addEventListener("scroll", () => show(null), { capture: true, passive: true });
}

/** Shows what a word means, below it and within the window; null: nothing. */
function show(/** @type {HTMLElement|null} */ word) {
  const box = byId("meaning");
  const old = document.querySelector("[aria-describedby=meaning]");
  if (word !== old) old?.removeAttribute("aria-describedby");
  box.hidden = !word;
  if (!word) return;
  box.textContent = word.dataset.meaning ?? "";
  word.setAttribute("aria-describedby", "meaning");
  const [{ left, top, bottom }, { width, height }] = [word.getClientRects()[0], box.getBoundingClientRect()];
  box.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - width - 8))}px`;
  box.style.top = `${bottom + 8 + height > innerHeight ? top - height - 8 : bottom + 8}px`;
}

/**
 * Puts words in place of an element's; the first of each that has a meaning here can be asked for it. Tokens, which are
 * isolated, are words of the text.
 * @param {HTMLElement} element @param {(Node|string)[]} parts @param {Set<string>} seen words that were said before
 */
export function putWords(element, parts, seen = new Set()) {
  element.replaceChildren(...parts.flatMap((one) => (typeof one === "string" ? explained(one, seen) : [one])));
  if (!document.querySelector("[aria-describedby=meaning]")) byId("meaning").hidden = true; // its word may be gone
}

/** @returns {(Node|string)[]} */
function explained(/** @type {string} */ text, /** @type {Set<string>} */ seen) {
  const own = text.replace(/\u2068[^\u2069]*\u2069/gu, (token) => "\u2068".repeat(token.length));
  const next = MEANINGS.filter(([, meaning]) => !seen.has(meaning))
    .map(([word, meaning]) => ({ found: word.exec(own), meaning }))
    .filter(({ found }) => found)
    .sort((a, b) => Number(a.found?.index) - Number(b.found?.index))[0];
  if (!next?.found) return [text];
  seen.add(next.meaning);
  const [start, { length }] = [next.found.index, next.found[0]];
  const word = make("dfn", { textContent: next.found[0], tabIndex: 0, "data-meaning": next.meaning });
  return [text.slice(0, start), word, ...explained(text.slice(start + length), seen)];
}
