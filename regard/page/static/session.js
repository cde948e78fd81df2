/** Opening texts: from typing, a file, the address, an appended token or generation. */
import { textOpened } from "./address.js";
import * as api from "./api.js";
import { documentEvent } from "./dom.js";
import { Replaced, ServerError } from "./errors.js";
import { during } from "./pending.js";
import { awaitAnswer } from "./answers.js";
import { LONG } from "./sketch.js";
import { activeSide, get, isMany, runOf, set, setSide, sourceOf } from "./store.js";

/** Everything else waits for the map that is looked at, or the machine would be busy with the rest. */
export async function afterMap(/** @type {Run} */ run) {
  if (!get().wide && !get().offline) await documentEvent("pictures", run.length >= LONG ? 20_000 : 1500);
}

/** A run as the page uses it. */
export function prepare(/** @type {Run} */ run) {
  run.labels = run.tokens.map(({ label }) => label);
  // Of the longest label: a place stands before it once tokens are skipped, unless it is all there is.
  const places =
    run.labels.every((label, k) => label === String(k)) || run.length < 30 ? 0 : String(run.length).length + 1;
  run.letters = Math.min(16, places + run.labels.reduce((most, label) => Math.max(most, label.length), 1));
  return run;
}

/**
 * Shows a run in place of the one before.
 * @param {Run} run
 * @param {{keep?: boolean, side?: SideName, joined?: boolean}} [how] keep: it goes on the same text, so the
 *   selection stays; joined: one step of the history with the text before
 */
export function show(run, { keep = false, side = "first", joined = false } = {}) {
  prepare(run);
  if (!joined) textOpened();
  if (side === "first") {
    set({ plain: run, changed: null });
    if (!keep && get().changes.length) set({ changes: [] }); // they are of the text before
    if (get().changes.length && runOf(side)) return; // with them it is run first: see changes.js
  }
  place(run, { keep, side });
}

/**
 * Puts a run on a side.
 * @param {Run} run @param {{keep: boolean, side: SideName}} how
 */
export function place(run, { keep, side }) {
  setSide(side, { run });
  set({ grown: keep, hover: {}, problem: "" });
  if (!keep) {
    setSide(side, { query: null, key: null, zoom: null, heads: new Map() });
    if (side === "first") {
      const { layer, head } = get().sides.first;
      const at = Math.min(layer, run.layers.length - 1);
      setSide(side, { layer: at, head: Math.min(head, run.layers[at].heads.length - 1) });
    }
  }
  during(readHeads(run, side));
}

/** @param {Run} run @param {SideName} side */
async function readHeads(run, side) {
  await afterMap(run);
  // The scores of a long text, or of many heads, take longest.
  if (run.length >= LONG || isMany(run)) await documentEvent("thumbnails", 120_000);
  try {
    await api.heads(
      run.id,
      (line) => {
        if (runOf(side) !== run) return;
        if (line.error) set({ problem: line.error });
        else if (line.layer != null && line.heads) {
          const heads = line.heads.map((figures) => ({ ...figures, run: run.id }));
          setSide(side, { heads: new Map(get().sides[side].heads).set(line.layer, heads) });
        }
      },
      side === "second" ? "heads-second" : "heads",
      sourceOf("first").layer,
    );
  } catch (error) {
    report(error);
  }
}

/** Shows why there is no answer, unless nobody waits for it or the page says it elsewhere. */
function report(/** @type {unknown} */ error) {
  if (error instanceof ServerError && !error.offline) set({ problem: error.message });
  else if (!(error instanceof ServerError || error instanceof Replaced)) throw error;
}

/**
 * Whether an answer could be shown.
 * @param {string} doing @param {Promise<Run>} answer @param {{keep?: boolean, side: SideName, joined?: boolean}} how
 */
async function showing(doing, answer, how) {
  set({ busy: doing });
  const run = await awaitAnswer(answer);
  set({ busy: "" });
  if (run) show(run, how);
  return Boolean(run);
}

const viewOf = (/** @type {SideName} */ side) => (side === "second" ? "open-second" : "open");

/** @param {string} text @param {SideName} [side] @param {boolean} [joined] one step with the text before */
export const openText = (text, side = "first", joined = false) =>
  showing(side === "first" ? "reading the text …" : "reading the second text …", api.open(text, viewOf(side)), {
    side,
    joined,
  });

/**
 * Opens a text that is being typed; what goes on the text that is shown leaves the selection.
 * @param {string} text @param {SideName} side @param {boolean} joined whether more of it was typed before
 */
export const typeText = (text, side, joined) => {
  const keep = text.startsWith(textOf(side)?.text ?? "\u0000");
  return showing("", api.open(text, viewOf(side)), { keep, side, joined });
};

/** @param {string} name @param {SideName} [side] */
export const openRun = (name, side = "first") => showing("opening …", api.fetchRun(name, viewOf(side)), { side });

/** The side whose text is written on: with two heads of one text there is one. */
export const writing = () => (get().compare === "text" ? activeSide() : "first");

/** The text of a side, as it is. */
const textOf = (/** @type {SideName} */ side) => (side === "first" ? get().plain : runOf(side));

export function append(/** @type {number} */ token) {
  const side = writing();
  return showing("reading on …", api.append(/** @type {Run} */ (textOf(side)).id, token, viewOf(side)), {
    keep: true,
    side,
  });
}

/** Opens the texts again that are on the page: the server was started anew, or has put them away. */
export const reopen = () => during(reopened());

async function reopened() {
  if (!runOf("first")) return;
  for (const side of /** @type {const} */ (["first", "second"])) {
    const run = side === "second" && get().compare === "change" ? null : textOf(side);
    if (!run) continue;
    const again = await api
      .fetchRun(run.id, viewOf(side))
      .catch(() => (run.text == null ? null : api.open(run.text, viewOf(side)).catch(() => null)));
    if (again) show(again, { keep: true, side, joined: true });
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
 * @param {(drawn: StreamLine[], side: SideName) => void} each hears of the tokens that the text
 *   shown does not have yet
 */
export const generate = (options, each) => during(generated(options, each));

/** @param {{tokens: number, temperature: number}} of @param {(drawn: StreamLine[], side: SideName) => void} each */
async function generated({ tokens, temperature }, each) {
  const side = writing();
  const control = new AbortController();
  drawing = control;
  set({ busy: "generating …", generating: true });
  for (let left = tokens; left > 0 && !control.signal.aborted; left -= GROWTH) {
    const at = /** @type {Run} */ (textOf(side));
    /** @type {StreamLine[]} */
    const drawn = [];
    /** @type {Run|null} */
    let longer = null;
    try {
      await api.generate(
        at.id,
        { tokens: Math.min(GROWTH, left), temperature, seed: null },
        (line) => {
          if (line.error) set({ problem: line.error });
          else if (line.run) {
            longer = line.run;
            if (line.ended) left = 0; // the model has ended its answer, or its context is full
          } else {
            drawn.push(line);
            each(drawn, side);
          }
        },
        control.signal,
      );
    } catch (error) {
      report(error);
      // What was drawn before it was stopped stays, like what a person typed.
      for (const { token } of error instanceof Replaced ? drawn : []) {
        /** @type {Run|null} */
        const grown = await awaitAnswer(api.append((longer ?? at).id, Number(token), viewOf(side)));
        longer = grown ?? longer;
      }
    }
    if (textOf(side) !== at) break; // another text was opened meanwhile
    if (longer) show(longer, { keep: true, side, joined: left < tokens });
    else break;
  }
  each([], side);
  drawing = null;
  set({ busy: "", generating: false });
}

export const stop = () => drawing?.abort();
