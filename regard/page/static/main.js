/** The page of `regard explore`: starts its parts, finds the server, opens what is asked for. */
import { applyAddress, parseAddress, sizeFor, startAddress } from "./address.js";
import * as api from "./api.js";
import { startTabPanel } from "./tab_panel.js";
import { startHeadCard } from "./head_card.js";
import { startCompare } from "./compare.js";
import { byId, find, make, settled } from "./dom.js";
import { startTextEntry } from "./text_entry.js";
import { startExports } from "./exports.js";
import { keepTo, plural, sentence } from "./format.js";
import { startChanges } from "./changes.js";
import { startExamples } from "./examples.js";
import { startCut } from "./cut.js";
import { startHeads } from "./heads.js";
import { startKeyboard } from "./keyboard.js";
import { startLink } from "./link.js";
import { startMatters } from "./matters.js";
import { startPassages } from "./passages.js";
import { startPatch } from "./patched.js";
import { startMaps } from "./map.js";
import { startOpening } from "./opening.js";
import { startPredictions } from "./predictions.js";
import { startSentence } from "./sentence.js";
import { startShows } from "./shows.js";
import { startSidebar } from "./sidebar.js";
import { startAlong } from "./along.js";
import { startReadouts } from "./readouts.js";
import { awaitAnswer } from "./answers.js";
import { during } from "./pending.js";
import { openRun, openText, reopen } from "./session.js";
import { startSteps } from "./steps.js";
import { get, runOf, set, setSide, subscribe } from "./store.js";
import { openSwap, startSwap } from "./swap.js";
import { startText } from "./text.js";
import { startTheme } from "./theme.js";
import { startThumbnails } from "./thumbnails.js";
import { startTour } from "./tour.js";
import { startTraining } from "./training.js";
import { startTyping } from "./typing.js";
import { startViews } from "./views.js";
import { startWords } from "./words.js";

const RETRY = 2000; // milliseconds
const PATIENCE = 5000; // milliseconds in which the page may still choose by itself

async function begin() {
  const about = await awaitAnswer(api.about());
  if (!about) return; // a banner says why; where the server is missing, the retry begins again
  keepTo(about.decimals);
  if (about.start && !location.hash) history.replaceState(null, "", `${location.href.split("#")[0]}#${about.start}`);
  set({ about });
  await openAddress();
}

/** Opens what the address says, else what the server has open. */
async function openAddress() {
  const { about } = get();
  if (!about) return;
  const address = parseAddress(location.hash);
  set({ view: address.view });
  let opened = false;
  if (address.text && about.writes) opened = runOf("first")?.text === address.text || (await openText(address.text));
  else if (address.run && about.runs.includes(address.run)) opened = await openRun(address.run);
  else if (address.long && about.writes && history.state?.run) opened = await openRun(history.state.run);
  if (!opened && address.long)
    set({
      problem: `The text of this address is too long to travel with it: open the text of ${plural(Number(address.long) || 0, "token")} again.`,
    });
  if (!opened && !(address.long && about.writes)) {
    // What was open at first may have been put away meanwhile; then the example is.
    const there = about.runs.length > 0 && (await openRun(about.runs[0]));
    if (!there && about.example) await openText(about.example);
  }
  const run = runOf("first");
  if (!run) {
    set({ about: { ...about } }); // empty: the entry shows itself
    if (address.long) later(address);
    return;
  }
  if (address.second && about.writes && runOf("second")?.text !== address.second)
    await openText(address.second, "second");
  if (address.empty || (!opened && (address.text || address.run))) set({ size: sizeFor(run) });
  else {
    applyAddress(address.fields);
    await openSwap(address.fields);
  }
}

/** The rest of an address whose text was too long for it, once a text of that length is open. */
function later(/** @type {ReturnType<typeof parseAddress>} */ { long, fields }) {
  let applied = false;
  subscribe("run", () => {
    const run = runOf("first");
    if (applied || !run) return;
    applied = true;
    set({ size: sizeFor(run) });
    if (run.length === Number(long)) applyAddress(fields);
  });
}

/** The first view shows a head that does something, as soon as one is known, unless one was chosen. */
function welcome() {
  const done = parseAddress(location.hash).fields.has("l");
  let chosen = done;
  const since = performance.now();
  subscribe("heads", ({ sides: { first } }) => {
    const { heads, run, layer, head, query } = first;
    if (chosen || get().view === "opening" || !run || heads.size < run.layers.length) return;
    chosen = true;
    if (layer || head || query != null || performance.now() - since > PATIENCE) return; // it is being looked at
    const all = [...heads].flatMap(([at, scores]) => scores.map((figures) => ({ at, figures })));
    const [best] = all
      .filter(({ figures }) => figures.role === "induction")
      .sort((a, b) => (b.figures.induction ?? 0) - (a.figures.induction ?? 0));
    if (best) setSide("first", { layer: best.at, head: best.figures.head });
  });
}

function watch() {
  let timer = 0;
  const again = async () => {
    clearTimeout(timer);
    try {
      await api.health();
    } catch {
      timer = setTimeout(again, RETRY);
      return;
    }
    set({ offline: false });
    if (!get().about || !runOf("first")) await begin();
    else await reopen();
  };
  // The server keeps only so many texts open; what it put away is opened again, but not in a circle.
  let last = -Infinity;
  document.addEventListener("gone", () => {
    if (performance.now() - last < 5 * RETRY) return;
    last = performance.now();
    reopen();
  });
  api.onLoading(showLoading);
  api.onOffline(() => {
    if (get().offline) return;
    set({ offline: true, busy: "" });
    timer = setTimeout(again, RETRY);
  });
}

/** How far the model is, and that the text can be read meanwhile. @type {Parameters<Api["onLoading"]>[0]} */
function showLoading(progress) {
  const place = byId("loading");
  place.hidden = !progress;
  if (!progress) return;
  find(place, "progress").hidden = "seconds" in progress;
  if ("seconds" in progress) {
    find(place, "p").textContent = `The model reads the text: about ${plural(Math.ceil(progress.seconds), "second")}.`;
    return;
  }
  const { done, total, kept } = progress;
  const [fetched, all] = [done, total].map((bytes) => Math.round(bytes / 1e6));
  const after = kept ? "; it stays in this browser" : "";
  find(place, "p").textContent =
    done < total ? `Fetching the model: ${fetched} of ${all} MB${after}.` : "The model reads the text …";
  Object.assign(find(place, "progress"), { max: total, value: done });
}

function status() {
  find(byId("problem"), "button").onclick = () => set({ problem: "" });
  subscribe("problem offline busy", ({ problem, offline, busy }) => {
    byId("problem").hidden = !problem;
    find(byId("problem"), "span").textContent = problem && sentence(problem);
    byId("offline").hidden = !offline;
    byId("busy").textContent = busy;
  });
  subscribe("about run busy offline", ({ about, busy, offline }) => {
    const run = runOf("first");
    byId("welcome").textContent = offline
      ? ""
      : busy || !about
        ? busy || "Loading …"
        : "Type a text at the left, paste one or open a file: what every token attends to, under every head, appears here.";
    if (!about) return;
    const said = [about.has_read, about.numbers].filter(Boolean).join(" ");
    byId("has-read").hidden = !said;
    byId("has-read").textContent = byId("has-read").title = said;
    const name = run && run.title !== about.title ? `${about.title} · ${run.title}` : about.title;
    byId("about-title").textContent = name;
    byId("about-title").title = name;
    // What follows the first comma gives way where the page is narrow.
    const [shape, ...more] = about.shape.split(", ");
    const rest = make("span", { id: "about-more", textContent: more.map((one) => `, ${one}`).join("") });
    byId("about-shape").replaceChildren(shape, rest, run ? ` · ${plural(run.length, "token")}` : "");
    document.title = `${about.title} · regard ${about.report ? "report" : "explore"}`;
  });
  // Only what has come to rest is spoken: a voice can't follow a pointer.
  subscribe(
    "spoken",
    settled(400, () => {
      byId("live").textContent = get().spoken;
    }),
  );
}

startTheme();
startWords();
startViews(); // before the parts that it shows: each measures the room that it has
startMaps();
startSidebar();
startText();
startTyping();
startTextEntry();
startPredictions();
startThumbnails();
startHeads();
startHeadCard();
startTabPanel();
startSteps();
startAlong();
startReadouts();
startTraining();
startCompare();
startSwap();
startPatch();
startChanges();
startCut();
startMatters();
startPassages();
startOpening();
startShows();
startSentence();
startExamples();
startExports();
startLink();
startKeyboard();
startAddress();
startTour();
status();
welcome();
watch();
window.addEventListener("hashchange", () => get().about && openAddress());
during(Promise.all([document.fonts.ready, begin()]));
