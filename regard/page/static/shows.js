/** The switch of the views: what the entries of all patterns on the page are, with a sentence what that means. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { byId, findAll, make, segments } from "./dom.js";
import { said } from "./format.js";
import { during } from "./pending.js";
import { afterMap } from "./session.js";
import { get, hasTwoRuns, runOf, set, subscribe } from "./store.js";
import { putWords } from "./words.js";

/** As they are called before the server has said which there are. @type {[Shows, string][]} */
const NAMES = [
  ["weight", "weight"],
  ["moved", "moved"],
  ["toward", "toward the answer"],
  ["without", "without the sink"],
];
export const ALL = NAMES.map(([name]) => name);

export function startShows() {
  const row = byId("shows-choice");
  const mark = segments(
    row,
    NAMES.map(([name, title]) => [name, title, ""]),
    get().shows,
    (name) => during(choose(name)),
  );
  subscribe("run compare wanted", () => during(askLater()));
  subscribe("run shows views plain", ({ shows, views }) => {
    byId("shows").hidden = !runOf("first");
    mark(shows);
    const known = views?.all ?? [];
    for (const button of /** @type {HTMLButtonElement[]} */ (findAll(row, "button"))) {
      const view = known.find(({ name }) => name === button.value);
      // Until the server has said so, nobody knows whether there is one.
      button.disabled = button.value !== "weight" && button.value !== shows && (!view || Boolean(view.objection));
      button.title = view ? (view.objection ?? view.meaning) : "Not known yet";
    }
    putWords(byId("shows-meaning"), meaning(shows, known));
  });
}

/** The sentence of a view, with the answer by its name. @returns {(Node|string)[]} */
function meaning(/** @type {Shows} */ shows, /** @type {ShownView[]} */ known) {
  const sentence = known.find(({ name }) => name === shows)?.meaning ?? "";
  const answer = get().plain?.next?.[0];
  const [before, after] = sentence.split("the likeliest next token");
  if (shows !== "toward" || !answer || after == null) return [sentence];
  return [`${before}the likeliest next token, `, make("b", { textContent: said(answer.label) }), after];
}

/** The runs that are seen. */
const runs = () => /** @type {const} */ (["first", "second"]).slice(0, hasTwoRuns() ? 2 : 1).map((side) => runOf(side));

/** Asks of another text, behind its map; also for the view that an address wants. */
async function askLater() {
  const run = runOf("first");
  if (!run) return;
  await afterMap(run);
  const { wanted, shows } = get();
  await show(wanted ?? shows);
}

/**
 * Shows a view, once it is known that the texts that are seen have it; where they do not, the page is of the weights,
 * and says why.
 */
async function show(/** @type {Shows} */ name) {
  const all = runs().filter((run) => run != null);
  const answers = [];
  for (const [k, run] of all.entries()) answers.push(await awaitAnswer(api.views(run.id, name, `views-${k}`)));
  if (!all.length || answers.some((one) => !one) || runs().some((run, k) => run !== all[k])) return;
  const [own, other] = /** @type {ShownView[][]} */ (answers);
  const known = own.map((view, k) => ({ ...view, objection: view.objection ?? other?.[k].objection ?? null }));
  set({ views: { run: all[0].id, all: known }, wanted: null });
  const view = known.find((one) => one.name === name);
  if (view?.objection) set({ shows: "weight", problem: `No view “${view.title}”: ${view.objection}.` });
  else set({ shows: name });
}

/** Shows the view that was chosen. */
async function choose(/** @type {Shows} */ name) {
  if (name === "weight") return set({ shows: name });
  set({ busy: "computing the view …" });
  await show(name);
  set({ busy: "" });
}
