/** One query's attention, every number of it: query, scores, softmax, and the weighted sum of values. */
import * as api from "./api.js";
import { byId, find, findAll, make, markStale, rove, settled } from "./dom.js";
import { named, placeName, plural, signed, weight } from "./format.js";
import { awaitAnswer } from "./answers.js";
import { change, get, keyNow, placeOf, queryNow, queryRead, sourceOf, subscribe } from "./store.js";
import { fiveNumbers } from "./five_numbers.js";
import { keysTable } from "./steps_table.js";
import { VectorBars, greatest } from "./vector_bars.js";

const PAGE = 24; // keys that are written out at a time
/** The server's answers, with the question; null until the first. @type {StepsShown} */
let data = /** @type {any} */ (null);
/** The key that is followed. @type {StepKey|null} */
let picked = null;
const vectors = new VectorBars(() => data?.context && table());

export function startSteps() {
  const soon = settled(40, load);
  subscribe("run layer head average shows compare active query hover tab folded", () => {
    dim();
    soon();
  });
  subscribe("key hover query", follow);
  subscribe("key query", settled(110, fetchPicked));
  const draw = () => vectors.draw();
  document.addEventListener("inks", draw);
  new ResizeObserver(draw).observe(byId("steps"));
  rove(byId("steps"));
}

/** The place of a head, also where a mean is chosen. */
const placeIn = (/** @type {HeadPlace} */ place) => placeOf({ ...place, average: "head" });

/** What the steps are to answer, as a name. */
function question() {
  const { run, layer, head } = sourceOf();
  return run && [run.id, ...placeIn({ layer, head }), queryRead()].join("/");
}

/** Old numbers under a new title would lie: they are dimmed until theirs come. */
const dim = () => markStale(byId("steps"), data !== null && data.name !== question());

async function load() {
  const { tab, folded, offline } = get();
  const { run, layer, head, average } = sourceOf();
  if (!run) {
    data = /** @type {any} */ (null);
    byId("steps").replaceChildren();
    return;
  }
  if (tab !== "steps" || folded) return;
  const query = queryRead();
  const name = question() ?? "";
  const { shows } = get();
  if (data?.name === name) noteMean(average);
  if (data?.name === name || offline) return;
  const steps = await awaitAnswer(api.steps(run.id, placeIn({ layer, head }), query, { count: PAGE }, "steps"));
  if (!steps) return;
  const entries = steps.keys.filter(({ visible }) => visible);
  data = { ...steps, entries, hiddenEntries: [], extra: null, page: PAGE, name, shows, at: query, run, layer, head };
  [picked] = entries;
  dim();
  vectors.clear();
  build();
  noteMean(average);
  follow();
  fetchPicked();
}

/** Steps are one head's: where a mean is chosen, a note says so. */
function noteMean(/** @type {Average} */ average) {
  const note = find(byId("steps"), ".steps-of");
  note.hidden = average === "head";
  const place = placeName(data.run, { ...data, average: "head" })
    .replace(" · Head", ", head")
    .replace("L", "l");
  note.textContent = `A mean of heads has no steps of its own, since softmax is taken in each. These are the steps of ${place}.`;
}

/** The head's output, where the values are known. */
const context = () => data.context ?? [];

/** Keys that are written out: of them one is followed. */
const known = () => [...data.entries, ...data.hiddenEntries, ...(data.extra ? [data.extra] : [])];

/** The key that is looked at elsewhere, as far as it belongs to this query. */
const wanted = () => (queryNow() === data.at ? keyNow() : sourceOf().key);

/** The key that is looked at elsewhere is the one whose numbers are written out. */
function follow() {
  if (!data) return;
  const entry = known().find(({ position }) => position === wanted());
  if (entry) pick(entry);
  mark();
  if (entry && sourceOf().key === entry.position) reveal();
}

/** Brings the row of a chosen key into sight, without moving the page. */
function reveal() {
  const box = find(byId("steps"), ".keys");
  const row = box.querySelector("tr.on");
  if (!row || box.contains(document.activeElement)) return;
  const [inner, outer] = [row.getBoundingClientRect(), box.getBoundingClientRect()];
  const past = Math.max(0, inner.bottom - outer.bottom) + Math.min(0, inner.top - outer.top - 48);
  box.scrollTop += past; // 48: the heading and the columns' names
}

/** A key that is weak, or hidden, is written out once it is chosen. */
async function fetchPicked() {
  if (!data || get().tab !== "steps" || get().folded || get().offline) return;
  const mine = data;
  const key = sourceOf().key;
  if (key == null || key >= data.run.length || data.run !== sourceOf().run) return;
  if (known().some(({ position }) => position === key)) return;
  const { run, layer, head, at } = data;
  const answer = await awaitAnswer(
    api.steps(run.id, placeIn({ layer, head }), at, { count: 1, picked: key }, "steps-key"),
  );
  if (!answer?.picked || data !== mine) return;
  data.extra = answer.picked;
  table();
  follow();
}

/** Writes out more keys, from a rank on: the weaker ones, or those that the mask hides. */
async function page(/** @type {number} */ first) {
  const mine = data;
  const { run, layer, head, at } = data;
  const more = await awaitAnswer(api.steps(run.id, placeIn({ layer, head }), at, { first, count: PAGE }, "steps-page"));
  if (!more || data !== mine) return;
  if (first < data.count) {
    data.entries.push(...more.keys);
    data.rest = more.rest;
  } else data.hiddenEntries.push(...more.keys);
  const place = more.keys[0]?.position;
  if (known().filter(({ position }) => position === data.extra?.position).length > 1) data.extra = null;
  table();
  findAll(byId("steps"), `tr[data-key="${place}"] .key-name`)[0]?.focus();
}

function pick(/** @type {StepKey} */ one) {
  if (one === picked) return;
  picked = one;
  vectors.draw();
  mark();
}

function mark() {
  for (const row of findAll(byId("steps"), "tr[data-key]"))
    row.classList.toggle("on", Number(row.dataset.key) === picked?.position);
}

function build() {
  const stops = () => findAll(byId("steps"), ".five button, canvas, .key-name");
  const focused = stops().indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const five = fiveNumbers(byId("steps"), { data, token: (k) => data.run.labels[k], picked: () => picked });
  byId("steps").replaceChildren(
    make("p", { className: "steps-of note", hidden: true }),
    five.root,
    make("div", { className: "walk" }, queryPart(), make("div", { className: "keys" }), contextPart()),
  );
  vectors.parts.push(five.draw);
  table();
  vectors.draw();
  if (focused >= 0) stops()[focused]?.focus({ preventScroll: true }); // other numbers, the same place
}

/** The table anew: with other keys, or another number that is followed. */
function table() {
  const box = find(byId("steps"), ".keys");
  const scrolled = box.scrollTop;
  const row = /** @type {HTMLElement|null|undefined} */ (document.activeElement?.closest("#steps tr[data-key]"));
  const focused = row?.dataset.key;
  box.replaceChildren(
    heading(2, `Softmax over the keys: weight = e^(score − ${signed(data.logsumexp, 3)})`),
    keysTable(data, {
      pick,
      choose: ({ position }) => change({ query: data.at, key: position }),
      page,
      followed: () => (data.context ? vectors.followed(data.context) : null),
    }),
  );
  box.scrollTop = scrolled;
  if (focused) findAll(box, `tr[data-key="${focused}"] .key-name`)[0]?.focus({ preventScroll: true });
  mark();
}

const heading = (/** @type {number} */ number, /** @type {string} */ words) =>
  make("h3", {}, make("i", { textContent: String(number) }), make("span", {}, words));
const token = (/** @type {number} */ k) => named(data.run.labels, k, 18);

function queryPart() {
  const product = () => data.query.map((value, d) => value * (picked?.key[d] ?? 0));
  return make(
    "div",
    {},
    heading(1, "The query’s vector meets a key’s"),
    vectors.bars({
      name: () => `query ${token(data.at)}`,
      sign: "q",
      values: () => data.query,
      most: () => greatest([data.query]),
    }),
    vectors.bars({
      name: () => `key ${picked ? token(picked.position) : "–"}`,
      sign: "k",
      values: () => picked?.key ?? [],
      most: () => greatest(known().map((one) => one.key)),
    }),
    vectors.bars({
      name: () => "q · k, number by number",
      sign: "q·k",
      values: product,
      most: () => greatest([product()]),
    }),
    vectors.words(oneProduct),
    vectors.words(oneScore),
  );
}

function oneProduct() {
  if (!picked) return "";
  const { key } = picked;
  const d = vectors.followed(data.query.map((value, k) => value * key[k]));
  return `q[${d}] · k[${d}] = ${signed(data.query[d])} × ${factor(key[d])} = ${signed(data.query[d] * key[d], 3)}`;
}

/** What becomes of the sum of the products, step by step. */
function oneScore() {
  if (!picked) return "This query sees no key.";
  const parts = [
    `They add up to ${signed(picked.score, 3)}; times the scale ${signed(data.scale, 4, 4)} is ${signed(picked.scaled, 3)}`,
  ];
  if (data.steps.includes("softcapped")) parts.push(`capped ${signed(picked.softcapped, 3)}`);
  if (data.steps.includes("biased")) parts.push(`with the bias ${signed(picked.biased, 3)}`);
  return `${parts.join(", ")}${picked.visible ? ", the score." : ". The mask hides this key: its score is −∞, its weight 0."}`;
}

function contextPart() {
  const part = make("div", { className: "out" }, heading(3, "The weights mix the keys’ values"));
  if (!data.context) {
    part.append(
      make("p", {
        textContent:
          "The values were not recorded here, so the sum can’t be shown. The weights above are all that attention looked at.",
      }),
    );
    return part;
  }
  const most = () => greatest([context()]);
  part.append(
    vectors.bars({
      name: () => (picked ? `value of ${token(picked.position)}` : "value"),
      sign: "v",
      values: () => picked?.value ?? [],
      most: () => greatest(known().map((one) => one.value)),
    }),
    vectors.bars({
      name: () => (picked ? `× its weight ${weight(picked.weight)}` : "× its weight"),
      sign: "w·v",
      values: () => {
        const share = picked?.weight ?? 0;
        return (picked?.value ?? []).map((value) => value * share);
      },
      most,
    }),
    vectors.bars({
      name: () => `sum of the first ${plural(upTo().length, "key")} of the table`,
      sign: "sum",
      values: () => context().map((_, d) => upTo().reduce((sum, one) => sum + one.weight * one.value[d], 0)),
      most,
    }),
    vectors.bars({
      name: () => `context, the head’s output: the sum of all ${data.count}`,
      sign: "context",
      values: context,
      most,
    }),
    vectors.words(() => (picked ? oneSum() : "Nothing is seen, so the output is 0.")),
  );
  return part;
}

/** The keys from the strongest to the one that is followed, or all that are written out. */
function upTo() {
  const at = data.entries.findIndex((one) => one === picked);
  return at < 0 ? data.entries : data.entries.slice(0, at + 1);
}

/** One number of the context, as the sum that it is. */
function oneSum() {
  const d = vectors.followed(context());
  const terms = data.entries.slice(0, 3).map((one) => `${weight(one.weight)} × ${factor(one.value[d])}`);
  const left = data.count - terms.length;
  const rest = context()[d] - data.entries.slice(0, 3).reduce((sum, one) => sum + one.weight * one.value[d], 0);
  if (left > 0) terms.push(`${plural(left, "more key")}: ${factor(rest)}`);
  return `context[${d}] = ${terms.join(" + ")} = ${signed(context()[d], 3)}`;
}

const factor = (/** @type {number} */ value) => (value < 0 ? `(${signed(value, 3)})` : signed(value, 3));
