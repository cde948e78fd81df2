/**
 * The page's two views of one state: the opening, which is read from top to bottom, and the panel, where all
 * instruments are seen at once. Both have the same parts; a view puts them into its order.
 */
import { byId, findAll } from "./dom.js";
import { SHORT, get, set, subscribe } from "./store.js";

/** The other view. */
export const toggleView = () => set({ view: get().view === "opening" ? "panel" : "opening" });

export function startViews() {
  byId("view").onclick = toggleView;
  arrange();
  subscribe("view", arrange);
  subscribe("plain", ({ plain, grown }) => {
    if (plain && !grown && plain.length > SHORT) set({ view: "panel" });
  });
  subscribe("compare", ({ compare }) => compare !== "off" && set({ view: "panel" })); // it needs the room
}

/** Puts the parts into the order in which the view is read, for eyes, the Tab key and a voice alike. */
function arrange() {
  const opening = get().view === "opening";
  document.body.classList.toggle("opening", opening);
  for (const question of findAll(document, ".question")) question.classList.toggle("unseen", !opening);
  const main = byId("page");
  const heads = byId("heads-panel");
  if (opening) {
    main.insertBefore(heads, byId("map-panel"));
    byId("text-panel").insertBefore(byId("changes"), byId("text-second"));
    byId("text-panel").insertBefore(byId("shows"), byId("average"));
    set({ compare: "off", wide: false, folded: false, difference: false });
  } else {
    main.insertBefore(heads, byId("tab-panel"));
    document.body.insertBefore(byId("changes"), main);
    document.body.insertBefore(byId("shows"), main);
  }
  byId("view").textContent = opening ? "Panel" : "Opening";
  byId("view").title = opening
    ? "All instruments at once, for long texts and for work (p)"
    : "What happens here, from top to bottom (p)";
}
