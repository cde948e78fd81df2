/** Pointers on a map: hover, click, drag to pan, wheel, pinch and double click to zoom. */

const STILL = 4; // pixels that a click may move

/**
 * @param {HTMLElement} element
 * @param {{
 *   hover: (x: number, y: number) => void, leave: () => void, click: (x: number, y: number) => void,
 *   draw?: (x0: number, y0: number, x: number, y: number) => boolean,
 *   pan: (dx: number, dy: number, x: number, y: number) => void, zoom: (factor: number, x: number, y: number) => void,
 * }} on in CSS pixels of the element;
 *   draw: whether a drag from one point to another draws something, in place of moving the map
 */
export function listen(element, on) {
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let travelled = 0;
  let pinch = 0;
  let begun = { x: 0, y: 0 };
  const at = (/** @type {MouseEvent} */ event) => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const spread = () => {
    const [a, b] = [...down.values()];
    return { apart: Math.hypot(a.x - b.x, a.y - b.y), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  };

  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    element.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    begun = at(event);
    travelled = down.size > 1 ? STILL + 1 : 0;
    if (down.size === 2) pinch = spread().apart;
  });
  element.addEventListener("pointermove", (event) => {
    const now = at(event);
    const before = down.get(event.pointerId);
    if (!before) return event.pointerType === "touch" ? undefined : on.hover(now.x, now.y);
    down.set(event.pointerId, now);
    if (down.size === 2) {
      const { apart, x, y } = spread();
      if (pinch > 0 && apart > 0) on.zoom(apart / pinch, x, y);
      pinch = apart;
      return;
    }
    travelled += Math.hypot(now.x - before.x, now.y - before.y);
    if (travelled <= STILL || on.draw?.(begun.x, begun.y, now.x, now.y)) return;
    element.classList.add("panning");
    on.pan(now.x - before.x, now.y - before.y, now.x, now.y);
  });
  const up = (/** @type {PointerEvent} */ event) => {
    if (!down.delete(event.pointerId)) return;
    element.classList.remove("panning");
    if (event.type === "pointerup" && travelled <= STILL) {
      const { x, y } = at(event);
      on.click(x, y);
    }
  };
  element.addEventListener("pointerup", up);
  element.addEventListener("pointercancel", up);
  element.addEventListener("pointerleave", () => on.leave());
  element.addEventListener("dblclick", (event) => {
    const { x, y } = at(event);
    on.zoom(event.shiftKey ? 1 / 2 : 2, x, y);
  });
  element.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const { x, y } = at(event);
      if (event.shiftKey && !event.ctrlKey) return on.pan(-(event.deltaX || event.deltaY), 0, x, y);
      on.zoom(Math.exp(turned(event)), x, y);
    },
    { passive: false },
  );
}

/** The logarithm of the factor by which a wheel zooms, or a trackpad's pinch: a wheel with ctrl, in smaller numbers. */
const turned = (/** @type {WheelEvent} */ { deltaY, deltaMode, ctrlKey }) =>
  -Math.max(-300, Math.min(300, deltaY * (deltaMode === 1 ? 16 : 1))) * (ctrlKey ? 0.01 : 0.0016);

const PINCH = 1.25; // how much fingers move apart, or together, before it counts
const STEP = Math.log(2); // of a trackpad's pinch, which counts each time that fingers are twice as far apart
const PAUSE = 400; // milliseconds after which another pinch begins

/**
 * Two fingers that move apart or together on something that one finger scrolls, or on a trackpad.
 * @param {HTMLElement} element
 * @param {{closer: () => void, farther: () => void}} on
 */
export function pinches(element, on) {
  let apart = 0;
  const spread = (/** @type {TouchEvent} */ { touches: [a, b] }) =>
    Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  // Touches, not pointers: a finger's pointer ends as soon as the browser begins to scroll.
  element.addEventListener(
    "touchstart",
    (event) => {
      apart = event.touches.length === 2 ? spread(event) : 0;
    },
    { passive: true },
  );
  element.addEventListener(
    "touchmove",
    (event) => {
      if (event.touches.length !== 2 || !(apart > 0)) return;
      event.preventDefault(); // the page is not zoomed
      const ratio = spread(event) / apart;
      if (ratio < PINCH && ratio > 1 / PINCH) return;
      (ratio > 1 ? on.closer : on.farther)();
      apart = 0; // once a pinch
    },
    { passive: false },
  );
  let sum = 0;
  let latest = 0;
  element.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // it scrolls
      event.preventDefault(); // the page is not zoomed
      if (event.timeStamp - latest > PAUSE) sum = 0;
      latest = event.timeStamp;
      sum += turned(event);
      if (Math.abs(sum) < STEP) return;
      (sum > 0 ? on.closer : on.farther)();
      sum = 0;
    },
    { passive: false },
  );
}
