/** A second map beside the first: another head of the same text, or the same head of another text. */
import { byId } from "./dom.js";
import { openText } from "./session.js";
import { get, runOf, set, setSide, sourceOf, subscribe } from "./store.js";

export function startCompare() {
  const choice = byId("compare");
  choice.onchange = () => begin(/** @type {State["compare"]} */ (choice.value));
  subscribe("compare about changes", ({ compare, about, changes }) => {
    choice.value = compare;
    choice.options[2].disabled = !about?.writes;
    choice.options[3].disabled = !changes.length;
  });
}

export function begin(/** @type {State["compare"]} */ compare) {
  // The changed run that is on the right is not a second text.
  if (get().compare === "change") setSide("second", { run: null, heads: new Map() });
  const { run, layer, head } = sourceOf("first");
  if (!run) return set({ compare: "off" });
  if (compare === "head") {
    // The next head, so that there is something to see at once.
    const among = run.layers[layer].heads.length;
    const next = among > 1 ? { layer, head: (head + 1) % among } : { layer: (layer + 1) % run.layers.length, head };
    setSide("second", { ...next, average: "head" });
  }
  set({ compare, wide: false, active: compare === "off" ? "first" : "second" });
  if (compare === "text" && !runOf("second") && run.text != null) openText(run.text, "second"); // to be changed from there
}
