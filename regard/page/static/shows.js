/** The switch of the views: what the entries of all patterns on the page are, with a sentence what that means. */
import * as api from "./api.js";
import { awaitAnswer } from "./answers.js";
import { byId, findAll, make, segments } from "./dom.js";
import { said } from "./format.js";
import { during } from "./pending.js";
import { afterMap } from "./session.js";
import { get, hasTwoRuns, runOf, set, subscribe } from "./store.js";

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
  subscribe("run compare", () => during(askLater()));
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
    byId("shows-meaning").replaceChildren(...meaning(shows, known));
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

/** Asks of another text, behind its map. */
async function askLater() {
  const run = runOf("first");
  if (!run) return;
  await afterMap(run);
  await ask(get().shows);
}

/**
 * Asks which views the texts that are seen have, and tries one; where it is the one that is shown and there is none,
 * the page goes back to the weights and says why.
 */
async function ask(/** @type {Shows} */ wanted) {
  const all = runs().filter((run) => run != null);
  const [first] = all;
  if (!first) return;
  const answers = [];
  for (const [k, run] of all.entries()) answers.push(await awaitAnswer(api.views(run.id, wanted, `views-${k}`)));
  if (answers.some((one) => !one) || runs().join() !== all.join() || runOf("first") !== first) return;
  const [own, other] = /** @type {ShownView[][]} */ (answers);
  const joined = own.map((view, k) => ({ ...view, objection: view.objection ?? other?.[k].objection ?? null }));
  const { shows } = get();
  const refused = joined.find(({ name }) => name === shows)?.objection;
  set({ views: { run: first.id, all: joined } });
  if (refused)
    set({
      shows: "weight",
      problem: `Weights are shown, since there is no view of what is ${shows === "toward" ? "added to the answer" : shows}: ${refused}.`,
    });
}

/** Shows a view, once it is known that there is one. */
async function choose(/** @type {Shows} */ name) {
  if (name === "toward" && get().views) {
    set({ busy: "asking what adds to the answer …" });
    await ask(name);
    set({ busy: "" });
  }
  const view = get().views?.all.find((one) => one.name === name);
  if (view?.objection) return set({ problem: view.objection });
  if (view || name === "weight") set({ shows: name });
}
