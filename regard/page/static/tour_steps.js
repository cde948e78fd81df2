/** The six steps of the tour: what each says, the element that it speaks of, and what can be tried there. */
import { headName } from "./change_list.js";
import { isOff, switchHead } from "./changes.js";
import { byId, find, findAll, make } from "./dom.js";
import { part, plural, quoted, said } from "./format.js";
import { change, get, headCount, release, sourceOf } from "./store.js";

/**
 * name: what the button says; target: what is spoken of once it was tried, where that is another element
 * @typedef {{name: () => string, run: () => void, undo: () => void, target?: () => Element[]}} Trial
 * target: elements that are framed as one; none where the page has no such thing, and the step is left out
 * @typedef {{title: string, text: () => (Node|string)[], target: () => Element[], trial?: Trial}} Step
 */

const strong = (/** @type {string} */ textContent) => make("b", { textContent });

/** From this probability on the model is called sure. */
const SURE = 0.9;

/** Those of some elements that are there and seen. @returns {HTMLElement[]} */
const seen = (/** @type {(HTMLElement|null|undefined)[]} */ ...some) =>
  some.flatMap((one) => (one?.getClientRects().length ? one : []));

const likeliest = () =>
  get().plain?.next?.reduce((best, one) => (one.probability > best.probability ? one : best)) ?? null;

/** The widest arc, and the tokens that it joins. */
function widestArc() {
  const { plain } = get();
  const arcs = /** @type {SVGPathElement[]} */ ([...byId("tokens").querySelectorAll(".arcs path")]);
  if (!plain || !arcs.length) return null;
  const width = (/** @type {SVGPathElement} */ one) => Number(one.getAttribute("stroke-width"));
  const path = arcs.reduce((best, one) => (width(one) > width(best) ? one : best));
  const { query } = sourceOf("first");
  return { path, key: Number(path.dataset.key), query: query ?? plain.length - 1, labels: plain.labels };
}

/** The head that is looked at, by its name; null for a mean over heads. */
function head() {
  const { plain } = get();
  const { layer, head: at, average } = sourceOf("first");
  return plain && average === "head" ? { layer, at, name: `head ${headName(plain, layer, at)}` } : null;
}

/** Whether the model runs, so that it can be changed, and read other texts. */
const runs = () => Boolean(get().about?.writes && get().plain);

const word = (/** @type {number} */ at) => find(byId("tokens"), `[data-at="${at}"]`);

/** The chosen head in the grid; where that is one canvas, the button that switches it. */
const chosenHead = () =>
  seen(findAll(byId("grid"), ".cell").find((one) => one.ariaPressed === "true") ?? byId("switch"));

/** The field for texts, or the button that opens it. */
const entry = () => seen(byId("entry-text"), findAll(byId("examples"), "button").at(-1)).slice(0, 1);

/** The token from which it was looked: since then the arcs are others. @type {number|null} */
let from = null;
const wordNow = () => from ?? (widestArc()?.key || Math.floor((get().plain?.length ?? 0) / 2));

/** The head that was switched off. @type {{layer: number, at: number}|null} */
let off = null;

/** Whether the field for texts was opened. */
let isOpened = false;

/** @type {Step[]} */
export const STEPS = [
  {
    title: "What comes next",
    text: () => {
      const answer = likeliest();
      if (!answer) return [];
      const p = answer.probability;
      const sure = p >= SURE ? "It is sure" : p >= 0.5 ? "It is fairly sure" : "It is not sure";
      return [
        "After this text the model would write ",
        strong(said(answer.label)),
        `. ${sure}: probability ${part(p)}, where 1 is certain. The longer a bar, the likelier the word.`,
      ];
    },
    target: () => (likeliest() ? seen(byId("predictions-panel")) : []),
  },
  {
    title: "Where it looked",
    text: () => {
      const arc = widestArc();
      const { plain } = get();
      if (!arc || !plain) return [];
      const who = head();
      return [
        `The thick arc is ${who ? who.name : "the mean of the heads"}: from `,
        strong(quoted(arc.labels[arc.query])),
        " it looks most at ",
        strong(quoted(arc.labels[arc.key])),
        `. A head is a part of the model that looks back in a way of its own; this model has ${plural(headCount(plain), "head")}. The sentence at the top says what this one does for the answer.`,
      ];
    },
    target: () => {
      const arc = widestArc();
      return arc ? [arc.path, ...seen(word(arc.query), word(arc.key))] : [];
    },
  },
  {
    title: "Every word looked back",
    text: () => ["Each word looked at those before it when its turn came. Press one, and the arcs begin there."],
    target: () => seen(word(wordNow())),
    trial: {
      name: () => `Look from ${quoted(get().plain?.labels[wordNow()] ?? "")}`,
      run: () => {
        from = wordNow();
        change({ query: from }, "first");
      },
      undo: () => {
        from = null;
        release();
      },
    },
  },
  {
    title: "Is that look needed?",
    text: () => [
      "A word can be looked at and yet not be needed. Switch the head off, and the model answers without it: what becomes of the answer is blue.",
    ],
    target: () => (runs() && head() ? chosenHead() : []),
    trial: {
      name: () => `Switch ${head()?.name ?? "it"} off`,
      run: () => {
        off = head();
        if (off && !isOff(off.layer, off.at)) switchHead(off.layer, off.at);
      },
      undo: () => {
        if (off && isOff(off.layer, off.at)) switchHead(off.layer, off.at);
        off = null;
      },
      target: () => seen(byId("predictions-panel")),
    },
  },
  {
    title: "Your own words",
    text: () => ["Change a word, or type a text of your own: the answer and the arcs follow."],
    target: () => (runs() ? entry() : []),
    trial: {
      name: () => "Type",
      run: () => {
        isOpened = byId("entry").hidden === true;
        if (isOpened) byId("edit").click();
        byId("entry-text").focus();
      },
      undo: () => {
        if (isOpened && byId("entry-text").value === get().plain?.text) byId("entry-cancel").click();
      },
      target: entry,
    },
  },
  {
    title: "Where to go on",
    text: () => [
      "Below are all heads, a small map each: press one. And ",
      strong("Panel"),
      " has all of it at once, down to the numbers that a weight is computed from.",
    ],
    target: () => seen(byId("view")),
  },
];
