/** Patch: each head of the run before a swap put into the run now, and how much of the answer's change comes back. */
import * as api from "./api.js";
import { headName } from "./change_list.js";
import { byId, make } from "./dom.js";
import { Replaced, ServerError } from "./errors.js";
import { plural, quoted, said, signed } from "./format.js";
import { during } from "./pending.js";
import { chooseHead, get, set, sourceOf, subscribe } from "./store.js";
import { formerRun, swapOf } from "./swapped.js";

/** A smaller change of the answer, in nats, is none that heads could bring back. */
const NONE = 0.05;
/** Heads that are named. */
const NAMED = 3;
/** A head that brings back less of the change is not named. */
const FAINT = 0.05;

/** @type {AbortController|null} */
let measuring = null;
let progress = "";
/** What was measured, and of which swap. @type {{swap: Swap, patched: Patched}|null} */
let result = null;

export function startPatch() {
  byId("patch").onclick = () => {
    if (measuring) return measuring.abort();
    const swap = swapOf(get().plain);
    if (!swap || objection(swap)) return;
    if (result?.swap === swap) {
      result = null;
      return draw();
    }
    during(measure(swap));
  };
  subscribe("plain swap", () => {
    measuring?.abort();
    draw();
  });
  subscribe("layer head average view", mark);
}

/** Why the runs can't be patched, in a sentence; "" if they can. */
function objection(/** @type {Swap} */ { was, old, start, stop }) {
  const { plain } = get();
  if (!plain?.next) return "Patch measures the next token, which this model does not have.";
  if (plain.length === was.length) return "";
  const word = quoted(plain.text?.slice(start, stop) ?? "");
  return `Patch needs equal positions: with ${quoted(old)} the text has ${plural(was.length, "token")}, with ${word} ${plain.length}.`;
}

/** @param {Swap} swap */
async function measure(swap) {
  const control = new AbortController();
  measuring = control;
  progress = " …";
  draw();
  try {
    const { id } = await formerRun(swap); // it may have been put away
    await api.patch(
      swap.run,
      id,
      (line) => {
        if (control.signal.aborted) return;
        if (line.error) set({ problem: line.error });
        else if (line.values) result = { swap, patched: /** @type {Patched} */ (line) };
        else progress = ` (head ${line.done} of ${line.total})`;
        draw();
      },
      control.signal,
    );
  } catch (error) {
    if (error instanceof ServerError && !error.offline) set({ problem: error.message });
    else if (!(error instanceof ServerError || error instanceof Replaced)) throw error;
  }
  if (measuring === control) measuring = null;
  draw();
}

function draw() {
  const { plain } = get();
  const swap = swapOf(plain);
  const patched = swap && result?.swap === swap ? result.patched : null;
  const why = swap ? objection(swap) : "";
  const button = byId("patch");
  button.textContent = measuring ? `Stop${progress}` : patched ? "Hide the patch" : "Patch";
  button.setAttribute("aria-pressed", String(Boolean(patched)));
  button.setAttribute("aria-disabled", String(Boolean(why)));
  byId("patch-note").textContent = why;
  byId("patched").hidden = !patched;
  byId("patched").replaceChildren(...(swap && plain && patched ? picture(plain, swap, patched) : []));
  mark();
}

/**
 * What heads bring back: in the grid of all, in a sentence, and what is measured.
 * @param {Run} run @param {Swap} swap @param {Patched} patched
 */
function picture(run, swap, patched) {
  const whole = patched.other - patched.unchanged;
  const says = make("p", { className: "says", role: "status" });
  if (Math.abs(whole) < NONE) {
    says.textContent = "The answer hardly moves; there is nothing that a head could bring back.";
    return [make("div", {}, says)];
  }
  const parts = patched.values.map((row) => row.map((value) => (value == null ? null : value / whole)));
  const ranked = parts
    .flatMap((row, layer) => row.map((value, head) => ({ layer, head, part: value ?? 0 })))
    .sort((a, b) => Math.abs(b.part) - Math.abs(a.part));
  const named = ranked.filter(({ part }) => Math.abs(part) >= FAINT).slice(0, NAMED);
  says.append(`Put back as it was with ${quoted(swap.old)}, `);
  if (!named.length) says.append(`no single head brings back ${signed(FAINT)} of the change.`);
  named.forEach(({ layer, head, part }, k) => {
    const name = make("i", { textContent: `${k ? "" : "head "}${headName(run, layer, head)}` });
    says.append(
      ["", "; then ", ", "][k],
      name,
      k ? ` ${signed(part)}` : ` alone brings back ${signed(part)} of the change`,
    );
  });
  if (named.length) says.append(".");
  return [
    grid(run, parts),
    make("div", {}, says, make("p", { className: "note", textContent: meaning(run, swap, patched) })),
  ];
}

/** The number of which parts are shown. @param {Run} run @param {Swap} swap @param {Patched} patched */
function meaning(run, { was }, { answers: [now, then], unchanged, other }) {
  const name = (/** @type {number} */ token) =>
    said([...(was.next ?? []), ...(run.next ?? [])].find((one) => one.token === token)?.label ?? "");
  const what =
    now === then ? `the log-probability of ${name(now)}` : `the logit by which ${name(then)} leads ${name(now)}`;
  return `1 is the whole change: ${what} goes from ${signed(unchanged, 1)} back to ${signed(other, 1)}. Each square is a head, a column a layer: the bluer, the more it brings back; a ring is the other way.`;
}

/** @param {Run} run @param {(number|null)[][]} parts */
function grid(run, parts) {
  const square = (/** @type {number|null} */ value, /** @type {number} */ layer, /** @type {number} */ head) => {
    const deep = Math.round(100 * Math.min(1, Math.abs(value ?? 0)) ** 0.7);
    const ink = `color-mix(in srgb, var(--changed) ${deep}%, transparent)`;
    const words = `head ${headName(run, layer, head)}: ${value == null ? "not there" : `${signed(value)} of the change`}`;
    return make("button", {
      type: "button",
      title: words,
      "aria-label": words,
      dataset: { layer, head },
      style: (value ?? 0) < 0 ? { boxShadow: `inset 0 0 0 2px ${ink}` } : { backgroundColor: ink },
      onclick: () => chooseHead(layer, head, "first"),
    });
  };
  const every = parts.length > 12 ? 5 : 1; // there is no room for more numbers of layers
  return make(
    "div",
    { className: "squares", role: "group", "aria-label": "What each head brings back" },
    ...parts.map((row, layer) =>
      make(
        "div",
        {},
        make("small", { textContent: layer % every ? "\u00a0" : String(run.layers[layer].index) }),
        ...row.map((value, head) => square(value, layer, head)),
      ),
    ),
  );
}

/** Marks the head that is chosen. */
function mark() {
  const { layer, head, average } = sourceOf("first");
  for (const one of byId("patched").querySelectorAll("button"))
    one.setAttribute(
      "aria-pressed",
      String(average === "head" && one.dataset.layer === String(layer) && one.dataset.head === String(head)),
    );
}
