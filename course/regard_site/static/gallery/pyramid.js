/** A map in tiles: drag, pinch, scroll or use keys to fly over it. */
"use strict";
(() => {
  const place = /** @type {HTMLElement} */ (document.querySelector(".viewer"));
  /** @type {{tokens: number, tile: number, whole: number, finest: number, corner: number}} */
  const { tokens, tile, whole, finest, corner } = JSON.parse(place.dataset.exhibit ?? "");
  const folder = place.dataset.folder ?? "";
  const field = document.createElement("div");
  field.className = "field";
  field.tabIndex = 0;
  field.setAttribute("role", "application");
  field.setAttribute("aria-label", "Map of the head: arrows move, plus and minus zoom, 0 shows all of it");
  const note = document.createElement("p");
  note.className = "note";
  note.setAttribute("aria-live", "polite");
  const buttons = document.createElement("div");
  buttons.className = "switches";
  place.append(buttons, field, note);

  /** Tokens a pixel of the screen, and the query and key in the upper left corner. */
  const view = { scale: 1, query: 0, key: 0 };
  /** @type {Map<string, HTMLImageElement>} */
  const shown = new Map();
  let drawing = 0;

  const draw = () => {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(paint);
  };

  function paint() {
    const { width, height } = field.getBoundingClientRect();
    const wanted = new Set();
    // A coarser level stays below the one that fits, where that has no tile or is not loaded yet.
    const level = Math.max(0, Math.min(finest, Math.ceil(Math.log2(tokens / tile / view.scale))));
    for (const one of new Set([0, Math.min(level, whole), level])) {
      const size = tokens / 2 ** one; // tokens of a tile
      const last = 2 ** one - 1;
      const first = one > whole ? (tokens - corner) / size : 0;
      const bound = (/** @type {number} */ at) => Math.max(first, Math.min(last, Math.floor(at / size)));
      for (let row = bound(view.query); row <= bound(view.query + height * view.scale); row++) {
        const end = Math.min(row, bound(view.key + width * view.scale));
        for (let column = bound(view.key); column <= end; column++) {
          wanted.add(show(one, row, column, size));
        }
      }
    }
    for (const [name, image] of shown) {
      if (wanted.has(name)) continue;
      image.remove();
      shown.delete(name);
    }
    const tokensEach = view.scale === 1 ? "a token" : `${round(view.scale)} tokens`;
    const each = view.scale < 1 ? `${Math.round(1 / view.scale)} pixels a token` : `${tokensEach} a pixel`;
    const [query, key] = [view.query, view.key].map((at) => Math.max(0, Math.round(at)).toLocaleString("en"));
    note.textContent = `${each}; queries from ${query} down, keys from ${key} to the right`;
  }

  const round = (/** @type {number} */ number) => Number(number.toPrecision(3));

  /** @param {number} level @param {number} row @param {number} column @param {number} size */
  function show(level, row, column, size) {
    const name = `${level}/${row}-${column}`;
    let image = shown.get(name);
    if (!image) {
      image = new Image();
      image.alt = "";
      image.draggable = false;
      image.src = `${folder}/${name}.png`;
      image.style.zIndex = String(level);
      shown.set(name, image);
      field.append(image);
    }
    const side = size / view.scale;
    const [x, y] = [(column * size - view.key) / view.scale, (row * size - view.query) / view.scale];
    image.style.width = image.style.height = `${side + 0.5}px`;
    image.style.transform = `translate(${x}px, ${y}px)`;
    return name;
  }

  function fit() {
    const { width, height } = field.getBoundingClientRect();
    Object.assign(view, { scale: tokens / Math.min(width, height), query: 0, key: 0 });
    draw();
  }

  /** Zoom about a place of the field, in pixels. */
  function zoom(/** @type {number} */ by, /** @type {number} */ x, /** @type {number} */ y) {
    const { width, height } = field.getBoundingClientRect();
    const scale = Math.max(1 / 16, Math.min(tokens / Math.min(width, height), view.scale / by));
    view.key += x * (view.scale - scale);
    view.query += y * (view.scale - scale);
    view.scale = scale;
    draw();
  }

  function move(/** @type {number} */ x, /** @type {number} */ y) {
    view.key = Math.max(-tokens / 2, Math.min(tokens, view.key - x * view.scale));
    view.query = Math.max(-tokens / 2, Math.min(tokens, view.query - y * view.scale));
    draw();
  }

  /** The middle of the square that shows the whole map at first. */
  const middle = () => {
    const half = Math.min(field.clientWidth, field.clientHeight) / 2;
    return [half, half];
  };
  const zoomAtMiddle = (/** @type {number} */ by) => zoom(by, middle()[0], middle()[1]);
  /** @type {[string, () => void][]} */
  const ACTIONS = [
    ["closer", () => zoomAtMiddle(2)],
    ["farther", () => zoomAtMiddle(0.5)],
    ["all of it", fit],
    ["the finest corner", showCorner],
  ];
  function showCorner() {
    const [x, y] = middle();
    Object.assign(view, { scale: 1, key: tokens - 600 - x, query: tokens - 600 - y });
    draw();
  }
  for (const [text, act] of ACTIONS) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", act);
    buttons.append(button);
  }

  field.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const { left, top } = field.getBoundingClientRect();
      zoom(2 ** (-event.deltaY / 300), event.clientX - left, event.clientY - top);
    },
    { passive: false },
  );
  /** @type {Map<number, PointerEvent>} */
  const fingers = new Map();
  field.addEventListener("pointerdown", (event) => {
    field.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
  });
  field.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const other = [...fingers.values()].find((one) => one.pointerId !== event.pointerId);
    if (other) {
      const apart = (/** @type {PointerEvent} */ one) =>
        Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      const { left, top } = field.getBoundingClientRect();
      zoom(apart(event) / Math.max(1, apart(before)), other.clientX - left, other.clientY - top);
    } else move(event.clientX - before.clientX, event.clientY - before.clientY);
    fingers.set(event.pointerId, event);
  });
  for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) {
    field.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }
  field.addEventListener("keydown", (event) => {
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => move(80, 0),
      ArrowRight: () => move(-80, 0),
      ArrowUp: () => move(0, 80),
      ArrowDown: () => move(0, -80),
      "+": () => zoomAtMiddle(2),
      "-": () => zoomAtMiddle(0.5),
      0: fit,
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  new ResizeObserver(draw).observe(field);
  fit();
})();
