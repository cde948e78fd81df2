/** Tokens as they are shown: nothing invisible, nothing that moves the cursor. */

/** @type {Record<string, string>} */
const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };
// Categories of Unicode that have no shape of their own, and spaces.
const SHAPELESS = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Zs}]/u;

/** A token so that every character of it can be seen. */
export function visible(/** @type {string} */ token) {
  if (!token) return "∅";
  const shown = Array.from(token, sign).join("");
  return /^\p{Mn}/u.test(token) ? `◌${shown}` : shown;
}

/** A token as it reads within a text: with its spaces as spaces. */
export const readable = (/** @type {string} */ token) =>
  token
    .split(" ")
    .map((part) => part && visible(part))
    .join(" ");

function sign(/** @type {string} */ character) {
  if (character in SIGNS) return SIGNS[character];
  if (!SHAPELESS.test(character)) return character;
  return `<U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`;
}
