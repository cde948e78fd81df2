/**
 * In a notebook this stands in for ../link.js: the page has no address to copy, and sends the notebook
 * what is chosen. What else is otherwise in a notebook is here too: the wheel, links, who does not answer.
 */
import { currentAddress } from "../address.js";
import { byId, findAll, settled, targetOf } from "../dom.js";
import { get, subscribe } from "../store.js";
import { sendSelection, update } from "./request.js";

/** What is chosen, by the numbers that Python has for it; null where all are meant, or none. @returns {WidgetSelection} */
function selection() {
  const { run, layer, head, average, query, key } = get().sides.first;
  const place = run?.layers[layer];
  return {
    layer: place && average !== "model" ? place.index : null,
    head: place && average === "head" ? place.heads[head] : null,
    query,
    key,
  };
}

export function startLink() {
  byId("link-menu").hidden = true;
  byId("offline").textContent =
    "The kernel does not answer. Where it runs a cell, this page goes on by itself after it; where it has ended, run the cell of this page again. What you see stays.";
  const chosen = settled(250, () => {
    const address = currentAddress();
    if (address)
      sendSelection({ address: (update == null ? "" : `?update=${update}`) + address, selection: selection() });
  });
  subscribe(
    "run view layer head average query key zoom colour fit sort size compare active tab update wide folded difference changes",
    chosen,
  );
  // A wheel belongs to the notebook's own page unless Ctrl is held, too.
  for (const hint of findAll(byId("map-panel"), ".hint"))
    hint.textContent = "Ctrl and the wheel, or a pinch, zoom into a cell";
  byId("maps").addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) event.stopImmediatePropagation();
    },
    { capture: true },
  );
  // A link to the model of another update: the frame loads the page anew, for the address in its name.
  document.addEventListener("click", (event) => {
    const link = targetOf(event).closest('a[href^="?"], a[href^="/"]');
    if (!link) return;
    event.preventDefault();
    window.name = link.getAttribute("href") ?? "";
    location.reload();
  });
}
