/** What a head does on a text, in words: its scores and its role come from the kernels. */
import { SCORES } from "../quantities.js";

/**
 * The scores in the order of src/native/naming.h: of what name, the role that it speaks for, and what that means.
 * @type {[string, string, string][]}
 */
const ROLES = [
  ["induction", "induction", "where its token stood before, it looks at what came next"],
  ["duplicate_token", "duplicate token", "it looks at earlier copies of its token"],
  ["previous_token", "previous token", "it looks at the token before"],
  ["current_token", "current token", "it looks at the token itself"],
  ["separator", "separator", "it looks at punctuation and special tokens"],
  ["first_token", "first token", "it rests on the first token"],
  ["spread", "spread evenly", "it spreads over all tokens that it may see"],
  ["distance", "nearby tokens", "it looks at tokens nearby"],
  ["entropy", "", ""],
  ["resting", "", ""],
  ["", "mixed", "it does no single one of these"],
  ["", "between two names", "its score is so near the limit of a role that this text can't decide"],
  ["", "text too short to tell", "it may have a role, but this text has too few tokens, or too few repeats"],
  ["", "no choice", "a single token can only attend to itself"],
];
const OPEN = ["between two names", "text too short to tell"];
const FIELDS = 4; // numbers of a score: mean, score, margin, queries

const SPECIAL = /^(?:<[^<>\s]+>|\[[A-Z]+\])$/;
const FEWEST = 4; // separators that a score is over
const BYTE = /^<0x[0-9A-F]{2}>$/; // of a character that is cut apart

/** Whether a token is punctuation alone, a line break or special, as regard/lens/naming/separators.py has it. */
function isSeparator(/** @type {string} */ token) {
  const bare = token.trim();
  if (!bare) return token.includes("\n");
  return SPECIAL.test(bare) ? !BYTE.test(bare) : /^\p{P}+$/u.test(bare);
}

/** 1 for tokens that separate others, the first left out, else 0; all 0 if too few do. @param {string[]} tokens */
export function marked(tokens) {
  const marks = tokens.map((token, place) => Number(place > 0 && isSeparator(token)));
  const count = marks.reduce((sum, mark) => sum + mark, 0);
  return count < FEWEST ? marks.fill(0) : marks;
}

/**
 * A head's scores and role, as the server sends them.
 * @param {number} head @param {import("../kernels/pattern.js").Pattern} pattern
 * @param {number[]} ids each token's number among the different ones
 * @param {number[]} separators of `marked`
 */
export function figuresOf(head, pattern, ids, separators) {
  const { numbers, sinks } = pattern.name(ids, separators);
  const known = (/** @type {number} */ number) => (Number.isNaN(number) ? null : number);
  const scores = ROLES.filter(([name]) => name).map(([name, role], k) => {
    const [mean, score, margin, queries] = numbers.slice(FIELDS * k, FIELDS * (k + 1));
    return { name, role, mean: known(mean), score: known(score), margin: known(margin), queries };
  });
  const [place, second] = numbers.slice(FIELDS * scores.length);
  const [[, role, meaning], undecided] = [ROLES[place], second < 0 ? null : ROLES[second][1]];
  const shown = scores.find((one) => one.role === (OPEN.includes(role) ? undecided : role) && one.queries > 0);
  const most = Math.max(...scores.filter((one) => one.role).map(({ queries }) => queries));
  const about = shown
    ? { score: shown.score, margin: shown.margin, queries: shown.queries }
    : { score: null, margin: null, queries: most || null };
  const means = SCORES.map((name) => [name, scores.find((one) => one.name === name)?.mean ?? null]);
  return {
    head,
    role,
    meaning,
    evidence: inWords(role, undecided, about),
    ...about,
    undecided,
    sinks,
    ...Object.fromEntries(means),
  };
}

/**
 * What the name rests on.
 * @param {string} role @param {string|null} undecided
 * @param {{score: number|null, margin: number|null, queries: number|null}} about
 */
function inWords(role, undecided, { score, margin, queries }) {
  if (queries == null) return "";
  const over = `over ${queries} quer${queries === 1 ? "y" : "ies"}`;
  if (score == null) return over;
  const estimate = `${score.toFixed(2)}${margin == null ? "" : ` ± ${margin.toFixed(2)}`} ${over}`;
  return OPEN.includes(role) ? `${undecided}? ${estimate}` : estimate;
}
