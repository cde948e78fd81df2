/** Tokens as a text to be read: words with a frame each, line breaks, characters above the bytes they are made of. */
import { bytesOf, characterAt } from "./characters.js";
import { make } from "./dom.js";

/** The bytes of a token as they are written; null where it is text. */
export const hexOf = (/** @type {string} */ label) =>
  bytesOf(label)
    ?.map((byte) => byte.toString(16).toUpperCase())
    .join(" ");

/**
 * What a token's element holds: the space before its word, the word, and what ends the line. Where a token breaks the
 * line, the text goes on in the next; its sign shows that it does.
 * @returns {(Node|string)[]}
 */
export function piecesOf(/** @type {string} */ text) {
  const written = text.replaceAll("↵", "↵\n");
  // A frame is drawn around the word: the space before it can be at the end of another line.
  const shown = written.trimStart();
  const word = shown.replace(/\n+$/, ""); // of an end of line, which the frame would be drawn around too
  return [
    written.slice(0, written.length - shown.length),
    make("span", { className: "word", textContent: word }),
    shown.slice(word.length),
  ];
}

/**
 * Appends the tokens first … stop to an element, with the characters that several of them make up.
 * @param {Node} root @param {string[]} labels @param {number} first @param {number} stop
 * @param {(k: number, character?: string) => HTMLElement} tokenOf a token's element; the character that it is part of
 * @returns {HTMLElement[]} the elements of the tokens
 */
export function putTokens(root, labels, first, stop, tokenOf) {
  /** @type {HTMLElement[]} */
  const all = [];
  for (let k = first; k < stop;) {
    const whole = characterAt(labels, k);
    const end = Math.min(whole?.stop ?? k + 1, stop);
    const spans = [];
    for (; k < end; k++) spans.push(tokenOf(k, whole?.character));
    all.push(...spans);
    if (whole) {
      const character = make("rt", { textContent: whole.character, "aria-hidden": "true" });
      root.appendChild(make("ruby", {}, ...spans, character));
    } else for (const span of spans) root.appendChild(span);
  }
  return all;
}
