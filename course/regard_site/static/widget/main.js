/** A widget on a page of the ladder: its tables can be changed, and everything after them moves. */
import { begin, compute, dimOf, drawn, inputsOf, scaleOf } from "./state.js";
import { decimalsOf, inputCell, make, outputCell, show, table } from "./tables.js";
import { changes, framesOf, ORDER, sentence } from "./words.js";
/** @typedef {import("./state.js").Settings} Settings */
/** @typedef {import("./state.js").Steps} Steps */

/** @type {Record<keyof Steps, string>} */
const NOTES = {
  scores: "query · key",
  scaled: "times the scale",
  masked: "−∞ where hidden",
  weights: "softmax of each row",
  dropped: "after dropout",
  context: "weights @ value",
};
const INPUTS = { x: "query, key and value at once", query: "", key: "", value: "", scores: "" };
const OVER_KEYS = new Set(["scores", "scaled", "masked", "weights", "dropped"]);
const WEIGHTS = new Set(["weights", "dropped"]);
const HINT = "Change a number: all that follows is computed again. Or follow one query, step by step.";
const PAUSE = 1400; // milliseconds between frames that play

for (const [at, place] of [...document.querySelectorAll(".widget")].entries()) {
  start(/** @type {HTMLElement} */ (place), at + 1);
}

function start(/** @type {HTMLElement} */ place, /** @type {number} */ number) {
  /** @type {Settings} */
  const settings = JSON.parse(place.dataset.widget ?? "");
  const { labels } = settings;
  const page = compute(settings, begin(settings));
  let state = begin(settings);
  const untouched = JSON.stringify(state);
  let query = settings.queryAt;
  /** Which frame the player shows; −1 for all of them at once. */
  let frame = -1;
  /** @type {number|undefined} */
  let timer;

  const inputs = make("div", { className: "tables" });
  const outputs = make("div", { className: "tables" });
  const line = make("p", { className: "sentence" });
  line.setAttribute("aria-live", "polite");
  /** @type {Map<keyof Steps, HTMLTableElement>} */
  const tables = new Map();

  place.setAttribute("role", "group");
  place.setAttribute("aria-label", `Widget ${number}: change a number, and all that follows is computed again`);
  const [switches, refresh] = switchesOf();
  const [player, mark] = playerOf();
  place.append(switches, inputs, outputs, make("div", { className: "follow" }, player, line));
  build();

  /** Draw all tables anew, from the numbers as they are. */
  function build() {
    inputs.replaceChildren(
      ...inputsOf(settings).map((name) => {
        const numbers = /** @type {number[][]} */ (state[name]);
        const columns = columnsOf(name, numbers);
        const decimals = decimalsOf(numbers);
        const change = (/** @type {number} */ i, /** @type {number} */ j) => (/** @type {number} */ to) => {
          numbers[i][j] = to;
          update();
        };
        return table(name, INPUTS[name], labels.slice(0, numbers.length), columns, (i, j) =>
          inputCell(`${name} of ${labels[i]}, ${columns[j]}`, numbers[i][j].toFixed(decimals), change(i, j)),
        );
      }),
    );
    tables.clear();
    for (const name of ORDER) {
      const numbers = page[name];
      if (!numbers || (name === "scores" && settings.scores)) continue;
      const [rows, columns] = [labels.slice(0, numbers.length), columnsOf(name, numbers)];
      tables.set(
        name,
        table(name, NOTES[name], rows, columns, (i) => outputCell(() => choose(i))),
      );
    }
    outputs.replaceChildren(...tables.values());
    update();
  }

  /** Keys by their labels, channels by their numbers. */
  function columnsOf(/** @type {string} */ name, /** @type {number[][]} */ numbers) {
    const areKeys = OVER_KEYS.has(name);
    return numbers[0].map((_, j) => (areKeys ? labels[j] : String(j)));
  }

  function choose(/** @type {number} */ next) {
    query = next;
    update();
  }

  /** Compute everything, and show it. */
  function update() {
    const steps = compute(settings, state);
    const frames = framesOf(state, steps);
    const now = frame >= 0 ? frames[Math.min(frame, frames.length - 1)] : null;
    for (const row of inputs.querySelectorAll("[data-name=x] tbody tr, [data-name=query] tbody tr")) {
      row.classList.toggle("query", row.parentElement?.children[query] === row);
    }
    for (const [name, whole] of tables) {
      whole.hidden = !changes(name, state, steps);
      show(whole, /** @type {number[][]} */ (steps[name]), page[name] ?? [], WEIGHTS.has(name));
      const later = now !== null && ORDER.indexOf(name) > ORDER.indexOf(now.step);
      [...whole.tBodies[0].rows].forEach((row, i) => {
        row.classList.toggle("query", i === query);
        row.classList.toggle("later", i === query && later);
        row.classList.toggle("now", i === query && now?.step === name);
        [...row.cells].slice(1).forEach((cell, j) => {
          const key = now?.step === name && now.key !== undefined ? now.key : Infinity;
          cell.classList.toggle("later", i === query && j > key && key < Infinity);
          cell.classList.toggle("now", i === query && j === key);
        });
      });
    }
    refresh();
    mark(frames.length);
    const scale = scaleOf(settings, state);
    line.textContent = now ? sentence(now, query, labels, state, steps, scale) : HINT;
  }

  /** @returns {[HTMLElement, () => void]} the switches, and what shows their state */
  function switchesOf() {
    const scale = toggle(`scale 1/√${dimOf(settings)}`, () => (state.scaled = !state.scaled));
    const causal = toggle("causal mask", () => (state.causal = !state.causal));
    const [heat, heatOutput] = slider("temperature", [-6, 4, 0.25], (power) => (state.temperature = 2 ** power));
    const [drop, dropOutput] = slider("dropout", [0, 0.9, 0.05], (p) => {
      state.dropout = p;
      state.survives = drawn(labels.length, p);
    });
    const again = make("button", { type: "button", textContent: "draw again" });
    again.addEventListener("click", () => {
      state.survives = drawn(labels.length, state.dropout);
      update();
    });
    const reset = make("button", { type: "button", textContent: "the page’s numbers" });
    reset.addEventListener("click", () => {
      state = begin(settings);
      frame = -1;
      build();
    });
    const hasRows = (settings.query ?? settings.scores ?? []).length > 1;
    const parts = [...(settings.scores ? [] : [scale]), ...(hasRows ? [causal] : []), heat.parentElement];
    if (hasRows) parts.push(drop.parentElement, again);
    const whole = make("div", { className: "switches" }, .../** @type {HTMLElement[]} */ (parts), reset);
    return [
      whole,
      () => {
        scale.setAttribute("aria-pressed", String(state.scaled));
        causal.setAttribute("aria-pressed", String(state.causal));
        heat.value = String(Math.log2(state.temperature));
        heatOutput.textContent = String(Number(state.temperature.toPrecision(3)));
        drop.value = String(state.dropout);
        dropOutput.textContent = String(state.dropout);
        again.hidden = !state.dropout;
        reset.hidden = JSON.stringify(state) === untouched;
      },
    ];
  }

  function toggle(/** @type {string} */ name, /** @type {() => void} */ flip) {
    const button = make("button", { type: "button", textContent: name });
    button.addEventListener("click", () => {
      flip();
      update();
    });
    return button;
  }

  /**
   * @param {string} name @param {[number, number, number]} range least, most, step @param {(to: number) => void} change
   * @returns {[HTMLInputElement, HTMLOutputElement]}
   */
  function slider(name, [min, max, step], change) {
    const input = make("input", { type: "range", min: String(min), max: String(max), step: String(step) });
    const output = make("output");
    make("label", {}, `${name} `, input, " ", output);
    input.addEventListener("input", () => {
      change(input.valueAsNumber);
      update();
    });
    return [input, output];
  }

  /** @returns {[HTMLElement, (frames: number) => void]} the player of one query, and what shows its state */
  function playerOf() {
    const rows = (settings.query ?? settings.scores ?? []).length;
    const select = make("select", {}, ...labels.slice(0, rows).map((text, i) => new Option(text, String(i))));
    select.addEventListener("change", () => choose(Number(select.value)));
    const back = make("button", { type: "button", textContent: "◂", ariaLabel: "one step back" });
    const play = make("button", { type: "button" });
    const on = make("button", { type: "button", textContent: "▸", ariaLabel: "one step on" });
    const whole = make("button", { type: "button", textContent: "all at once" });
    let frames = 0;
    const go = (/** @type {number} */ next) => {
      frame = next < 0 || next >= frames ? -1 : next;
      if (frame < 0) stop();
      update();
      // On a phone the tables are higher than the screen; whoever has left the widget is left alone.
      const { top, bottom } = play.getBoundingClientRect();
      const cell = outputs.querySelector("td.now, tr.now");
      if (bottom > 0 && top < innerHeight) cell?.scrollIntoView({ block: "nearest", behavior: "instant" });
    };
    const stop = () => {
      clearInterval(timer);
      timer = undefined;
    };
    back.addEventListener("click", () => go(frame < 0 ? frames - 1 : frame - 1));
    on.addEventListener("click", () => go(frame + 1));
    whole.addEventListener("click", () => go(-1));
    play.addEventListener("click", () => {
      if (timer === undefined) {
        timer = setInterval(() => go(frame + 1), PAUSE);
        go(Math.max(0, frame));
      } else {
        stop();
        update();
      }
    });
    const label = make("label", {}, "query ", select);
    return [
      make("div", { className: "player" }, label, back, play, on, whole, make("span", { className: "note" })),
      (count) => {
        frames = count;
        select.value = String(query);
        play.textContent = timer === undefined ? "play its steps" : "pause";
        whole.hidden = frame < 0;
        const note = /** @type {HTMLElement} */ (whole.nextElementSibling);
        note.textContent = frame < 0 ? "" : `step ${Math.min(frame, count - 1) + 1} of ${count}`;
      },
    ];
  }
}
