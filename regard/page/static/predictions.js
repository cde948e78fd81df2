/** What the model expects after the last token; a click appends it, a button goes on by itself. */
import { bar, byId, findAll, make } from "./dom.js";
import { weight } from "./format.js";
import { append, generate, stop, writing } from "./session.js";
import { get, sourceOf, subscribe } from "./store.js";

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
  subscribe("run compare active about generating", ({ about, generating }) => {
    const { run } = sourceOf(writing());
    byId("predictions-of").textContent = get().compare === "text" ? `of the ${writing()} text` : "";
    byId("predictions-panel").hidden = !run?.next;
    byId("generate-row").hidden = !about?.generates;
    button.textContent = generating ? "Stop" : "Generate";
    if (about?.limits?.generate) tokens.max = String(about.limits.generate);
    if (run?.next) list(run.next, generating);
  });
}

/** Words for a voice: what is seen must be part of the name that it says. */
const unseen = (/** @type {string} */ words) => make("span", { className: "unseen", textContent: words });

function list(/** @type {Candidate[]} */ next, /** @type {boolean} */ busy) {
  const most = next[0]?.probability || 1;
  const focused = document.activeElement?.closest("#predictions")
    ? findAll(byId("predictions"), "button").indexOf(/** @type {HTMLElement} */ (document.activeElement))
    : -1;
  byId("predictions").replaceChildren(
    ...next.map(({ token, label, probability }) =>
      make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            disabled: busy || !get().about?.writes, // a report only tells
            onclick: () => append(token),
          },
          make("span", { className: "name" }, get().about?.writes ? unseen("Append ") : null, label),
          make("span", {}, bar(probability / most)),
          make("b", {}, unseen("probability "), weight(probability)),
        ),
      ),
    ),
  );
  if (focused >= 0) byId("predictions").querySelectorAll("button")[0]?.focus(); // Enter, Enter, Enter writes on
}

/** Tokens that were drawn and have no pattern yet. */
function ghosts(/** @type {StreamLine[]} */ drawn, /** @type {SideName} */ side) {
  const root = byId(side === "second" ? "tokens-second" : "tokens");
  root.querySelectorAll(".ghost").forEach((old) => old.remove());
  for (const { text } of drawn) root.append(make("span", { className: "token new ghost", textContent: text }));
}
