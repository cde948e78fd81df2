/** Cutting: what is hidden from whom, from a cell, a token or a span that is drawn on the map. */
import { changeName, concerns, cutSentence, isSame } from "./change_list.js";
import { byId, findAll, segments } from "./dom.js";
import { clamp, get, keyNow, queryNow, release, set, sourceOf, strongestKey, subscribe } from "./store.js";
import { toggleChange } from "./changes.js";

const FIELDS = /** @type {const} */ (["cut-query", "cut-query-last", "cut-key", "cut-key-last"]);

export function startCut() {
  const markWhat = segments(
    byId("cut-what"),
    [
      ["cell", "a link", "The chosen key from the chosen query"],
      ["token", "a token", "The chosen key, or else the chosen token, from all later ones"],
      ["span", "a span", "Queries and keys: drag over the map, or type"],
    ],
    get().cutForm.what,
    (what) => patch({ what }),
  );
  const markWhere = segments(
    byId("cut-where"),
    [
      ["head", "this head", ""],
      ["layer", "its layer", ""],
      ["all", "all heads", ""],
    ],
    get().cutForm.where,
    (where) => patch({ where }),
  );
  byId("cut").onclick = () => (get().cutForm.open ? closeCutForm() : openCutForm());
  byId("cut-close").onclick = closeCutForm;
  byId("cut-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const cut = wanted();
    if (cut) toggleChange(cut);
  });
  byId("cut-form").addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeCutForm();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  for (const name of FIELDS)
    byId(name).addEventListener("input", () => {
      const [query, queryLast, key, keyLast] = FIELDS.map((one) => byId(one).valueAsNumber);
      if (![query, queryLast, key, keyLast].every(Number.isFinite)) return;
      const { run } = sourceOf();
      if (run) patch({ span: { queries: ends(query, queryLast, run), keys: ends(key, keyLast, run) } });
    });
  subscribe("cutForm changes hover query key layer head average run compare active strongest", () => {
    const { cutForm } = get();
    byId("cut-form").hidden = !cutForm.open;
    byId("cut").setAttribute("aria-expanded", String(cutForm.open));
    byId("page").classList.toggle("drawing", cutForm.open && cutForm.what === "span");
    if (!cutForm.open) return;
    markWhat(cutForm.what);
    markWhere(cutForm.where);
    byId("cut-span").hidden = cutForm.what !== "span";
    show();
  });
}

const patch = (/** @type {Partial<CutForm>} */ form) => set({ cutForm: { ...get().cutForm, ...form } });

/** A range in order, within the text. @returns {Span} */
function ends(/** @type {number} */ one, /** @type {number} */ other, /** @type {Run} */ { length }) {
  const [first, last] = [clamp(Math.min(one, other), length), clamp(Math.max(one, other), length)];
  return [first, last + 1];
}

export function openCutForm() {
  if (!get().about?.writes) return;
  set({ wide: false });
  patch({ open: true });
  queueMicrotask(() => findAll(byId("cut-what"), "[aria-checked=true]")[0]?.focus());
}

function closeCutForm() {
  patch({ open: false, span: null });
  byId("cut").focus();
}

/** A drag over the map: whether it draws a span, in place of moving the map. */
export function drawSpan(
  /** @type {{query: number, key: number}} */ from,
  /** @type {{query: number, key: number}} */ to,
) {
  const { cutForm } = get();
  const { run } = sourceOf();
  if (!cutForm.open || cutForm.what !== "span" || !run) return false;
  if (get().hover.query != null || sourceOf().query != null) release();
  patch({ span: { queries: ends(from.query, to.query, run), keys: ends(from.key, to.key, run) } });
  return true;
}

/** What the form would cut now; null as long as nothing is chosen. @returns {Cut|null} */
function wanted() {
  const { what, where, span } = get().cutForm;
  const { run, layer, head, average } = sourceOf();
  if (!run) return null;
  const place = {
    layer: where === "all" || average === "model" ? null : layer,
    head: where === "head" && average === "head" ? head : null,
  };
  if (what === "span") return span && { kind: "cut", ...place, ...span };
  const query = queryNow();
  const key = keyNow() ?? (what === "cell" ? strongestKey(sourceOf().side) : query);
  if (key == null || (what === "token" && key === run.length - 1)) return null;
  return { kind: "cut", ...place, queries: what === "cell" ? [query, query + 1] : null, keys: [key, key + 1] };
}

function show() {
  const cut = wanted();
  const { run } = sourceOf();
  const { what, span } = get().cutForm;
  const made = cut && get().changes.some((one) => isSame(one, cut));
  byId("cut-make").disabled = !cut;
  byId("cut-make").textContent = made ? "Take back" : "Cut";
  byId("cut-note").textContent =
    cut && run
      ? made
        ? `Made: ${changeName(run, cut)}.`
        : cutSentence(run, cut)
      : what === "span"
        ? "Drag over the map, or type the first and the last token."
        : what === "token"
          ? "The last token has none after it: choose an earlier one."
          : "Choose a query and a key on the map.";
  if (!span || !run) return;
  const values = [span.queries[0], span.queries[1] - 1, span.keys[0], span.keys[1] - 1];
  FIELDS.forEach((name, k) => {
    byId(name).max = String(run.length - 1);
    if (document.activeElement !== byId(name)) byId(name).value = String(values[k]);
  });
}

/** What is cut in the head that a side shows, and what the form would cut. */
export function cutsOn(/** @type {SideName} */ side) {
  const source = sourceOf(side);
  const { run } = source;
  const { plain, changes, cutForm } = get();
  if (!run) return [];
  const zone = (/** @type {Cut} */ { queries, keys }) => ({ queries: queries ?? later(keys, run), keys });
  const made = run === plain ? [] : changes;
  const cuts = made.flatMap((one) =>
    one.kind === "cut" && concerns(one, source) ? [{ ...zone(one), draft: false }] : [],
  );
  const draft = cutForm.open ? wanted() : null;
  return draft ? [...cuts, { ...zone(draft), draft: true }] : cuts;
}

/** The queries after some keys. @returns {Span} */
const later = (/** @type {Span} */ keys, /** @type {Run} */ run) => [keys[1], run.length];

/** The keys that are cut from a query in the head that a side shows. */
export function cutKeys(/** @type {SideName} */ side, /** @type {number} */ query) {
  const keys = new Set();
  for (const cut of cutsOn(side)) {
    if (cut.draft || query < cut.queries[0] || query >= cut.queries[1]) continue;
    for (let key = cut.keys[0]; key < cut.keys[1]; key++) keys.add(key);
  }
  return keys;
}
