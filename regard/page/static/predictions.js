/** What the model expects after the last token; a click appends it, a button goes on by itself. */
import { bar, byId, findAll, make } from "./dom.js";
import { headName } from "./change_list.js";
import { bare, quoted, weight } from "./format.js";
import { append, generate, stop, writing } from "./session.js";
import { get, runOf, sourceOf, subscribe } from "./store.js";
import { besideFormer, swapOf } from "./swapped.js";

export function startPredictions() {
  const button = byId("generate");
  const tokens = byId("generate-tokens");
  const heat = byId("generate-heat");
  for (const field of [tokens, heat]) field.addEventListener("keydown", (event) => event.stopPropagation());
  button.onclick = () => {
    if (get().generating) return stop();
    const between = (
      /** @type {number} */ value,
      /** @type {number} */ least,
      /** @type {number} */ most,
      /** @type {number} */ otherwise,
    ) => (Number.isFinite(value) ? Math.max(least, Math.min(most, value)) : otherwise);
    const most = get().about?.limits.generate ?? 200;
    tokens.value = String(between(Math.round(tokens.valueAsNumber), 1, most, 20));
    heat.value = String(between(heat.valueAsNumber, 0, 5, 0.8));
    generate({ tokens: tokens.valueAsNumber, temperature: heat.valueAsNumber }, ghosts);
  };
  subscribe(
    "run changed compare active about generating without view swap",
    ({ about, generating, compare, changed, without }) => {
      const run =
        compare === "text" ? sourceOf(writing()).run : (changed ?? swapped() ?? without?.run ?? runOf("first"));
      byId("predictions-of").replaceChildren(...(compare === "text" ? [`of the ${writing()} text`] : legend(run)));
      byId("predictions-panel").hidden = !run?.next;
      byId("generate-row").hidden = !about?.generates;
      button.textContent = generating ? "Stop" : "Generate";
      if (about?.limits?.generate) tokens.max = String(about.limits.generate);
      byId("predictions").classList.toggle("two", run?.next?.[0]?.before != null);
      const next = run?.next ?? [];
      // What is likeliest as it is comes first as long as nothing is changed but in thought.
      const before = !changed && !swapped() && next[0]?.before != null;
      if (run?.next) list(before ? next.toSorted((a, b) => (b.before ?? 0) - (a.before ?? 0)) : next, generating);
    },
  );
}

/** The text in which a word was swapped, with what was likely before. */
const swapped = () => (swapOf(get().plain) ? besideFormer(get().plain) : null);

/** What two bars are of. */
function legend(/** @type {Run|null} */ run) {
  const { changed, without, view } = get();
  if (view !== "opening" || run?.next?.[0]?.before == null) return [];
  const swap = changed ? null : swapOf(run);
  if (swap && run?.text) {
    const word = make("em", { textContent: `with ${quoted(run.text.slice(swap.start, swap.stop))}` });
    return [make("b", { textContent: `with ${quoted(swap.old)}` }), " · ", word];
  }
  const name = changed || !without ? "changed" : `head ${headName(run, without.layer, without.head)} switched off`;
  return [make("b", { textContent: "as it is" }), " · ", make("em", { textContent: name })];
}

/** Words for a voice: what is seen must be part of the name that it says. */
const unseen = (/** @type {string} */ words) => make("span", { className: "unseen", textContent: words });

/** A bar of a probability; of a changed run the one before, and below it the one now. */
function bars(/** @type {number} */ now, /** @type {number|null} */ before) {
  if (before == null) return [bar(now)];
  const changed = bar(now);
  changed.classList.add("changed");
  return [bar(before), changed];
}

/** A probability in figures, and as it is before it. */
function figures(/** @type {Candidate} */ { probability: now, before, atMost }) {
  if (before == null) return [unseen("probability "), weight(now)];
  const figure = (/** @type {"probability"|"before"} */ name, /** @type {number} */ value) =>
    `${atMost === name ? "≤ " : ""}${weight(value, 0)}`; // two fit beside each other
  return [
    unseen("probability as it is "),
    figure("before", before),
    make("i", { "aria-hidden": "true", textContent: " → " }),
    unseen(", changed "),
    make("em", { textContent: figure("probability", now) }),
  ];
}

function list(/** @type {Candidate[]} */ next, /** @type {boolean} */ busy) {
  const most = Math.max(...next.map(({ probability, before = 0 }) => Math.max(probability, before))) || 1;
  const focused = document.activeElement?.closest("#predictions")
    ? findAll(byId("predictions"), "button").indexOf(/** @type {HTMLElement} */ (document.activeElement))
    : -1;
  byId("predictions").replaceChildren(
    ...next.map((one) => {
      const { token, label, probability, before } = one;
      return make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            disabled: busy || !get().about?.writes, // a report only tells
            onclick: () => append(token),
          },
          make(
            "span",
            { className: "name" },
            get().about?.writes ? unseen("Append ") : null,
            get().view === "opening" ? bare(label) : label,
          ),
          make("span", {}, ...bars(probability / most, before == null ? null : before / most)),
          make("b", {}, ...figures(one)),
        ),
      );
    }),
  );
  if (focused >= 0) byId("predictions").querySelectorAll("button")[0]?.focus(); // Enter, Enter, Enter writes on
}

/** Tokens that were drawn and have no pattern yet. */
function ghosts(/** @type {StreamLine[]} */ drawn, /** @type {SideName} */ side) {
  const root = byId(side === "second" ? "tokens-second" : "tokens");
  root.querySelectorAll(".ghost").forEach((old) => old.remove());
  for (const { text } of drawn) root.append(make("span", { className: "token new ghost", textContent: text }));
}
