/** Heads over the updates of a training run: a picture of each, and one of its scores as a curve. */
"use strict";
(() => {
  const place = /** @type {HTMLElement} */ (document.querySelector(".viewer"));
  /** @type {{steps: number[], heads: number, roles: string[][], score: string, scores: (number|null)[][]}} */
  const { steps, heads, roles, score: title, scores } = JSON.parse(place.dataset.exhibit ?? "");
  const sprite = `${place.dataset.folder}/heads.png`;
  const [WIDTH, HEIGHT, PAUSE] = [720, 150, 180];
  const SVG = "http://www.w3.org/2000/svg";
  let at = steps.length - 1;
  /** @type {number|undefined} */
  let timer;

  const play = document.createElement("button");
  play.type = "button";
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: steps.length - 1 });
  const label = document.createElement("label");
  const number = document.createElement("output");
  label.append("update ", slider, " ", number);
  const bar = document.createElement("div");
  bar.className = "switches";
  bar.append(play, label);

  const grid = document.createElement("div");
  grid.className = "forming";
  grid.style.gridTemplateColumns = `repeat(${heads}, 1fr)`;
  const figures = roles[0].map((_, head) => {
    const figure = document.createElement("figure");
    const picture = document.createElement("div");
    picture.style.backgroundImage = `url("${sprite}")`;
    picture.style.backgroundSize = `${steps.length * 100}% ${roles[0].length * 100}%`;
    const caption = document.createElement("figcaption");
    figure.append(picture, caption);
    grid.append(figure);
    figure.addEventListener("pointerenter", () => mark(head));
    figure.addEventListener("pointerleave", () => mark(-1));
    return { picture, caption };
  });

  const curves = document.createElementNS(SVG, "svg");
  curves.setAttribute("viewBox", `-30 -8 ${WIDTH + 40} ${HEIGHT + 30}`);
  curves.setAttribute("role", "img");
  curves.setAttribute("aria-label", `${title}, of each head over the updates`);
  const x = (/** @type {number} */ i) => (i / (steps.length - 1)) * WIDTH;
  const y = (/** @type {number} */ share) => HEIGHT * (1 - share);
  for (const share of [0, 0.5, 1]) {
    line(0, y(share), WIDTH, y(share), "rule");
    text(-8, y(share) + 5, String(share), "end");
  }
  text(0, HEIGHT + 18, `update ${steps[0]}`, "start");
  text(WIDTH / 2, HEIGHT + 18, title, "middle");
  text(WIDTH, HEIGHT + 18, String(steps[steps.length - 1]), "end");
  const paths = roles[0].map((_, head) => {
    const path = document.createElementNS(SVG, "path");
    const points = scores.map((row, i) => `${x(i).toFixed(1)},${y(row[head] ?? 0).toFixed(1)}`);
    path.setAttribute("d", `M${points.join("L")}`);
    curves.append(path);
    return path;
  });
  const now = line(0, 0, 0, HEIGHT, "now");
  place.append(bar, grid, curves);

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 @param {string} kind */
  function line(x1, y1, x2, y2, kind) {
    const one = document.createElementNS(SVG, "line");
    for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) one.setAttribute(name, String(value));
    one.setAttribute("class", kind);
    curves.append(one);
    return one;
  }

  /** @param {number} left @param {number} base @param {string} words @param {string} anchor */
  function text(left, base, words, anchor) {
    const one = document.createElementNS(SVG, "text");
    for (const [name, value] of Object.entries({ x: left, y: base })) one.setAttribute(name, String(value));
    one.setAttribute("text-anchor", anchor);
    one.textContent = words;
    curves.append(one);
  }

  function mark(/** @type {number} */ head) {
    paths.forEach((path, i) => path.classList.toggle("marked", i === head));
  }

  function show() {
    figures.forEach(({ picture, caption }, head) => {
      const across = (at / Math.max(1, steps.length - 1)) * 100;
      const down = (head / Math.max(1, figures.length - 1)) * 100;
      picture.style.backgroundPosition = `${across}% ${down}%`;
      caption.textContent = `${Math.floor(head / heads)}·${head % heads} ${roles[at][head]}`;
    });
    slider.value = String(at);
    number.textContent = String(steps[at]);
    now.setAttribute("x1", String(x(at)));
    now.setAttribute("x2", String(x(at)));
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
