/** Characters that a tokenizer of bytes has cut into several tokens. */

const BYTES = /^(?:<0x[0-9A-F]{2}>)+$/;

/** The bytes that a token is, or null where it is text. */
export const bytesOf = (/** @type {string} */ token) =>
  BYTES.test(token) ? [...token.matchAll(/[0-9A-F]{2}(?=>)/g)].map(([digits]) => Number.parseInt(digits, 16)) : null;

/** How many bytes a character has, by its first, in UTF-8; 0 where none begins so. */
const lengthBy = (/** @type {number} */ first) =>
  [
    [0xc2, 0xdf, 2],
    [0xe0, 0xef, 3],
    [0xf0, 0xf4, 4],
  ].find(([least, most]) => first >= least && first <= most)?.[2] ?? 0;

/**
 * The character that begins with a token and is made of it and of those after it.
 * @param {string[]} tokens as they are written: a byte as <0xE2>
 * @param {number} first
 * @returns {{character: string, stop: number}|null} stop: one past its last token
 */
export function characterAt(tokens, first) {
  const bytes = bytesOf(tokens[first]) ?? [];
  const length = lengthBy(bytes[0]);
  let stop = first + 1;
  for (; bytes.length < length && stop < tokens.length; stop++) {
    const more = bytesOf(tokens[stop]);
    if (!more) return null;
    bytes.push(...more);
  }
  if (!length || bytes.length !== length) return null;
  const character = new TextDecoder().decode(new Uint8Array(bytes));
  return character.includes("\ufffd") ? null : { character, stop };
}
