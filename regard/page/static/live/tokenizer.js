/** Tokenizers from their `tokenizer.json`: text to ids and back. */
import { ServerError } from "../errors.js";

/**
 * What a model's tokenizer does.
 * @typedef {{encode(text: string): number[], decode(ids: number[]): string, tokens(ids: number[]): string[]}} Tokenizer
 */

/** @returns {Tokenizer} */
export function tokenizerOf(/** @type {any} */ json) {
  return json.type === "characters" ? new CharTokenizer(json.characters) : new BPETokenizer(json);
}

/** One token a character. */
class CharTokenizer {
  constructor(/** @type {string} */ characters) {
    this.characters = [...characters];
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

// GPT-2's, of which no piece is joined with another. \p{White_Space} is what its \s means; JavaScript's is another set.
const PIECES =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** Byte-level byte-pair encoding, of the files that `regard.page.file.live` lets pass. */
class BPETokenizer {
  constructor(/** @type {any} */ { model, added_tokens: added }) {
    const signs = signsOfBytes();
    /** @type {Map<string, number>} The ids of tokens, as bytes written in signs. */
    this.ids = new Map(Object.entries(model.vocab));
    /** @type {Map<string, number>} The place of each pair among the merges, the first to be joined first. */
    this.ranks = new Map(
      model.merges.map((/** @type {string|string[]} */ pair, /** @type {number} */ rank) => [
        typeof pair === "string" ? pair : pair.join(" "),
        rank,
      ]),
    );
    /** @type {Map<string, number>} */
    this.added = new Map(added.map((/** @type {any} */ { content, id }) => [content, id]));
    this.signs = signs;
    /** @type {Uint8Array[]} */
    this.bytes = [];
    const byteOf = new Map(signs.map((sign, byte) => [sign, byte]));
    const utf8 = new TextEncoder();
    for (const [token, id] of [...this.ids, ...this.added]) {
      // A token added by hand may hold signs outside the alphabet; those stand for themselves.
      this.bytes[id] = Uint8Array.from(
        Array.from(token).flatMap((sign) => (byteOf.has(sign) ? [byteOf.get(sign) ?? 0] : [...utf8.encode(sign)])),
      );
    }
    /** @type {Map<string, number[]>} */
    this.known = new Map();
  }

  encode(/** @type {string} */ text) {
    if (/\p{Surrogate}/u.test(text)) throw new ServerError("The text holds half of a surrogate pair; leave it out.");
    return this.split(text).flatMap((part) => {
      const id = this.added.get(part);
      return id == null ? (part.match(PIECES) ?? []).flatMap((piece) => this.join(piece)) : [id];
    });
  }

  /** The text in parts: added tokens, the leftmost and of these the longest, and what lies between. */
  split(/** @type {string} */ text) {
    if (!this.added.size) return [text];
    const longest = [...this.added.keys()].sort((a, b) => b.length - a.length);
    const escaped = longest.map((token) => token.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
    return text.split(new RegExp(`(${escaped.join("|")})`, "u"));
  }

  /** The ids of a piece: of its pairs the first among the merges is joined wherever it stands, until none is left. */
  join(/** @type {string} */ piece) {
    const known = this.known.get(piece);
    if (known) return known;
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => this.signs[byte]);
    for (;;) {
      let [best, pair] = [Infinity, ""];
      for (let k = 0; k + 1 < parts.length; k++) {
        const rank = this.ranks.get(`${parts[k]} ${parts[k + 1]}`) ?? Infinity;
        if (rank < best) [best, pair] = [rank, `${parts[k]} ${parts[k + 1]}`];
      }
      if (best === Infinity) break;
      parts = joined(parts, pair);
    }
    const ids = parts.map((part) => /** @type {number} */ (this.ids.get(part)));
    if (piece.length < 64) this.known.set(piece, ids);
    return ids;
  }

  decode(/** @type {number[]} */ ids) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(
      Uint8Array.from(ids.flatMap((id) => [...this.bytes[id]])),
    );
  }

  tokens(/** @type {number[]} */ ids) {
    return ids.map((id) => displayable(this.bytes[id]));
  }
}

/** Parts with each occurrence of a pair made one. */
function joined(/** @type {string[]} */ parts, /** @type {string} */ pair) {
  /** @type {string[]} */
  const result = [];
  for (let k = 0; k < parts.length; k++) {
    const both = k + 1 < parts.length && `${parts[k]} ${parts[k + 1]}` === pair;
    result.push(both ? parts[k] + parts[++k] : parts[k]);
  }
  return result;
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
