/** What is changed of the model's attention: a chip each, which can be taken back, and the run with them. */
import * as api from "./api.js";
import { writeAddress } from "./address.js";
import { awaitAnswer } from "./answers.js";
import { changeName, isSame, MOST_CHANGES, under, writeChanges } from "./change_list.js";
import { begin } from "./compare.js";
import { byId, find, make, targetOf } from "./dom.js";
import { LITTLE, part, said } from "./format.js";
import { place, prepare } from "./session.js";
import { get, runOf, set, setSide, subscribe } from "./store.js";

/** Lists of changes that were there before, and that were taken back. @type {{past: Change[][], next: Change[][]}} */
const steps = { past: [], next: [] };
/** The changes that the lists above know of. @type {Change[]} */
let known = [];
/** The changes that the changed run is of. @type {Change[]} */
let made = [];

/** Whether a head is switched off. */
export const isOff = (/** @type {number} */ layer, /** @type {number} */ head) =>
  get().changes.some((one) => one.kind === "off" && one.layer === layer && one.head === head);

/** Switches a head off, or on again. */
export const switchHead = (/** @type {number} */ layer, /** @type {number} */ head) =>
  toggleChange({ kind: "off", layer, head });

/** Makes a change; one that is made already is taken back. */
export function toggleChange(/** @type {Change} */ change) {
  const { changes, about } = get();
  if (!about?.writes) return;
  const rest = changes.filter((one) => !isSame(one, change));
  if (rest.length < changes.length) return setChanges(rest);
  if (changes.length >= MOST_CHANGES) return set({ problem: `At most ${MOST_CHANGES} changes are made at a time.` });
  setChanges([...changes, change]);
}

/** The run with the changes of now; null as long as it has not come. */
export const changedNow = () => (made === get().changes ? get().changed : null);

function setChanges(/** @type {Change[]} */ changes) {
  writeAddress(); // Back comes back to what is seen now
  set({ changes });
}

function step(/** @type {"past"|"next"} */ from, /** @type {"past"|"next"} */ to) {
  const changes = steps[from].pop();
  if (!changes) return;
  steps[to].push(known);
  known = changes;
  setChanges(changes);
}
const undo = () => step("past", "next");
const redo = () => step("next", "past");

export function startChanges() {
  byId("undo").onclick = undo;
  byId("redo").onclick = redo;
  byId("beside").onclick = () => begin(get().compare === "change" ? "off" : "change");
  byId("switching").onclick = () => set({ switching: !get().switching });
  document.addEventListener("keydown", (event) => {
    const letter = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(letter)) return;
    if (targetOf(event).matches("input, textarea, select")) return;
    event.preventDefault();
    (letter === "y" || event.shiftKey ? redo : undo)();
  });
  subscribe("plain", ({ plain, changes }) => {
    if (plain && !changes.length) steps.past.length = steps.next.length = 0; // another text
  });
  subscribe("changes", ({ changes }) => {
    if (writeChanges(known) !== writeChanges(changes)) {
      steps.past.push(known);
      steps.next.length = 0;
      known = changes;
    }
    if (!changes.length && get().compare === "change") begin("off");
  });
  subscribe("changes plain", load);
  subscribe("plain changed compare", arrange);
  subscribe("run changes changed compare about switching", show);
}

/** Runs the text with the changes of now. */
async function load() {
  const { plain, changes } = get();
  if (!plain) return;
  if (!changes.length) return set({ changed: null, busy: "" });
  set({ busy: "running with changes …" });
  const run = await awaitAnswer(api.change(plain.id, changes, "change"));
  if (plain !== get().plain || changes !== get().changes) return; // it is run anew
  set({ busy: "" });
  if (run) {
    made = changes;
    set({ changed: prepare(run) });
  } else if (!get().offline) arrange();
}

/** Puts the run that is looked at on each side. */
function arrange() {
  const { plain, changed, changes, compare } = get();
  if (!plain) return;
  const beside = compare === "change";
  const put = (/** @type {SideName} */ side, /** @type {Run} */ run) => {
    if (runOf(side) !== run) place(run, { keep: runOf(side) !== null, side });
  };
  const now = changes.length ? changed : plain;
  if (beside) put("first", plain);
  else if (now) put("first", now);
  if (beside && now) put("second", now);
  else if (!beside && runOf("second")?.next?.[0]?.before != null) setSide("second", { run: null, heads: new Map() });
}

function show() {
  const { about, changes, changed, compare, plain, switching } = get();
  const able = Boolean(about?.writes);
  byId("changes").hidden = !runOf("first");
  byId("changes-none").hidden = able;
  byId("changes-none").textContent =
    "This is a recording: without its model nothing can be changed; open the model in regard explore.";
  for (const name of ["acts", "chips", "changes-tools"]) byId(name).hidden = !able;
  byId("switching").setAttribute("aria-pressed", String(switching));
  byId("page").classList.toggle("switching", switching);
  byId("undo").disabled = !steps.past.length;
  byId("redo").disabled = !steps.next.length;
  byId("beside").disabled = !changes.length;
  byId("beside").setAttribute("aria-pressed", String(compare === "change"));
  if (plain) chips(plain, changes);
  byId("effect").textContent =
    plain && changed && changes.length && changedNow() ? effect(plain, changed, changes) : "";
}

function chips(/** @type {Run} */ run, /** @type {Change[]} */ changes) {
  const list = byId("chips");
  const at = [...list.children].findIndex((one) => one.contains(document.activeElement));
  list.replaceChildren(
    ...changes.map((change) => {
      const name = changeName(run, change);
      const button = make(
        "button",
        {
          type: "button",
          className: "change",
          onclick: () => toggleChange(change),
          "aria-label": `Take back: ${name}`,
        },
        make("span", { textContent: name }),
        make("i", { textContent: "✕", "aria-hidden": "true" }),
      );
      return make("li", {}, button);
    }),
  );
  // Who takes one back by its key goes on with the next, or where changes are made.
  if (at >= 0)
    (list.children[Math.min(at, changes.length - 1)]
      ? find(list.children[Math.min(at, changes.length - 1)], "button")
      : byId("switching")
    ).focus();
}

/** What became of the next token, in a sentence. */
function effect(/** @type {Run} */ plain, /** @type {Run} */ changed, /** @type {Change[]} */ changes) {
  const [first] = plain.next ?? [];
  const after = changed.next?.find(({ token }) => token === first.token);
  if (!first || !after) return "";
  const [p, q] = [first.probability, after.probability];
  const name = (/** @type {Candidate} */ { label }) => said(label);
  const moves =
    Math.abs(p - q) < LITTLE
      ? `hardly moves, ${part(p)} → ${part(q)}`
      : `${q < p ? "falls" : "rises"} from ${part(p)} to ${part(q)}`;
  const [winner] = [...(changed.next ?? [])].sort((a, b) => b.probability - a.probability);
  const won = winner.token === first.token ? "" : `; ${name(winner)} is the likeliest now, ${part(winner.probability)}`;
  return `${under(plain, changes)} ${name(first)} ${moves}${won}.`;
}
