/** A second map beside the first: another head of the same text, or the same head of another text. */
import { byId, make } from "./dom.js";
import { columns } from "./map.js";
import { openSecond } from "./session.js";
import { get, set, subscribe } from "./store.js";

export function startCompare() {
  const choice = byId("compare");
  choice.onchange = () => begin(choice.value);
  const field = make("textarea", {
    rows: 2,
    spellcheck: false,
    placeholder: "The text to compare with",
    "aria-label": "The text to compare with",
  });
  const read = () => field.value && openSecond(field.value);
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read();
  });
  const entry = make(
    "div",
    { className: "second-text", hidden: true },
    field,
    make("button", { type: "button", textContent: "Look inside", onclick: read }),
  );
  columns.second.extra.append(entry);
  // As tall as the entry beside it, so that both maps begin at one height.
  const beside = make("p", {
    className: "second-text note",
    hidden: true,
    textContent: "The text in the left panel.",
  });
  columns.first.extra.append(beside);
  subscribe("compare second about", ({ compare, second, about }) => {
    beside.hidden = compare !== "text";
    choice.value = compare;
    choice.options[2].disabled = !about?.writes;
    entry.hidden = compare !== "text";
    if (second && document.activeElement !== field) field.value = second.text ?? field.value;
  });
}

function begin(compare) {
  const { run, layer, head, second } = get();
  if (!run) return set({ compare: "off" });
  const patch = { compare, wide: false, active: compare === "off" ? "first" : "second" };
  if (compare === "head") {
    // The next head, so that there is something to see at once.
    const among = run.layers[layer].heads.length;
    patch.other =
      among > 1 ? { layer, head: (head + 1) % among } : { layer: (layer + 1) % run.layers.length, head };
  }
  set(/** @type {any} */ (patch));
  if (compare === "text" && !second && run.text != null) openSecond(run.text); // to be changed from there
}
