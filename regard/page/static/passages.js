/** Passages of the text: what the next token looks at of each, beside what it loses without it. */
import * as api from "./api.js";
import { Replaced, ServerError } from "./errors.js";
import { bar, byId, findAll, make } from "./dom.js";
import { LITTLE, part, said, short, signed, weight } from "./format.js";
import { during } from "./pending.js";
import { get, set, subscribe } from "./store.js";

const MOST = 200; // passages that are measured; of a longer text the last ones
const QUOTED = 90; // characters of a passage in the list

/** @type {AbortController|null} */
let measuring = null;
/** The passage that is marked in the text. @type {number|null} */
let marked = null;

export function startPassages() {
  byId("passages").onclick = () => {
    if (measuring) return measuring.abort();
    const { plain, passages } = get();
    if (passages) return set({ passages: null });
    if (plain) during(measure(plain));
  };
  subscribe("plain", () => {
    measuring?.abort(); // another text
    set({ passages: null });
  });
  subscribe("passages plain about", show);
}

/** @param {Run} run */
async function measure(run) {
  const spans = passagesOf(run.tokens.map(({ text }) => text));
  if (!spans.length)
    return set({
      problem: "The text has a single sentence: write one more, which follows from others.",
    });
  const control = new AbortController();
  measuring = control;
  set({ passages: { run: run.id, spans, measured: null } });
  try {
    await api.passages(
      run.id,
      spans,
      (line) => {
        if (control.signal.aborted) return;
        if (line.error) set({ problem: line.error });
        else if (line.effects)
          set({
            passages: {
              run: run.id,
              spans,
              measured: /** @type {any} */ (line),
            },
          });
      },
      control.signal,
    );
  } catch (error) {
    if (error instanceof ServerError && !error.offline) set({ problem: error.message });
    else if (!(error instanceof ServerError || error instanceof Replaced)) throw error;
  }
  if (measuring === control) measuring = null;
  if (!get().passages?.measured) set({ passages: null });
}

/**
 * The paragraphs of a text on its tokens, or the sentences of one with a single paragraph before its last; without
 * the last, which asks for the next token.
 * @param {string[]} tokens what they spell, a newline as ↵ @returns {Span[]}
 */
export function passagesOf(tokens) {
  const text = tokens.join("").replaceAll("↵", "\n");
  const paragraphs = spansOf(text, /\n[^\S\n]*\n\s*/gu);
  const cut = paragraphs.length > 2 ? paragraphs : spansOf(text, /(?<=[.!?…]["'”’)\]]*)\s+/gu);
  /** @type {Span[]} */
  const spans = [];
  let [at, taken] = [0, 0];
  const ends = tokens.map((token) => (at += token.length));
  for (const [start, stop] of cut) {
    const first = Math.max(
      ends.findIndex((end) => end > start),
      taken,
    );
    const last = ends.findIndex((end) => end >= stop);
    if (first > last) continue; // another passage has its tokens
    spans.push([first, last + 1]);
    taken = last + 1;
  }
  return spans.slice(0, -1).slice(-MOST);
}

/** The characters between separators, where there are any. @returns {Span[]} */
function spansOf(/** @type {string} */ text, /** @type {RegExp} */ separator) {
  const cuts = [...text.matchAll(separator)].map((match) => [match.index, match.index + match[0].length]);
  const edges = [0, ...cuts.flat(), text.length];
  return Array.from(
    { length: edges.length / 2 },
    (_, k) => /** @type {Span} */ ([edges[2 * k], edges[2 * k + 1]]),
  ).filter(([start, stop]) => text.slice(start, stop).trim());
}

function show() {
  const { passages, plain, about } = get();
  mark(null);
  byId("passages").hidden = !about?.writes;
  byId("passages").textContent = passages ? (passages.measured ? "Hide passages" : "Stop") : "Which passages?";
  byId("passages").setAttribute("aria-pressed", String(Boolean(passages?.measured)));
  byId("passages-panel").hidden = !passages?.measured;
  if (!passages?.measured || !plain?.next) return byId("passages-list").replaceChildren();
  const { spans, measured } = passages;
  const { effects, weights, without, unchanged } = measured;
  const name = said(plain.next[0].label);
  const [mostWeight, mostEffect] = [weights, effects].map((values) => Math.max(...values.map(Math.abs), 1e-9));
  byId("passages-note").textContent =
    `Red: looked at, the mean weight of the last token over all heads, sinks left out. ` +
    `Blue: needed, what ${name} loses where the passage is hidden from all that follows the last one. ` +
    `All hidden: ${part(Math.exp(unchanged))} → ${part(Math.exp(unchanged + without))}.` +
    `${isNeedless(unchanged, [...effects, without]) ? ` None of them is needed for ${name}.` : ""}`;
  const order = spans.map((_, k) => k).sort((a, b) => effects[a] - effects[b]);
  byId("passages-list").replaceChildren(
    ...order.map((k) => {
      const needed = bar(Math.abs(effects[k]) / mostEffect);
      needed.classList.add(effects[k] < 0 ? "changed" : "gained");
      return make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            onclick: () => mark(k),
            "aria-pressed": "false",
            "data-passage": String(k),
          },
          make("span", {
            className: "quote",
            textContent: short(textOf(plain, spans[k]), QUOTED),
          }),
          make("span", {}, bar(weights[k] / mostWeight), needed),
          make("b", {}, weight(weights[k]), make("em", { textContent: `${signed(effects[k])} nats` })),
        ),
      );
    }),
  );
}

/** Whether no effect changes the probability by as much as is worth saying. @param {number} unchanged @param {number[]} effects */
const isNeedless = (unchanged, effects) =>
  effects.every((effect) => Math.abs(Math.exp(unchanged + effect) - Math.exp(unchanged)) < LITTLE);

const textOf = (/** @type {Run} */ run, /** @type {Span} */ [first, stop]) =>
  run.tokens
    .slice(first, stop)
    .map(({ text }) => text)
    .join("")
    .replaceAll("↵", " ")
    .trim();

/** Marks a passage in the text, or takes the mark away where it has it. */
function mark(/** @type {number|null} */ number) {
  const root = byId("tokens");
  marked = number === marked ? null : number;
  const span = marked == null ? null : get().passages?.spans[marked];
  for (const token of findAll(root, ".token")) {
    const at = Number(token.dataset.at);
    token.classList.toggle("in-passage", Boolean(span && at >= span[0] && at < span[1]));
  }
  for (const button of findAll(byId("passages-list"), "button"))
    button.setAttribute("aria-pressed", String(Number(button.dataset.passage) === marked));
  root.querySelector(".in-passage")?.scrollIntoView({ block: "nearest" });
}
