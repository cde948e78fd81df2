/**
 * The tour of the opening: a card a step, beside the element that it speaks of, which is framed. The page stays in
 * use meanwhile; what a step tried is taken back when it is left. An address may begin it: #p=opening&tour=1.
 */
import { byId, find, framed, lookUp, make, settled, targetOf } from "./dom.js";
import { get, subscribe } from "./store.js";
import { STEPS } from "./tour_steps.js";

/** @typedef {import("./tour_steps.js").Step} Step */

const MARGIN = 12; // around what is framed, and around the card
const NARROW = matchMedia("(max-width: 700px)"); // there the card lies at the bottom of the screen
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/** The step that is shown. @type {Step|null} */
let step = null;
let isTried = false;
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
  const first = settled(200, () => {
    if (isAsked && get().view === "opening") begin();
    isAsked = false;
  });
  subscribe("plain view", ({ plain, view }) => {
    button.hidden = view !== "opening" || !plain;
    if (view !== "opening") end();
    else if (plain && isAsked) first();
  });
  const again = settled(60, render);
  subscribe("plain run view query layer head average shows changes changed without heads generating about", () => {
    if (step) again();
  });
  const moved = framed(() => place(false));
  new ResizeObserver(() => step && moved()).observe(document.body);
  window.addEventListener("resize", () => step && moved());
  document.addEventListener("keydown", pressed, { capture: true });
}

/** Steps whose element is there; the one that is shown stays while its element is drawn anew. */
const present = () => STEPS.filter((one) => one === step || one.target());

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
  place(true);
  parts?.next.focus({ preventScroll: true });
}

function turn(/** @type {1|-1} */ by) {
  const all = present();
  const to = step ? all[all.indexOf(step) + by] : null;
  if (to) goTo(to);
  else if (by > 0) end();
}

function attempt() {
  isTried = true;
  step?.trial?.run();
  render();
  place(true);
}

const targetNow = () => (isTried && step?.trial?.target?.()) || step?.target() || null;

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
  place(false);
}

/** Puts the frame around what is spoken of, and the card where there is room beside it. */
function place(/** @type {boolean} */ scrolls) {
  const target = targetNow();
  if (!step || !parts) return;
  const { frame, card } = parts;
  frame.hidden = !target;
  if (!target) return;
  const box = target.getBoundingClientRect();
  const [width, height] = [card.offsetWidth, card.offsetHeight];
  const room = innerHeight - height - 3 * MARGIN; // above the card, or below it
  const place = { left: box.left - MARGIN / 2, top: box.top - MARGIN / 2, ...sizeOf(box) };
  let by = 0;
  if (scrolls) {
    const most = NARROW.matches ? room : innerHeight - MARGIN;
    if (place.top + place.height > most) by = place.top + place.height - most;
    if (place.top - by < MARGIN) by = place.top - MARGIN;
    by = Math.max(-scrollY, Math.min(by, document.documentElement.scrollHeight - innerHeight - scrollY));
    if (by) window.scrollTo({ top: scrollY + by, behavior: STILL.matches ? "auto" : "smooth" });
  }
  Object.assign(frame.style, {
    left: `${place.left + scrollX}px`,
    top: `${place.top + scrollY}px`,
    width: `${place.width}px`,
    height: `${place.height}px`,
  });
  if (NARROW.matches) {
    card.removeAttribute("style");
    card.dataset.side = "bottom";
    return;
  }
  const top = place.top - by;
  const side = sideFor({ ...place, top }, width, height);
  const middle = place.left + place.width / 2;
  const along = Math.max(MARGIN, Math.min(middle - width / 2, document.documentElement.clientWidth - width - MARGIN));
  const down = Math.max(MARGIN, Math.min(top + place.height / 2 - height / 2, innerHeight - height - MARGIN));
  const gap = 1.5 * MARGIN;
  const at = {
    below: { x: along, y: top + place.height + gap },
    above: { x: along, y: top - height - gap },
    right: { x: place.left + place.width + gap, y: down },
    left: { x: place.left - width - gap, y: down },
    over: { x: along, y: innerHeight - height - MARGIN },
  }[side];
  card.dataset.side = side;
  card.style.left = `${at.x + scrollX}px`;
  card.style.top = `${at.y + by + scrollY}px`;
  // The tip is where what is spoken of is.
  const tip = find(card, ".tip");
  const within = (/** @type {number} */ value, /** @type {number} */ most) => Math.max(16, Math.min(value, most - 30));
  const isUpright = side === "below" || side === "above";
  tip.style.left = isUpright ? `${within(middle - at.x - 7, width)}px` : "";
  tip.style.top = isUpright ? "" : `${within(top + place.height / 2 - at.y - 7, height)}px`;
}

const sizeOf = (/** @type {DOMRect} */ { width, height }) => ({ width: width + MARGIN, height: height + MARGIN });

/**
 * The side of what is framed on which the card fits into the window; over it where it fits nowhere.
 * @param {{left: number, top: number, width: number, height: number}} box @param {number} width @param {number} height
 * @returns {"below"|"above"|"left"|"right"|"over"}
 */
function sideFor(box, width, height) {
  const gap = 2.5 * MARGIN;
  if (box.top + box.height + height + gap <= innerHeight) return "below";
  if (box.top - height - gap >= 0) return "above";
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
