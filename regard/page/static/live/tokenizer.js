/** Tokenizers from their `tokenizer.json`: text to ids and back. */
import { bytesOf } from "../characters.js";
import { ServerError } from "../errors.js";
import { Tokenizer as Library } from "../vendor/tokenizers.min.mjs";

/**
 * What a model's tokenizer does; prefix: the tokens that it adds before every text.
 * @typedef {{prefix: number[], encode(text: string): number[], decode(ids: number[]): string, tokens(ids: number[]): string[]}} Tokenizer
 */

/** @returns {Tokenizer} */
export function tokenizerOf(/** @type {any} */ json) {
  return json.type === "characters" ? new CharTokenizer(json.characters) : new LibraryTokenizer(json);
}

/** One token a character. */
class CharTokenizer {
  constructor(/** @type {string} */ characters) {
    this.characters = [...characters];
    /** @type {number[]} */
    this.prefix = [];
    this.ids = new Map(this.characters.map((character, id) => [character, id]));
  }

  encode(/** @type {string} */ text) {
    return Array.from(text, (character) => {
      const id = this.ids.get(character);
      if (id != null) return id;
      throw new ServerError(
        `The text holds ‘${character}’, which is not among the ${this.ids.size} characters of this tokenizer; leave it out.`,
      );
    });
  }

  decode(/** @type {number[]} */ ids) {
    return this.tokens(ids).join("");
  }

  tokens(/** @type {number[]} */ ids) {
    return ids.map((id) => this.characters[id]);
  }
}

const SPACE = "▁"; // SentencePiece's sign of a space
const utf8 = new TextEncoder();
// GPT-2's, of which no piece is joined with another. \p{White_Space} is what its \s means; JavaScript's is another set.
const PIECES =
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";

/** A step that splits a text, with what the library leaves out of it written out. @returns {object} */
function explicit(/** @type {any} */ step) {
  if (step?.pretokenizers) return { ...step, pretokenizers: step.pretokenizers.map(explicit) };
  const split = (/** @type {string} */ pattern) => ({
    ...{ type: "Split", pattern: { Regex: pattern }, behavior: "Isolated", invert: false },
  });
  if (step?.type === "Metaspace" && step.split !== false)
    return { type: "Sequence", pretokenizers: [step, split(`${SPACE}[^${SPACE}]*|[^${SPACE}]+`)] };
  if (step?.type !== "ByteLevel" || step.use_regex === false) return step;
  return { type: "Sequence", pretokenizers: [split(PIECES), { ...step, use_regex: false }] };
}

/**
 * A tokenizer whose vocabulary spells any text, in bytes or in characters beside bytes, of the files that
 * `regard.page.file.live` lets pass.
 */
class LibraryTokenizer {
  constructor(/** @type {any} */ json) {
    this.library = new Library({ ...json, pre_tokenizer: explicit(json.pre_tokenizer) }, {});
    this.prefix = this.library.encode("").ids;
    const { decoder } = this.library;
    const isOfBytes = json.decoder.type === "ByteLevel";
    this.spelled = isOfBytes ? byteSpelling() : pieceSpelling(decoder);
    /** Whether the space before the first word of a text is the tokenizer's own. */
    this.beginsBySpace = !isOfBytes && decoder.decode([`${SPACE}x`]) === "x";
    /** @type {string[]} */
    this.written = [];
    for (const [token, id] of Object.entries(json.model.vocab)) this.written[id] = token;
    /** @type {Map<number, Uint8Array>} */
    this.bytes = new Map();
    for (const { content, id } of json.added_tokens)
      this.bytes.set(id, isOfBytes ? this.spelled(content) : utf8.encode(content));
  }

  encode(/** @type {string} */ text) {
    if (/\p{Surrogate}/u.test(text)) throw new ServerError("The text holds half of a surrogate pair; leave it out.");
    return this.library.encode(text).ids;
  }

  decode(/** @type {number[]} */ ids) {
    const bytes = Uint8Array.from(ids.flatMap((id) => [...this.bytesOf(id)]));
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    return this.beginsBySpace ? text.replace(/^ /, "") : text;
  }

  tokens(/** @type {number[]} */ ids) {
    return ids.map((id) => displayable(this.bytesOf(id)));
  }

  /** Models often have more ids than their tokenizers. */
  bytesOf(/** @type {number} */ id) {
    const known = this.bytes.get(id);
    if (known) return known;
    const written = this.written[id];
    const bytes = written == null ? utf8.encode(`<${id}>`) : this.spelled(written);
    this.bytes.set(id, bytes);
    return bytes;
  }
}

/** The bytes of a token of GPT-2's alphabet; signs outside it, of tokens added by hand, stand for themselves. */
function byteSpelling() {
  const byteOf = new Map(signsOfBytes().map((sign, byte) => [sign, byte]));
  return (/** @type {string} */ token) =>
    Uint8Array.from(Array.from(token).flatMap((sign) => byteOf.get(sign) ?? [...utf8.encode(sign)]));
}

/** The bytes of a token that is one byte, written <0xE2>, or characters as the decoder writes them within a text. */
function pieceSpelling(/** @type {{decode(tokens: string[]): string}} */ decoder) {
  return (/** @type {string} */ token) => {
    const bytes = bytesOf(token);
    return bytes ? Uint8Array.from(bytes) : utf8.encode(decoder.decode(["x", token, "x"]).slice(1, -1));
  };
}

/** The text of bytes, with those of incomplete characters written out. */
function displayable(/** @type {Uint8Array} */ bytes) {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    try {
      text += strict.decode(bytes.subarray(at, at + length));
      at += length;
    } catch {
      text += `<0x${bytes[at].toString(16).toUpperCase().padStart(2, "0")}>`;
      at += 1;
    }
  }
  return text;
}

/** The sign of each byte in GPT-2's alphabet: printable Latin-1 stands for itself, the others are those from U+0100 on. */
function signsOfBytes() {
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0x100 && byte !== 0xad);
    return String.fromCharCode(printable ? byte : 256 + others++);
  });
}
