/** How heads formed: their pictures and scores at each recorded update of the training run. */
import * as api from "./api.js";
import { currentAddress } from "./address.js";
import { byId, framed, make, markStale } from "./dom.js";
import { paintThumbnail } from "./draw_thumbnail.js";
import { paintTraining, stepAt } from "./draw_training.js";
import { count, plural, signed } from "./format.js";
import { awaitAnswer } from "./answers.js";
import { columns } from "./map.js";
import { during } from "./pending.js";
import { wordsFor } from "./quantities.js";
import { chooseHead, colourNow, get, runOf, set, sourceOf, subscribe } from "./store.js";
import { prepared } from "./canvas.js";
import { inks, themeNow } from "./theme.js";

/** What the training run recorded; null until it has come. @type {TrainingHistory} */
let recorded = /** @type {any} */ (null);
let asking = false;
/** The pictures of all heads, and of which update they are. @type {{step: number, data: Floats|null}} */
let pictures = { step: -1, data: null };
/** @type {ReturnType<typeof build>|null} */
let parts = null;
let playing = false;
/** Called when the pictures of an update have come. */
let arrived = () => {};
const PACE = 240; // milliseconds between two updates, at least

export function startTraining() {
  const draw = framed(paint);
  subscribe("about run tab folded update layer head average sort offline", () => load(draw));
  subscribe("tab folded update layer head average sort colour zoom view", draw);
  document.addEventListener("inks", draw);
  byId("training").addEventListener("keydown", (event) => {
    if (event.target === parts?.slider) event.stopPropagation(); // arrows move the slider alone
  });
}

/** The update that is looked at: the one chosen, or the nearest recorded before it, or the last. */
function stepNow() {
  const { update } = get();
  return recorded.steps.findLast((step) => update == null || step <= update) ?? recorded.steps[0];
}

async function load(/** @type {() => void} */ draw) {
  const { about, tab, folded, offline } = get();
  if (!about?.training || !runOf("first") || tab !== "training" || folded || offline) return;
  if (!recorded) {
    if (asking) return;
    asking = true;
    const answer = await awaitAnswer(api.training());
    asking = false;
    if (!answer) return;
    recorded = answer;
    parts = build(draw);
  }
  const step = stepNow();
  draw();
  if (pictures.step === step) return;
  const data = await awaitAnswer(api.trained(step));
  if (!data || stepNow() !== step) return; // a newer update is looked at
  pictures = { step, data };
  draw();
  arrived();
}

/** Goes through the updates that are left, or all again, as fast as their pictures come. */
async function play() {
  playing = !playing;
  if (!playing) return arrived();
  const { steps } = recorded;
  const last = steps.length - 1;
  const now = steps.indexOf(stepNow());
  for (let n = now < last && get().update != null ? now + 1 : 0; playing && n <= last; n++) {
    const come = new Promise((done) => (arrived = () => done(null)));
    set({ update: steps[n] });
    await Promise.all([pictures.step === steps[n] || come, new Promise((done) => setTimeout(done, PACE))]);
    if (get().tab !== "training" || get().offline || stepNow() !== steps[n]) break; // someone else moved it
  }
  playing = false;
  paint();
}

/** The chosen head as it was at an update, in the place of the map; null: the map itself. */
function paintOver(/** @type {number|null} */ cell, /** @type {string} */ words) {
  const over = byId("formed-map");
  const { place } = columns.first;
  const [canvas, caption] = /** @type {[HTMLCanvasElement, HTMLElement]} */ ([...over.children]);
  over.hidden = cell == null || !pictures.data;
  if (cell == null || !pictures.data) return;
  if (over.parentElement !== columns.first.field) columns.first.field.append(over);
  Object.assign(canvas.style, {
    left: `${place.left}px`,
    top: `${place.top}px`,
    width: `${place.side}px`,
    height: `${place.side}px`,
  });
  caption.textContent = words;
  canvas.setAttribute("aria-label", words);
  paintThumbnail(canvas, pictures.data, cell, { theme: themeNow(), causal: true, kind: colourNow() });
}

function build(/** @type {() => void} */ draw) {
  const choose = (/** @type {number} */ step) => set({ update: step });
  const slider = make("input", {
    type: "range",
    min: "0",
    max: String(recorded.steps.length - 1),
    step: "1",
    id: "update",
    "aria-label": "Update of the training run",
    oninput: () => choose(recorded.steps[slider.valueAsNumber]),
  });
  const output = make("output", { htmlFor: "update" });
  const button = make("button", { type: "button", id: "play", textContent: "Play", onclick: () => during(play()) });
  const note = make("span", { className: "note", textContent: `on ${plural(recorded.tokens, "token")} kept for this` });
  const kept = make("a", { className: "note" });
  const canvas = make("canvas", {
    role: "img",
    onclick: (/** @type {MouseEvent} */ event) => choose(stepAt(recorded.steps, event.offsetX, canvas.clientWidth)),
  });
  const plot = make("div", { className: "plot" }, canvas);
  const grid = make("div", { className: "formed", role: "group", "aria-label": "Heads at this update" });
  const across = Math.max(...recorded.roles[0].map((layer) => layer.length));
  grid.style.gridTemplateColumns = `repeat(${across}, minmax(58px, 88px))`;
  const cells = recorded.roles[0].flatMap((layer, at) =>
    layer.map((_, head) => {
      const picture = make("canvas", { "aria-hidden": "true" });
      const [role, figure] = [make("b"), make("span")];
      const root = make(
        "button",
        { className: "cell", type: "button", onclick: () => chooseHead(at, head) },
        picture,
        role,
        figure,
      );
      if (!head) root.style.gridColumnStart = "1";
      grid.append(root);
      return { layer: at, head, picture, role, figure, root };
    }),
  );
  byId("training").replaceChildren(
    make(
      "div",
      { className: "forming" },
      make("div", {}, slider, plot, make("div", { className: "row" }, button, output, note, kept)),
      grid,
    ),
  );
  new ResizeObserver(draw).observe(plot);
  return { slider, button, output, kept, canvas, plot, grid, cells };
}

/** The score that lines and figures tell: the one heads are sorted by, or how much they induct. */
function scoreNow() {
  const { sort } = get();
  const name = recorded.names.includes(sort) ? sort : "induction";
  return { at: recorded.names.indexOf(name), name, word: wordsFor(name), decimals: name === "distance" ? 1 : 2 };
}

function paint() {
  const { tab, folded, update } = get();
  if (parts && (tab !== "training" || folded)) paintOver(null, "");
  if (!parts || tab !== "training" || folded) return;
  const step = stepNow();
  const n = recorded.steps.indexOf(step);
  const score = scoreNow();
  const { layer, head } = sourceOf();
  const loss = recorded.losses[n] == null ? "" : ` · loss ${signed(recorded.losses[n], 3)}`;
  const { slider, output, kept, canvas, plot, grid, cells } = parts;
  markStale(grid, pictures.data !== null && pictures.step !== step);
  slider.value = String(n);
  output.textContent = `update ${count(step)}${loss}`;
  slider.setAttribute("aria-valuetext", output.textContent.replace(" · ", ", "));
  const open = api.update === String(step); // this page is already of that model
  kept.hidden = !open && !recorded.kept.includes(step);
  kept.textContent = open ? "Back to the newest model" : "Open this update’s model";
  kept.href = `${open ? "/" : `?update=${step}`}${currentAddress()}`;
  const theme = themeNow();
  for (const cell of cells) {
    const value = recorded.scores[n][cell.layer][cell.head][score.at];
    const chosen = cell.layer === layer && cell.head === head;
    cell.role.textContent = recorded.roles[n][cell.layer][cell.head];
    cell.figure.textContent = `${cell.layer}·${cell.head}  ${signed(value, score.decimals)}`;
    cell.root.setAttribute("aria-pressed", String(chosen));
    cell.root.setAttribute(
      "aria-label",
      `Layer ${cell.layer}, head ${cell.head}, ${cell.role.textContent}, ${score.word} ${signed(value, score.decimals)}`,
    );
    const at = cells.indexOf(cell);
    if (pictures.data && at < pictures.data.heads)
      paintThumbnail(cell.picture, pictures.data, at, { theme, causal: true });
  }
  parts.button.textContent = playing ? "Stop" : "Play";
  const over = pictures.step === step ? cells.findIndex((one) => one.layer === layer && one.head === head) : -1;
  if (update == null) paintOver(null, "");
  else if (over >= 0) {
    const at = `${layer}·${head} at ${output.textContent?.split(" · ")[0]}`;
    paintOver(over, `Head ${at}, on ${plural(recorded.tokens, "token")} kept for this`);
  }
  const { width, height } = plot.getBoundingClientRect();
  if (width < 40 || height < 40) return;
  canvas.setAttribute(
    "aria-label",
    `${score.word} of each head over ${plural(recorded.steps.length, "update")}, and the loss; ${output.textContent}`,
  );
  paintTraining(prepared(canvas, width, height), {
    steps: recorded.steps,
    lines: cells.map((cell) => ({
      values: recorded.scores.map((all) => all[cell.layer][cell.head][score.at]),
      chosen: cell.layer === layer && cell.head === head,
    })),
    name: score.name,
    losses: recorded.losses,
    step,
    width,
    height,
    inks: inks(),
  });
}
