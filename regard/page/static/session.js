/** Opening texts: from typing, a file, the address, an appended token or generation. */
import * as api from "./api.js";
import { documentEvent } from "./dom.js";
import { during } from "./pending.js";
import { heard } from "./quiet.js";
import { activeSide, get, set } from "./store.js";

const LONG = 4096; // tokens

/** Everything else waits for the map that is looked at, or the machine would be busy with the rest. */
export async function afterMap(run) {
  if (!get().wide && !get().offline) await documentEvent("pictures", run.length > LONG ? 20_000 : 1500);
}

/** A run as the page uses it. */
export function prepare(run) {
  run.labels = run.tokens.map(({ shown }) => shown);
  // Of the longest label: a place stands before it once tokens are skipped, unless it is all there is.
  const places =
    run.labels.every((label, k) => label === String(k)) || run.length < 30 ? 0 : String(run.length).length + 1;
  run.letters = Math.min(16, places + run.labels.reduce((most, label) => Math.max(most, label.length), 1));
  return run;
}

/**
 * Shows a run in place of the one before.
 * @param {any} run
 * @param {{keep?: boolean, side?: "first"|"second"}} [how] keep: it goes on the same text, so the
 *   selection stays
 */
export function show(run, { keep = false, side = "first" } = {}) {
  prepare(run);
  const own = side === "second" ? { second: run } : { run };
  set(/** @type {any} */ ({ ...own, grown: keep, hover: {}, problem: "" }));
  if (!keep) {
    const { layer, head } = get();
    const at = Math.min(layer, run.layers.length - 1);
    const clear = { query: null, key: null, zoom: null };
    if (side === "second")
      set({ querySecond: clear.query, keySecond: clear.key, zoomSecond: clear.zoom, headsSecond: new Map() });
    else set({ layer: at, head: Math.min(head, run.layers[at].heads.length - 1), ...clear, heads: new Map() });
  }
  during(readHeads(run, side));
}

/** @param {any} run @param {"first"|"second"} side */
async function readHeads(run, side) {
  await afterMap(run);
  if (run.length > LONG) await documentEvent("thumbnails", 120_000); // the scores of a long text take longest
  const name = side === "second" ? "headsSecond" : "heads";
  const current = () => (side === "second" ? get().second : get().run);
  try {
    await api.heads(
      run.id,
      (line) => {
        if (current() !== run) return;
        if (line.error) set({ problem: line.error });
        else {
          const heads = line.heads.map((figures) => ({ ...figures, run: run.id }));
          set(/** @type {any} */ ({ [name]: new Map(get()[name]).set(line.layer, heads) }));
        }
      },
      side === "second" ? "heads-second" : "heads",
    );
  } catch (error) {
    if (error instanceof api.ServerError && !error.offline) set({ problem: error.message });
    else if (!(error instanceof api.ServerError || error instanceof api.Replaced)) throw error;
  }
}

/** Whether an answer could be shown. */
async function showing(doing, answer, how) {
  set({ busy: doing });
  const run = await heard(answer);
  set({ busy: "" });
  if (run) show(run, how);
  return Boolean(run);
}

const viewOf = (side) => (side === "second" ? "open-second" : "open");

/** @param {string} text @param {"first"|"second"} [side] */
export const openText = (text, side = "first") =>
  showing(side === "first" ? "reading the text …" : "reading the second text …", api.open(text, viewOf(side)), {
    side,
  });

/** @param {string} name @param {"first"|"second"} [side] */
export const openRun = (name, side = "first") => showing("opening …", api.fetchRun(name, viewOf(side)), { side });

/** The side whose text is written on: with two heads of one text there is one. */
export const writing = () => (get().compare === "text" ? activeSide() : "first");

const runOf = (side) => (side === "second" ? get().second : get().run);

export function append(token) {
  const side = writing();
  return showing("reading on …", api.append(runOf(side).id, token, viewOf(side)), { keep: true, side });
}

/** Opens the texts again that are on the page: the server was started anew, or has put them away. */
export const reopen = () => during(reopened());

async function reopened() {
  if (!get().run) return;
  for (const side of /** @type {const} */ (["first", "second"])) {
    const run = runOf(side);
    if (!run) continue;
    const found = await api
      .fetchRun(run.id, viewOf(side))
      .catch(() => (run.text == null ? null : api.open(run.text, viewOf(side)).catch(() => null)));
    if (found) show(found, { keep: true, side });
    else set({ problem: "The text of this page can't be opened again by itself; open it anew." });
  }
}

/** @type {AbortController|null} */
let drawing = null;

/** Tokens that are drawn before the patterns grow by them: few, so that they are seen to grow. */
const GROWTH = 4;

/**
 * Draws tokens one by one, and shows the longer text every few.
 * @param {{tokens: number, temperature: number}} options
 * @param {(drawn: any[], side: "first"|"second") => void} each hears of the tokens that the text
 *   shown does not have yet
 */
export const generate = (options, each) => during(generated(options, each));

async function generated({ tokens, temperature }, each) {
  const side = writing();
  const control = new AbortController();
  drawing = control;
  set({ busy: "generating …", generating: true });
  for (let left = tokens; left > 0 && !control.signal.aborted; left -= GROWTH) {
    const at = runOf(side);
    const drawn = [];
    let longer = null;
    try {
      await api.generate(
        at.id,
        { tokens: Math.min(GROWTH, left), temperature, seed: null },
        (line) => {
          if (line.error) set({ problem: line.error });
          else if (line.run) longer = line.run;
          else each(drawn.push(line) && drawn, side);
        },
        control.signal,
      );
    } catch (error) {
      if (error instanceof api.ServerError && !error.offline) set({ problem: error.message });
      else if (!(error instanceof api.Replaced || error instanceof api.ServerError)) throw error;
      // What was drawn before it was stopped stays, like what a person typed.
      for (const { token } of error instanceof api.Replaced ? drawn : []) {
        longer = (await heard(api.append((longer ?? at).id, token, viewOf(side)))) ?? longer;
      }
    }
    if (runOf(side) !== at) break; // another text was opened meanwhile
    if (longer) show(longer, { keep: true, side });
    else break;
  }
  each([], side);
  drawing = null;
  set({ busy: "", generating: false });
}

export const stop = () => drawing?.abort();
