/** Opening texts: from typing, a file, the address, an appended token or generation. */
import * as api from "./api.js";
import { event } from "./dom.js";
import { heard } from "./quiet.js";
import { get, set } from "./store.js";

const LONG = 4096; // tokens

/** Everything else waits for the map that is looked at, or the machine would be busy with the rest. */
export async function afterMap(run) {
  if (!get().wide && !get().offline) await event("pictures", run.length > LONG ? 20_000 : 1500);
}

/** A run as the page uses it. */
export function prepare(run) {
  run.labels = run.tokens.map(({ shown }) => shown);
  // Of the longest label: a place stands before it once tokens are skipped, unless it is all there is.
  const places =
    run.labels.every((label, k) => label === String(k)) || run.length < 30
      ? 0
      : String(run.length).length + 1;
  run.letters = Math.min(16, places + run.labels.reduce((most, label) => Math.max(most, label.length), 1));
  return run;
}

/**
 * Shows a run in place of the one before.
 * @param {any} run
 * @param {{keep?: boolean}} [how] keep: it goes on the same text, so the selection stays
 */
export function show(run, { keep = false } = {}) {
  prepare(run);
  const layer = Math.min(get().layer, run.layers.length - 1);
  const head = Math.min(get().head, run.layers[layer].heads.length - 1);
  set({
    run,
    grown: keep,
    layer,
    head,
    hover: {},
    problem: "",
    ...(keep ? {} : { query: null, key: null, zoom: null }),
  });
  readHeads(run);
}

async function readHeads(run) {
  if (!get().grown) set({ heads: new Map() }); // a text that grew: the old scores stand until the new come
  await afterMap(run);
  if (run.length > LONG) await event("thumbnails", 120_000); // the scores of a long text take longest
  try {
    await api.heads(run.id, (line) => {
      if (get().run !== run) return;
      if (line.error) set({ problem: line.error });
      else set({ heads: new Map(get().heads).set(line.layer, line.heads) });
    });
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

export const openText = (text) => showing("reading the text …", api.open(text));
export const openRun = (name) => showing("opening …", api.fetchRun(name));
export const append = (token) => showing("reading on …", api.append(get().run.id, token), { keep: true });

/** Opens the text again that is on the page: the server was started anew, or has put it away. */
export async function reopen() {
  const { run, second } = get();
  if (!run) return;
  const found = await api
    .fetchRun(run.id)
    .catch(() => (run.text == null ? null : api.open(run.text).catch(() => null)));
  if (found) show(found, { keep: true });
  else set({ problem: "The text of this page can't be opened again by itself; open it anew." });
  if (second?.text != null) await openSecond(second.text);
}

/** A second text, to compare the first with. */
export async function openSecond(text) {
  set({ busy: "reading the other text …" });
  const run = await heard(api.open(text, "open-second"));
  set({ busy: "" });
  if (!run) return;
  set({ second: prepare(run), zoomSecond: null, headsSecond: new Map() });
  await heard(
    api.heads(
      run.id,
      (line) => {
        if (get().second === run && line.heads)
          set({ headsSecond: new Map(get().headsSecond).set(line.layer, line.heads) });
      },
      "heads-second",
    ),
  );
}

/** @type {AbortController|null} */
let drawing = null;

/** Tokens that are drawn before the patterns grow by them: few, so that they are seen to grow. */
const GROWTH = 4;

/**
 * Draws tokens one by one, and shows the longer text every few.
 * @param {{tokens: number, temperature: number}} options
 * @param {(drawn: any[]) => void} each hears of the tokens that the text shown does not have yet
 */
export async function generate({ tokens, temperature }, each) {
  const control = new AbortController();
  drawing = control;
  set({ busy: "generating …", generating: true });
  for (let left = tokens; left > 0 && !control.signal.aborted; left -= GROWTH) {
    const at = get().run;
    const drawn = [];
    let longer = null;
    try {
      await api.generate(
        at.id,
        { tokens: Math.min(GROWTH, left), temperature, seed: null },
        (line) => {
          if (line.error) set({ problem: line.error });
          else if (line.run) longer = line.run;
          else each(drawn.push(line) && drawn);
        },
        control.signal,
      );
    } catch (error) {
      if (error instanceof api.ServerError && !error.offline) set({ problem: error.message });
      else if (!(error instanceof api.Replaced || error instanceof api.ServerError)) throw error;
      // What was drawn before it was stopped stays, like what a person typed.
      for (const { token } of error instanceof api.Replaced ? drawn : []) {
        longer = (await heard(api.append((longer ?? at).id, token))) ?? longer;
      }
    }
    if (get().run !== at) break; // another text was opened meanwhile
    if (longer) show(longer, { keep: true });
    else break;
  }
  each([]);
  drawing = null;
  set({ busy: "", generating: false });
}

export const stop = () => drawing?.abort();
