/** Numbers and tokens as they are written; knows nothing of the page. */

const MINUS = "−";

/** Decimals that numbers are exact to; on a page whose numbers were kept in few bits there is an end. */
let exact = Infinity;
/** @param {number} [decimals] */
export const keepTo = (decimals = Infinity) => {
  exact = decimals;
};

/** All figures of a number that mean something, as a file has them. */
const known = (/** @type {number} */ value) =>
  exact === Infinity || Number.isInteger(value) || !Number.isFinite(value)
    ? String(value)
    : String(Number(value.toPrecision(exact + 1)));

/** The same where it is read off. */
export const full = (/** @type {number} */ value) => {
  const [digits, exponent] = known(value).split("e");
  return `${digits.replace("-", MINUS)}${exponent ? `·10${raised(exponent)}` : ""}`;
};

/** A weight: two or three figures that count, enough to compare, and never a 0 that is not one; so any view's entry.
 * All other numbers that are too small for their decimals are written so too.
 * @param {number|null|undefined} value @param {number} [decimals] of a power's factor @returns {string} */
export function weight(value, decimals = 1) {
  if (value == null) return "–";
  if (value < 0) return `${MINUS}${weight(-value, decimals)}`;
  if (value > 1.0005) return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
  if (value === 0 || value === 1) return String(value);
  if (value >= 0.9995 && value < 1) return "0.999+";
  if (value >= 0.001) return value.toFixed(value >= 0.01 ? 3 : 4);
  return power(value, decimals);
}

/** A weight or a probability in a sentence: two decimals, and never a 0 or a 1 that is none. */
export function part(/** @type {number} */ value) {
  if (value > 0 && value < 0.005) return "under 0.01";
  if (value < 1 && value >= 0.995) return "over 0.99";
  return value.toFixed(2);
}

/** The least of some of them. */
export const atLeast = (/** @type {number} */ value) => (value >= 0.995 ? part(value) : `${part(value)} or more`);

/** A smaller change of a probability is none to speak of: both may be written the same. */
export const LITTLE = 0.02;

/** The signs of an exponent. */
const raised = (/** @type {string} */ exponent) =>
  [...String(Number(exponent))].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");

/** 3.1·10⁻⁵ */
export function power(/** @type {number} */ value, decimals = 1) {
  const [digits, exponent] = value.toExponential(decimals).split("e");
  const factor = digits.replace("-", MINUS).replace(/\.0$/, "");
  return `${factor === "1" ? "" : `${factor}·`}10${raised(exponent)}`;
}

/** What float32 leaves of a difference that is 0. */
const NOISE = 1e-6;

/** A signed number with so many decimals, with a true minus, and no 0 that is none. */
export function signed(/** @type {number|null|undefined} */ value, decimals = 2, most = exact) {
  if (value == null) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? `${MINUS}∞` : "NaN";
  if (Math.abs(value) >= 1e6) return power(value);
  const text = value.toFixed(Math.min(decimals, most));
  if (Number(text)) return text.replace("-", MINUS);
  return Math.abs(value) < Math.max(NOISE, 10 ** -most) ? text.replace("-", "") : weight(value);
}

/** A scale as people write it: 1/√32. */
export function scaleName(/** @type {number} */ scale) {
  const dim = 1 / scale ** 2;
  return Math.abs(dim - Math.round(dim)) < 1e-3 * dim ? `1/√${Math.round(dim)}` : signed(scale, 4, 4);
}

/** The end of a scale: 1, 0.2, 10⁻⁴. */
export function end(/** @type {number} */ value) {
  if (value === 0 || value === 1) return String(value);
  return value >= 0.01 && value < 1e4 ? String(Number(value.toPrecision(2))) : power(value);
}

export const count = (/** @type {number} */ value) => value.toLocaleString("en").replaceAll(",", " ");

export const plural = (/** @type {number} */ many, /** @type {string} */ one, more = `${one}s`) =>
  `${count(many)} ${many === 1 ? one : more}`;

/** What the server says, as a sentence. */
export const sentence = (/** @type {string} */ text) =>
  `${text[0].toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}`;

/** A token as it is said: without the sign of the space before it. */
export const bare = (/** @type {string} */ label) => label.replace(/^␣(?=.)/u, "");

/** White space as it is said, by the signs of its label. @type {[signs: RegExp, one: string, more: string][]} */
const BLANKS = [
  [/^␣+$/u, "a space", "spaces"],
  [/^[↵␍]+$/u, "a line break", "line breaks"],
  [/^⇥+$/u, "a tab", "tabs"],
  [/^[␣↵␍⇥]+$/u, "a space", "white space"],
];

/** The name of white space; null for a token that has a shape. */
function blankName(/** @type {string} */ label) {
  const [, one, more] = BLANKS.find(([signs]) => signs.test(label)) ?? [];
  return (label.length > 1 ? more : one) ?? null;
}

/** Whether a token is white space alone. */
export const isBlank = (/** @type {string} */ label) => blankName(label) != null;

/** Whether a token ends the text, as tokenizers write such a one. */
export const isEnd = (/** @type {string} */ label) =>
  /^<\|?(end_?of_?text|im_end|eot_id|end_of_turn|eos|\/s)\|?>$/u.test(label);

/** A token without the signs of white space around it. */
const trimmed = (/** @type {string} */ label, /** @type {number} */ most) =>
  short(label.replace(/^[␣↵␍⇥]+|[␣↵␍⇥]+$/gu, "").replace(/[␣↵␍⇥]+/gu, " "), most);

/** A token in a sentence: without signs of white space, and white space alone by its name. */
export const said = (/** @type {string} */ label, most = 24) =>
  isEnd(label) ? "the end of the text" : (blankName(label) ?? isolated(trimmed(label, most)));

/** The same in quotation marks, as a part of its text. */
export const quoted = (/** @type {string} */ label, most = 24) =>
  blankName(label) ?? isolated(`“${trimmed(label, most)}”`);

/** A token cut to so many characters; what is left out is shown by an ellipsis in its middle. */
export function short(/** @type {string} */ text, /** @type {number} */ most) {
  const characters = Array.from(text);
  if (characters.length <= most) return text;
  const tail = Math.floor((most - 1) / 3);
  const lead = most - 1 - tail;
  return `${characters.slice(0, lead).join("")}…${characters.slice(characters.length - tail).join("")}`;
}

/** A token with its place; the place alone where the tokens have no names of their own. */
export const named = (/** @type {string[]} */ labels, /** @type {number} */ k, most = 24) =>
  labels[k] === String(k) ? String(k) : `${k} ${short(labels[k], most)}`;

/**
 * Keeps a token from turning the text around it: it is in whatever script its author used. These
 * isolate it where no element can, on a canvas or in a label.
 */
export const isolated = (/** @type {string} */ text) => `\u2068${text}\u2069`;

/** What a side shows, in words: a head, or the mean over some. */
export function placeName(/** @type {Run} */ run, /** @type {HeadName} */ { layer, head, average }) {
  if (average === "model") return "All layers · mean";
  const { index, heads } = run.layers[layer];
  return `Layer ${index} · ${average === "layer" ? "mean" : `Head ${heads[head]}`}`;
}

/** What a mean is taken over. */
export function meanOf(/** @type {Run} */ run, /** @type {HeadName} */ { layer, average }) {
  if (average === "layer") return `the ${plural(run.layers[layer].heads.length, "head")} of this layer`;
  const heads = run.layers.reduce((sum, one) => sum + one.heads.length, 0);
  return `the ${plural(heads, "head")} of ${plural(run.layers.length, "layer")}`;
}

/** A step of 1, 2 or 5 times a power of ten, at least so large. */
export function niceStep(/** @type {number} */ least) {
  const base = 10 ** Math.floor(Math.log10(Math.max(least, 1e-12)));
  return [1, 2, 5, 10].map((factor) => factor * base).find((step) => step >= least * 0.999999) ?? base * 10;
}

/** A row of a CSV file: quoted where it must be, and no token taken for a formula. */
export function csvRow(/** @type {(string|number|null|undefined)[]} */ cells) {
  return cells
    .map((cell) => {
      if (cell == null) return "";
      if (typeof cell === "number") return Number.isFinite(cell) ? known(cell) : "";
      const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
      return /[",\n\r']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    })
    .join(",");
}
