/** The role of a head on a text: mirrors `regard/lens/naming/evidence.py`, `roles.py` and `head_scores.py`, of one text. */
import { SCORES } from "../quantities.js";

/**
 * @typedef {import("./tallies.js").Tally} Tally
 * @typedef {{score: number, margin: number|null, queries: number}} Evidence
 * @typedef {(share: number, control: number) => [number, number, number]} Scoring the score, and its derivatives
 */

const [LEAD, ENOUGH, VARIED, NEAR, WIDE] = [0.2, 8, 4, 0.5, 0.8];
const NORMAL = 1.959964; // 97.5 % of a normal distribution lie below

/** @type {Scoring} */
const lead = (share, control) => {
  const left = 1 - control;
  return left > 1e-9 ? [(share - control) / left, 1 / left, (share - 1) / left ** 2] : [0, 0, 0];
};
/** @type {Scoring} */
const itself = (share) => [share, 1, 0];
/** @type {Scoring} */
const nearness = (share, control) =>
  control > 0 ? [1 - share / control, -1 / control, share / control ** 2] : [1, 0, 0];

/** For each role the name of its tallies, how they are scored, and what the role means. */
const ROLES = /** @type {const} */ ({
  induction: ["induction", lead, "where its token stood before, it looks at what came next"],
  "duplicate token": ["duplicate_token", lead, "it looks at earlier copies of its token"],
  "previous token": ["previous_token", lead, "it looks at the token before"],
  "current token": ["current_token", lead, "it looks at the token itself"],
  "first token": ["first_token", lead, "it rests on the first token"],
  "spread evenly": ["spread", itself, "it spreads over all tokens that it may see"],
  "nearby tokens": ["distance", nearness, "it looks at tokens nearby"],
});
const MEANINGS = /** @type {Record<string, string>} */ ({
  mixed: "it does no single one of these",
  "between two names": "its score is so near the limit of a role that this text can't decide",
  "text too short to tell": "it may have a role, but this text has too few tokens, or too few repeats",
  "no choice": "a single token can only attend to itself",
  ...Object.fromEntries(Object.entries(ROLES).map(([role, [, , meaning]]) => [role, meaning])),
});
const OPEN = ["between two names", "text too short to tell"];
const OF_REPEATS = ["induction", "duplicate token"];
const OF_PLACES = ["previous token", "current token", "first token"];

/**
 * A head's scores and role, as the server sends them; mirrors `_of_layer` and `Run._score`.
 * @param {number} head @param {Record<string, Tally>} tallies
 */
export function figuresOf(head, tallies) {
  /** @type {Record<string, Evidence>} */
  const evidence = {};
  for (const [role, [name, score]] of Object.entries(ROLES)) {
    const one = tallies[name] && evidenceOf(tallies[name], score);
    if (one) evidence[role] = one;
  }
  const { role, undecided } = roleOf(evidence);
  const shown = OPEN.includes(role) ? undecided : role;
  const rests = shown == null ? undefined : evidence[shown];
  const all = Object.values(evidence).map(({ queries }) => queries);
  const queries = rests?.queries ?? (all.length ? Math.max(...all) : null);
  const about = { score: rests?.score ?? null, margin: rests?.margin ?? null, queries };
  const scores = SCORES.map((name) => [name, tallies[name] ? meanOf(tallies[name]) : null]);
  return {
    head,
    role,
    meaning: MEANINGS[role],
    evidence: inWords(role, undecided, about),
    ...about,
    undecided,
    ...Object.fromEntries(scores),
  };
}

const total = (/** @type {Float64Array} */ values) => values.reduce((sum, value) => sum + value, 0);

/** The mean over all queries; null where there are none. */
function meanOf(/** @type {Tally} */ { queries, share }) {
  const count = total(queries);
  return count ? total(share) / count : null;
}

/**
 * How much speaks for a role, with an interval from the variance between tokens; mirrors `Means.evidence`.
 * @param {Tally} tally @param {Scoring} scoring
 * @returns {Evidence|null}
 */
function evidenceOf({ queries, share, controls }, scoring) {
  const count = total(queries);
  if (!count) return null;
  const means = Object.values(controls).map((control) => control.map((value) => value / count));
  const sums = means.map(total);
  const strongest = means[sums.indexOf(Math.max(...sums))] ?? new Float64Array(queries.length);
  const [own, control] = [total(share) / count, total(strongest)];
  const [score, byShare, byControl] = scoring(own, control);
  let [variance, tokens] = [0, 0];
  queries.forEach((many, token) => {
    const weight = many / count;
    const residual =
      byShare * (share[token] / count - own * weight) + byControl * (strongest[token] - control * weight);
    variance += residual ** 2;
    if (many > 0) tokens++;
  });
  const free = Math.max(1, tokens - 1);
  const margin = student(free) * Math.sqrt((variance * tokens) / free);
  return { score, margin: count >= ENOUGH && tokens >= VARIED ? margin : null, queries: count };
}

/** What 97.5 % of Student's t lie below; mirrors `_student` (Abramowitz and Stegun 1964, equation 26.7.5). */
function student(/** @type {number} */ free) {
  const x = NORMAL;
  return (
    x +
    (x ** 3 + x) / 4 / free +
    (5 * x ** 5 + 16 * x ** 3 + 3 * x) / 96 / free ** 2 +
    (3 * x ** 7 + 19 * x ** 5 + 17 * x ** 3 - 15 * x) / 384 / free ** 3
  );
}

/**
 * The name of what a head does, and what it may do besides; mirrors `role_of`, where the order is explained.
 * @param {Record<string, Evidence>} evidence
 * @returns {{role: string, undecided: string|null}}
 */
function roleOf(evidence) {
  if (!Object.keys(evidence).length) return { role: "no choice", undecided: null };
  const highest = (/** @type {string[]} */ roles) =>
    roles.reduce((best, role) => (evidence[role].score > evidence[best].score ? role : best));
  /** @type {string|null} */
  let undecided = null;
  for (const group of [OF_REPEATS, OF_PLACES]) {
    const measured = group.filter((role) => role in evidence);
    const leading = measured.filter((role) => leads(evidence[role]));
    if (leading.length) return { role: highest(leading), undecided };
    const open = measured.filter((role) => mayLead(evidence[role]));
    if (undecided == null && open.length) undecided = highest(open);
  }
  if (Math.max(...Object.values(evidence).map(({ queries }) => queries)) < ENOUGH)
    return { role: "text too short to tell", undecided };
  if (evidence["spread evenly"]?.score >= WIDE) return { role: "spread evenly", undecided };
  if (evidence["nearby tokens"].score >= 1 - NEAR) return { role: "nearby tokens", undecided };
  if (undecided == null) return { role: "mixed", undecided };
  return { role: isPrecise(evidence[undecided]) ? "between two names" : "text too short to tell", undecided };
}

/** Whether the whole interval is a lead. */
const leads = (/** @type {Evidence} */ { score, margin }) => margin != null && score - margin >= LEAD;
/** Whether some of the interval is. */
const mayLead = (/** @type {Evidence} */ { score, margin }) => score + (margin ?? 0) >= LEAD;

/** Whether the interval reaches no further than a lead. */
const isPrecise = (/** @type {Evidence} */ { margin }) => margin != null && margin <= LEAD;

/**
 * What the name rests on; mirrors `HeadScores.evidence`.
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
