/** The panel below the map: its tabs, its height, and what it is about. */
import { byId, cycle, lookUp, make } from "./dom.js";
import { named, placeName } from "./format.js";
import { activeSide, get, queryRead, set, sourceOf, sideTitle, subscribe } from "./store.js";

/** @type {TabName[]} */
const TABS = ["steps", "readouts", "training"];
/** The tabs that there is something for. */
export const tabs = () => TABS.filter((tab) => tab !== "training" || get().about?.training);
const STEP = 24; // pixels an arrow moves the splitter

export function startTabPanel() {
  for (const tab of TABS) {
    byId(`tab-${tab}`).onclick = () => set({ tab, folded: false });
    byId(`tab-${tab}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      event.stopPropagation();
      const other = cycle(tabs(), tab, event.key === "ArrowLeft" ? -1 : 1);
      set({ tab: other });
      byId(`tab-${other}`).focus();
    });
  }
  byId("fold").onclick = () => set({ folded: !get().folded });
  subscribe("about tab folded", show);
  subscribe("run layer head average active compare query hover tab", title);
  split();
  show(get());
}

function show(/** @type {State} */ { about, tab, folded }) {
  byId("tab-training").hidden = !about?.training;
  byId("page").classList.toggle("folded", folded);
  for (const name of TABS) {
    byId(name).hidden = folded || name !== tab;
    byId(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    byId(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
  }
  byId("fold").textContent = folded ? "Unfold" : "Fold";
  byId("fold").setAttribute("aria-expanded", String(!folded));
}

function title() {
  const source = sourceOf();
  const { run, query: locked } = source;
  if (!run) return byId("tab-panel-title").replaceChildren();
  if (get().tab === "training") {
    const { layer, head } = source;
    const name = placeName(run, { layer, head, average: "head" });
    return byId("tab-panel-title").replaceChildren(`of ${name.toLowerCase().replace(" ·", ",")}, and of all others`);
  }
  const token = make("samp", { textContent: named(run.labels, queryRead(), 40) });
  // The steps are those of one head, whatever mean the map shows.
  const place = placeName(run, get().tab === "steps" ? { ...source, average: "head" } : source);
  const side = get().compare === "off" ? "" : `, ${sideTitle(activeSide())}`;
  byId("tab-panel-title").replaceChildren(
    "of query ",
    token,
    ` under ${place[0].toLowerCase()}${place.slice(1).replace(" · Head", ", head").replace(" · ", ", ")}${side}${locked == null ? "" : " · kept, Escape lets go"}`,
  );
}

/** The edge above the panel can be dragged, or moved by arrows. */
function split() {
  const splitter = byId("splitter");
  const main = byId("page");
  const heightOf = (/** @type {HTMLElement} */ one) => one.getBoundingClientRect().height;
  const resize = (/** @type {number} */ height) => {
    const fits = Math.round(Math.max(120, Math.min(heightOf(main) - 260, height)));
    document.documentElement.style.setProperty("--tab-panel", `${fits}px`);
  };
  const say = () =>
    splitter.setAttribute(
      "aria-valuenow",
      String(Math.round((100 * heightOf(byId("tab-panel"))) / Math.max(1, heightOf(main)))),
    );
  new ResizeObserver(say).observe(byId("tab-panel"));
  say();
  splitter.setAttribute("aria-valuemin", "0");
  splitter.setAttribute("aria-valuemax", "100");
  splitter.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    splitter.setPointerCapture(event.pointerId);
  });
  splitter.addEventListener("pointermove", (event) => {
    if (splitter.hasPointerCapture(event.pointerId)) resize(main.getBoundingClientRect().bottom - event.clientY);
  });
  splitter.addEventListener("keydown", (event) => {
    const by = lookUp({ ArrowUp: STEP, ArrowDown: -STEP }, event.key);
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    resize(byId("tab-panel").getBoundingClientRect().height + by);
  });
}
