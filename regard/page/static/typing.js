/** A page whose text stands in a field, to be changed at once: within the site's landing page, by its address. */
import { get, subscribe } from "./store.js";

const isAsked = new URLSearchParams(location.hash.slice(1)).has("type");

/** Whether the field of a side stays open: where the model is in the page, which shows what is typed as it is typed. */
export const typesAtOnce = (/** @type {SideName} */ side) =>
  isAsked && side === "first" && get().view === "opening" && Boolean(get().about?.live);

export function startTyping() {
  const mark = () => document.body.classList.toggle("typing", typesAtOnce("first"));
  subscribe("about view", mark);
}
