/**
 * The tour of the opening: a card a step, beside the element that it speaks of, which is framed. The page stays in
 * use meanwhile; what a step tried is taken back when it is left. An address may begin it: #p=opening&tour=1.
 */
import { byId, find, framed, lookUp, make, settled, targetOf } from "./dom.js";
import { get, subscribe } from "./store.js";
import { STEPS } from "./tour_steps.js";

/** @typedef {import("./tour_steps.js").Step} Step */

const MARGIN = 12; // around the card; half of it around what is framed
const GAP = 18; // between both, for the tip
const NARROW = matchMedia("(max-width: 700px)"); // there the card lies at the bottom of the screen

/** The step that is shown. @type {Step|null} */
let step = null;
let isTried = false;
/** What is seen of the window: within a page that is scrolled, a frame may be seen in part. */
let seen = { top: 0, bottom: Infinity };
/** @type {{frame: HTMLElement, card: HTMLElement, title: HTMLElement, text: HTMLElement, at: HTMLElement, trial: HTMLButtonElement, back: HTMLButtonElement, next: HTMLButtonElement}|null} */
let parts = null;

export function startTour() {
  let isAsked = new URLSearchParams(location.hash.slice(1)).has("tour");
  const button = make("button", {
    id: "tour",
    className: "plain",
    textContent: "Tour",
    title: "What is seen here, in six steps and two minutes",
    onclick: () => (step ? end() : begin()),
  });
  byId("view").before(button);
  // Once all is drawn: a step whose element is not there yet would be left out.
  const root = document.documentElement;
  const first = new MutationObserver(() => {
    if (root.dataset.settled !== "true") return;
    first.disconnect();
    if (get().view === "opening") begin();
  });
  subscribe("plain view", ({ plain, view }) => {
    button.hidden = view !== "opening" || !plain;
    if (view !== "opening") end();
    else if (plain && isAsked) {
      isAsked = false;
      first.observe(root, { attributeFilter: ["data-settled"] });
    }
  });
  const again = settled(60, render);
  subscribe("plain run view query layer head average shows changes changed without heads generating about", () => {
    if (step) again();
  });
  const moved = framed(place);
  new ResizeObserver(() => step && moved()).observe(document.body);
  window.addEventListener("resize", () => step && moved());
  document.addEventListener("keydown", pressed, { capture: true });
  if (window === window.top) return;
  const threshold = Array.from({ length: 201 }, (_, n) => n / 200);
  const watch = ([{ isIntersecting, intersectionRect }] = /** @type {IntersectionObserverEntry[]} */ ([])) => {
    const { top, bottom } = intersectionRect;
    seen = isIntersecting ? { top, bottom } : { top: 0, bottom: Infinity };
    if (step) moved();
  };
  new IntersectionObserver(watch, { threshold }).observe(document.body);
}

const highest = () => Math.max(0, seen.top);
const lowest = () => Math.min(innerHeight, seen.bottom);

/** Steps whose element is there; the one that is shown stays while its element is drawn anew. */
const present = () => STEPS.filter((one) => one === step || one.target().length);

function begin() {
  const [first] = present();
  if (!first) return;
  parts ??= build();
  document.body.append(parts.frame, parts.card);
  goTo(first);
}

function end() {
  if (!step) return;
  leave();
  step = null;
  parts?.frame.remove();
  parts?.card.remove();
  byId("tour").focus({ preventScroll: true });
}

/** Takes back what the step tried. */
function leave() {
  if (isTried) step?.trial?.undo();
  isTried = false;
}

function goTo(/** @type {Step} */ one) {
  leave();
  step = one;
  render();
  reveal();
  place();
  if (document.hasFocus()) parts?.next.focus({ preventScroll: true }); // within another page, it may be read or typed in
}

function turn(/** @type {1|-1} */ by) {
  const all = present();
  const to = step ? all[all.indexOf(step) + by] : null;
  if (to) goTo(to);
  else if (by > 0) end();
}

function attempt() {
  isTried = true;
  parts?.next.focus({ preventScroll: true }); // the button goes; what is tried may take the focus further
  step?.trial?.run();
  render();
  reveal();
  place();
}

/** @returns {Element[]} */
const targetNow = () => {
  const tried = (isTried && step?.trial?.target?.()) || [];
  return tried.length ? tried : (step?.target() ?? []);
};

function build() {
  const title = make("h2", { id: "tour-title" });
  const at = make("span", { className: "note" });
  const text = make("p", { id: "tour-text", "aria-live": "polite" });
  const trial = make("button", { type: "button", className: "tried", onclick: attempt });
  const back = make("button", { type: "button", className: "plain", textContent: "Back", onclick: () => turn(-1) });
  const next = make("button", { type: "button", className: "main", onclick: () => turn(1) });
  const close = make("button", {
    type: "button",
    className: "plain close",
    textContent: "×",
    "aria-label": "End the tour",
    onclick: end,
  });
  const card = make(
    "section",
    { id: "tour-card", role: "dialog", "aria-labelledby": "tour-title", "aria-describedby": "tour-text" },
    make("i", { className: "tip", "aria-hidden": "true" }),
    make("div", { className: "row" }, title, close),
    text,
    trial,
    make("div", { className: "row" }, at, back, next),
  );
  return { frame: make("div", { id: "tour-frame", "aria-hidden": "true" }), card, title, text, at, trial, back, next };
}

/** Writes the card: its numbers and words are those of the text that is open. */
function render() {
  if (!step || !parts) return;
  const all = present();
  const at = all.indexOf(step);
  parts.title.textContent = step.title;
  const words = step.text();
  if (words.map((one) => (typeof one === "string" ? one : one.textContent)).join("") !== parts.text.textContent)
    parts.text.replaceChildren(...words); // else a voice would say it again
  parts.at.textContent = `${at + 1} of ${all.length}`;
  parts.trial.hidden = !step.trial || isTried;
  if (step.trial && !isTried) parts.trial.textContent = step.trial.name();
  parts.back.hidden = at === 0;
  parts.next.textContent = at === all.length - 1 ? "Done" : "Next";
  place();
}

/** Puts the frame around what is spoken of, and the card where there is room beside it. */
function place() {
  const target = targetNow();
  if (!step || !parts) return;
  const { frame, card } = parts;
  frame.hidden = !target.length;
  if (!target.length) return;
  const { left, top, width, height } = around(target);
  put(frame, left, top);
  Object.assign(frame.style, { width: `${width}px`, height: `${height}px` });
  if (NARROW.matches) {
    card.removeAttribute("style");
    card.style.bottom = `${innerHeight - lowest() + MARGIN}px`;
    card.dataset.side = "bottom";
    return;
  }
  const [wide, high] = [card.offsetWidth, card.offsetHeight];
  const side = sideFor({ left, top, width, height }, wide, high);
  const within = (/** @type {number} */ value, /** @type {number} */ most) => Math.max(MARGIN, Math.min(value, most));
  const along = within(left + (width - wide) / 2, document.documentElement.clientWidth - wide - MARGIN);
  const down = within(top + (height - high) / 2, lowest() - high - MARGIN);
  const { x, y } = {
    below: { x: along, y: top + height + GAP },
    above: { x: along, y: top - high - GAP },
    right: { x: left + width + GAP, y: down },
    left: { x: left - wide - GAP, y: down },
    over: { x: along, y: lowest() - high - MARGIN },
  }[side];
  card.dataset.side = side;
  put(card, x, y);
  // The tip is where what is spoken of is.
  const tip = find(card, ".tip");
  const isUpright = side === "below" || side === "above";
  tip.style.left = isUpright ? `${within(left + width / 2 - x - 7, wide - 30)}px` : "";
  tip.style.top = isUpright ? "" : `${within(top + height / 2 - y - 7, high - 30)}px`;
}

/** Puts an element at a place of the window; it stays there on the page. */
function put(/** @type {HTMLElement} */ one, /** @type {number} */ left, /** @type {number} */ top) {
  one.style.left = `${left + scrollX}px`;
  one.style.top = `${top + scrollY}px`;
}

/** The box around some elements, with room. */
function around(/** @type {Element[]} */ some) {
  const boxes = some.map((one) => one.getBoundingClientRect());
  const left = Math.min(...boxes.map((one) => one.left)) - MARGIN / 2;
  const top = Math.min(...boxes.map((one) => one.top)) - MARGIN / 2;
  const right = Math.max(...boxes.map((one) => one.right)) + MARGIN / 2;
  const bottom = Math.max(...boxes.map((one) => one.bottom)) + MARGIN / 2;
  return { left, top, width: right - left, height: bottom - top };
}

/**
 * Scrolls what is spoken of into sight, at once, and above the card where that lies at the bottom. No page around
 * this one is scrolled, as scrollIntoView would.
 */
function reveal() {
  const target = targetNow();
  if (!target.length || !parts) return;
  const row = target[0].parentElement;
  if (row && row.scrollWidth > row.clientWidth)
    row.scrollLeft += target[0].getBoundingClientRect().left - row.getBoundingClientRect().left - 2 * MARGIN;
  const { top, height } = around(target);
  const stop = lowest() - MARGIN - (NARROW.matches ? parts.card.offsetHeight + MARGIN : 0);
  const start = highest() + MARGIN;
  const over = Math.max(0, top + height - stop);
  window.scrollBy({ top: top - over < start ? top - start : over, behavior: "instant" });
}

/**
 * The side of what is framed on which the card fits into the window; over it where it fits nowhere.
 * @param {{left: number, top: number, width: number, height: number}} box @param {number} width @param {number} height
 * @returns {"below"|"above"|"left"|"right"|"over"}
 */
function sideFor(box, width, height) {
  const gap = GAP + MARGIN;
  if (box.top + box.height + height + gap <= lowest()) return "below";
  if (box.top - height - gap >= highest()) return "above";
  if (box.left - width - gap >= 0) return "left";
  return box.left + box.width + width + gap <= document.documentElement.clientWidth ? "right" : "over";
}

/** Escape ends it, arrows turn its cards; elsewhere on the page keys mean what they always do. */
function pressed(/** @type {KeyboardEvent} */ event) {
  if (!step || event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const target = targetOf(event);
  if (target.matches("input, textarea, select")) return;
  const isHere = target === document.body || target === byId("tour") || parts?.card.contains(target);
  const act = lookUp({ ArrowRight: () => turn(1), ArrowLeft: () => turn(-1) }, isHere ? event.key : "");
  if (event.key !== "Escape" && !act) return;
  event.preventDefault();
  event.stopPropagation();
  if (act) act();
  else end();
}
