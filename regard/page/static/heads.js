/** The grid of all heads of a text, each its own small picture, named by what it does. */
import { byId, fillSelect, framed, make, targetOf } from "./dom.js";
import { count } from "./format.js";
import { pinches } from "./gestures.js";
import { HeadButtons } from "./head_buttons.js";
import { HeadsCanvas } from "./heads_canvas.js";
import { arrangement, lookAt, ordered, press, roleCounts, shownCount } from "./heads_shown.js";
import { SCORES, wordsFor } from "./quantities.js";
import { get, hasTwoRuns, isMany, set, sideTitle, sourceOf, subscribe } from "./store.js";
import { onThumbnails } from "./thumbnails.js";

export function startHeads() {
  const sort = byId("sort");
  sort.append(
    make("option", { value: "order", textContent: "by layer" }),
    ...SCORES.map((value) => make("option", { value, textContent: `by ${wordsFor(value)}` })),
  );
  sort.onchange = () => set({ sort: /** @type {State["sort"]} */ (sort.value) });
  byId("role").onchange = () => set({ role: byId("role").value });
  byId("size").onclick = () => set({ size: get().size === "names" ? "grid" : "names" });
  byId("wide").onclick = () => set({ wide: !get().wide });
  subscribe("run sort size wide", ({ sort: by, size, wide }) => {
    byId("size").textContent = size === "names" ? "Small" : "Names";
    byId("size").setAttribute(
      "aria-label",
      size === "names" ? "Show all heads small, without names" : "Show the heads with their names",
    );
    byId("wide").textContent = wide ? "Back to the map" : "Wide";
    byId("wide").setAttribute("aria-pressed", String(wide));
    sort.value = by;
  });
  subscribe("run heads role compare", fillRoles);
  new Grid("first", byId("grid"));
  new Grid("second", byId("grid-second"));
  subscribe("compare", () => {
    byId("grid-second").hidden = !hasTwoRuns();
    for (const name of /** @type {const} */ (["first", "second"])) {
      byId(`grid-${name}-title`).hidden = !hasTwoRuns();
      byId(`grid-${name}-title`).textContent = sideTitle(name);
    }
  });
}

/** The roles that occur, with the number of their heads; until all heads are named there is no choice. */
function fillRoles() {
  const { role } = get();
  const counts = roleCounts();
  const found = counts ?? [];
  if (role && !found.some(([name]) => name === role)) found.push([role, 0]); // of the text before, or of an address
  const select = byId("role");
  select.disabled = !counts;
  select.title = counts ? "" : "Once all heads are named, those of one role can be shown alone";
  fillSelect(
    select,
    [
      ["", `all roles (${count(shownCount())})`, ""],
      ...found.map(
        ([name, heads]) =>
          /** @type {[string, string, string]} */ ([name, counts ? `${name} (${count(heads)})` : name, ""]),
      ),
    ],
    role,
  );
}

/** The grid of one text. */
class Grid {
  /** @param {SideName} side @param {HTMLElement} root */
  constructor(side, root) {
    this.side = side;
    this.root = root;
    /** @type {HeadButtons|HeadsCanvas|null} */
    this.view = null;
    /** @type {HeadPlace|null} */
    this.seen = null;
    this.#listen();
    const arrange = framed(() => this.#arrange());
    subscribe("run sort role size wide compare view", arrange);
    subscribe("run heads changes effects view", ({ sort, role }) => {
      const source = this.source();
      if (source) this.view?.fill(source);
      if (sort !== "order" || role) arrange();
    });
    subscribe("layer head average compare active", () => this.view?.mark());
    subscribe("shows", () => this.view?.paint());
    onThumbnails((painted, layer) => painted === side && this.view?.paint(layer));
    document.addEventListener("inks", () => this.view?.paint());
    new ResizeObserver(arrange).observe(root);
  }

  /** @returns {OpenSource|null} What this grid shows the heads of; with two heads of one text there is one grid. */
  source() {
    const source = sourceOf(this.side);
    return source.run && (this.side === "first" || hasTwoRuns()) ? { ...source, run: source.run } : null;
  }

  #listen() {
    const { root } = this;
    const look = (/** @type {HeadPlace|null} */ place) => {
      if (place?.layer === this.seen?.layer && place?.head === this.seen?.head) return;
      this.seen = place;
      if (this.view instanceof HeadsCanvas) this.view.hover(place);
      lookAt(this.side, place);
    };
    const at = (/** @type {Event} */ event) => this.view?.headAt(event) ?? null;
    for (const name of /** @type {const} */ (["pointerover", "pointermove"]))
      root.addEventListener(name, (event) => event.pointerType !== "touch" && look(at(event)));
    root.addEventListener("pointerleave", () => look(null));
    root.addEventListener("focusin", (event) => targetOf(event).matches(":focus-visible") && look(at(event)));
    root.addEventListener("focusout", () => look(null));
    root.addEventListener("click", (event) => {
      const place = at(event);
      if (place) press(this.side, place);
    });
    root.addEventListener("dblclick", () => set({ wide: false })); // back to the map, with that head
    root.addEventListener("keydown", (event) => {
      if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || !this.view?.move(event)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    pinches(root, { closer: () => this.view?.closer(), farther: () => this.view?.farther() });
  }

  #arrange() {
    const source = this.source();
    const grid = this.root;
    const View = source && (isMany(source.run) ? HeadsCanvas : HeadButtons);
    if (!View || !(this.view instanceof View)) {
      this.view?.end();
      this.view = null;
    }
    if (!source || !View) return;
    const width = grid.clientWidth - 8;
    if (width < 40) return;
    this.view ??= new View(this.side, grid);
    // On a narrow page the grid is as tall as its heads, up to an end: that is the room there is.
    const room = Number.parseFloat(getComputedStyle(grid).maxHeight) || grid.clientHeight;
    const heads = ordered(source);
    this.view.arrange(source, heads, arrangement(source, heads.length, width, room - 8));
  }
}
