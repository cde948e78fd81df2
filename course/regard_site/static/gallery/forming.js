/** Heads over the updates of a training run: a picture of each, and what was measured as curves. */
"use strict";
(() => {
  const place = /** @type {HTMLElement} */ (document.querySelector(".viewer"));
  /** @typedef {{title: string, most: number, lines: (number|null)[][]}} Curves */
  /** @type {{steps: number[], columns: number, captions: string[][], curves: Curves[]}} */
  const { steps, columns, captions, curves } = JSON.parse(place.dataset.exhibit ?? "");
  const sprite = `${place.dataset.folder}/heads.png`;
  const [WIDTH, HEIGHT, PAUSE] = [720, 150, 180];
  const SVG = "http://www.w3.org/2000/svg";
  let at = steps.length - 1;
  /** @type {number|undefined} */
  let timer;

  const play = document.createElement("button");
  play.type = "button";
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: steps.length - 1 });
  const slide = document.createElement("label");
  const number = document.createElement("output");
  slide.append("update ", slider, " ", number);
  const bar = document.createElement("div");
  bar.className = "switches";
  bar.append(play, slide);

  const grid = document.createElement("div");
  grid.className = "forming";
  grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
  const figures = captions[0].map((_, head) => {
    const figure = document.createElement("figure");
    const picture = document.createElement("div");
    picture.style.backgroundImage = `url("${sprite}")`;
    picture.style.backgroundSize = `${steps.length * 100}% ${captions[0].length * 100}%`;
    const caption = document.createElement("figcaption");
    figure.append(picture, caption);
    grid.append(figure);
    figure.addEventListener("pointerenter", () => mark(head % columns));
    figure.addEventListener("pointerleave", () => mark(-1));
    return { picture, caption };
  });

  const x = (/** @type {number} */ i) => (i / (steps.length - 1)) * WIDTH;
  const y = (/** @type {number} */ share) => HEIGHT * (1 - share);
  const plots = curves.map(plot);
  place.append(bar, grid, ...plots.map(({ svg }) => svg));

  function plot(/** @type {Curves} */ { title, most, lines }) {
    const svg = make("svg", { viewBox: `-30 -26 ${WIDTH + 40} ${HEIGHT + 50}`, role: "img" });
    svg.setAttribute("aria-label", `${title}, of each training run over the updates`);
    svg.append(label(0, -12, title, "start"));
    for (const share of [0, 0.5, 1]) {
      svg.append(make("line", { x1: 0, x2: WIDTH, y1: y(share), y2: y(share), class: "rule" }));
      svg.append(label(-8, y(share) + 5, String(share * most), "end"));
    }
    svg.append(label(0, HEIGHT + 18, `update ${steps[0]}`, "start"));
    svg.append(label(WIDTH, HEIGHT + 18, String(steps[steps.length - 1]), "end"));
    const paths = lines.map((values) => {
      const points = values.map((value, i) => `${x(i).toFixed(1)},${y((value ?? 0) / most).toFixed(1)}`);
      return make("path", { d: `M${points.join("L")}` });
    });
    const now = make("line", { x1: 0, x2: 0, y1: 0, y2: HEIGHT, class: "now" });
    svg.append(...paths, now);
    return { svg, paths, now };
  }

  /** @param {string} kind @param {Record<string, string|number>} attributes */
  function make(kind, attributes) {
    const one = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, String(value));
    return one;
  }

  /** @param {number} left @param {number} base @param {string} words @param {string} anchor */
  function label(left, base, words, anchor) {
    const one = make("text", { x: left, y: base, "text-anchor": anchor });
    one.textContent = words;
    return one;
  }

  function mark(/** @type {number} */ line) {
    for (const { paths } of plots) paths.forEach((path, i) => path.classList.toggle("marked", i === line));
  }

  function show() {
    figures.forEach(({ picture, caption }, head) => {
      const across = (at / Math.max(1, steps.length - 1)) * 100;
      const down = (head / Math.max(1, figures.length - 1)) * 100;
      picture.style.backgroundPosition = `${across}% ${down}%`;
      caption.textContent = captions[at][head];
    });
    slider.value = String(at);
    number.textContent = String(steps[at]);
    for (const { now } of plots) for (const end of ["x1", "x2"]) now.setAttribute(end, String(x(at)));
    play.textContent = timer === undefined ? "play" : "pause";
  }

  function stop() {
    clearInterval(timer);
    timer = undefined;
  }

  slider.addEventListener("input", () => {
    stop();
    at = Number(slider.value);
    show();
  });
  play.addEventListener("click", () => {
    if (timer !== undefined) stop();
    else {
      if (at === steps.length - 1) at = -1;
      timer = setInterval(() => {
        at += 1;
        if (at >= steps.length - 1) stop();
        show();
      }, PAUSE);
    }
    if (at >= 0) show();
    else play.textContent = "pause";
  });
  show();
})();
