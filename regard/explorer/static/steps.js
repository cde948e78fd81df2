/** One query's attention, every number of it: query, scores, softmax, and the weighted sum of values. */
import * as api from "./api.js";
import { byId, make, settled } from "./dom.js";
import { paintStrip } from "./draw_bars.js";
import { named, plural, signed, weight } from "./format.js";
import { activeColumn } from "./map.js";
import { heard } from "./quiet.js";
import { clamp, get, keyNow, queryRead, set, subscribe } from "./store.js";
import { prepared } from "./surface.js";
import { inks } from "./theme.js";

const HEIGHT = 28; // pixels of a strip
let data = null; // the server's answer, with what it was asked for
let picked = 0; // which of the strongest keys is followed
let dimension = null; // of the vectors, under the pointer
/** @type {{root: HTMLElement, draw: () => void}[]} */
let strips = [];

export function startSteps() {
  const ask = settled(110, load);
  subscribe("run second layer head other compare active query hover tab folded", ask);
  subscribe("key hover query", follow);
  document.addEventListener("inks", () => strips.forEach(({ draw }) => draw()));
  new ResizeObserver(() => strips.forEach(({ draw }) => draw())).observe(byId("steps"));
}

async function load() {
  const now = get();
  const { tab, folded, offline } = now;
  const { run, layer, head } = activeColumn().source();
  if (!run) {
    data = null;
    byId("steps").replaceChildren();
    return;
  }
  if (tab !== "steps" || folded) return;
  const query = clamp(queryRead(now), run.length);
  const key = `${run.id}/${layer}/${head}/${query}`;
  // Old numbers under a new title would lie: they pale until theirs come.
  byId("steps").classList.toggle("waiting", data?.key !== key);
  if (data?.key === key || offline) return;
  const steps = await heard(api.steps(run.id, layer, head, query));
  if (!steps) return;
  byId("steps").classList.remove("waiting");
  data = { ...steps, key, at: query, run };
  picked = 0;
  build();
  follow();
}

/** The key that is looked at elsewhere is the one whose numbers are written out. */
function follow() {
  if (!data) return;
  const key = keyNow();
  const found = data.keys.findIndex(({ position }) => position === key);
  if (found >= 0) pick(found);
  for (const row of byId("steps").querySelectorAll("tr[data-key]"))
    row.classList.toggle("on", Number(row.dataset.key) === data.keys[picked]?.position);
}

function build() {
  const { run, at } = data;
  const box = byId("steps");
  const scrolled = box.querySelector(".keys")?.scrollTop ?? 0;
  strips = [];
  box.replaceChildren(
    make("div", { className: "walk" }, queryPart(run, at), keysPart(run), contextPart(run)),
  );
  box.querySelector(".keys").scrollTop = scrolled;
  strips.forEach(({ draw }) => draw());
}

const nameless = (run, k) => run.labels[k] === String(k);
const heading = (number, ...words) =>
  make("h3", {}, make("i", { textContent: String(number) }), make("span", {}, ...words));
const token = (run, k) => named(run.labels, k, 18);

function queryPart(run, at) {
  const key = () => data.keys[picked];
  const product = () => data.query.map((value, d) => value * (key()?.key[d] ?? 0));
  return make(
    "div",
    {},
    heading(1, "The query’s vector meets a key’s"),
    strip({
      name: () => `query ${token(run, at)}`,
      sign: "q",
      values: () => data.query,
      most: () => greatest([data.query]),
    }),
    strip({
      name: () => `key ${key() ? token(run, key().position) : "–"}`,
      sign: "k",
      values: () => key()?.key ?? [],
      most: () => greatest(data.keys.map((one) => one.key)),
    }),
    strip({
      name: () => "q · k, number by number",
      sign: "q·k",
      values: product,
      most: () => greatest([product()]),
    }),
    told(() => oneProduct(key())),
    told(() =>
      key()
        ? `They add up to ${signed(key().score, 3)}; ${scaleTold(key())} is ${signed(key().scaled, 3)}, the score.`
        : "This query sees no key.",
    ),
  );
}

/** With a soft cap or a bias there is more between the two than the scale; then that is said. */
function scaleTold({ score, scaled }) {
  const plain = Math.abs(score * data.scale - scaled) <= 1e-3 * Math.max(1, Math.abs(scaled));
  return plain
    ? `times the scale ${signed(data.scale, 4)}`
    : `after the scale ${signed(data.scale, 4)} and what this attention adds (a cap or a bias), it`;
}

function keysPart(run) {
  const body = make("tbody");
  const most = Math.max(1e-12, ...data.keys.map((one) => one.weight));
  data.keys.forEach((one, n) => {
    const row = make(
      "tr",
      {
        onclick: () => set({ query: data.at, key: one.position }),
        onpointerenter: () => pick(n),
        onfocusin: () => pick(n),
      },
      make(
        "td",
        { className: "start", title: run.labels[one.position] },
        make("i", { textContent: `${one.position} ` }),
        nameless(run, one.position) ? "" : run.labels[one.position],
      ),
      make("td", { textContent: signed(one.score, 2) }),
      make("td", { textContent: signed(one.score * data.scale, 3) }),
      make("td", { textContent: signed(one.scaled, 3) }),
      make("td", { textContent: signed(one.scaled - data.logsumexp, 3) }),
      make("td", { className: "wide" }, barOf(one.weight / most)),
      make("td", { textContent: weight(one.weight), title: String(one.weight) }),
    );
    row.dataset.key = String(one.position);
    body.append(row);
  });
  const sum = data.keys.reduce((total, one) => total + one.weight, 0) + (data.rest?.weight ?? 0);
  const spare = (name, masked, figure) =>
    make(
      "tr",
      { className: "rest" },
      make("td", { className: "start", textContent: name, colSpan: 3 }),
      make("td", { textContent: masked }),
      make("td", { textContent: masked }),
      make("td"),
      make("td", { textContent: figure }),
    );
  if (data.rest?.count)
    body.append(spare(`${plural(data.rest.count, "weaker key")}, together`, "", weight(data.rest.weight)));
  if (data.hidden) body.append(spare(`${plural(data.hidden, "key")} hidden by the mask`, "−∞", "0"));
  const missing = data.count && sum < 0.9995 ? "the rest went to the sink" : "";
  body.append(
    make(
      "tr",
      { className: "sum" },
      make("td", {
        className: "start",
        textContent: `sum over ${plural(data.count, "visible key")}`,
        colSpan: 3,
      }),
      make("td", { textContent: missing, colSpan: 3 }),
      make("td", { textContent: data.count ? sum.toFixed(3) : "0" }),
    ),
  );
  const head = make(
    "thead",
    {},
    make(
      "tr",
      {},
      ...[
        ["key", "start", "position and token"],
        ["q·k", "", "the dot product"],
        [`× ${signed(data.scale, 3)}`, "", `times the scale, ${data.scale}`],
        [
          "masked",
          "",
          "the score: with a cap or a bias, where this attention has one, and −∞ where the mask hides the key",
        ],
        [
          "− logsumexp",
          "",
          `minus ${signed(data.logsumexp, 3)}, the log of the sum of all e^score: what softmax divides by`,
        ],
        ["weight", "start", "e to the power of that"],
        ["", "", ""],
      ].map(([textContent, className, title]) => make("th", { textContent, className, title, scope: "col" })),
    ),
  );
  return make(
    "div",
    { className: "keys" },
    heading(2, `Softmax over the keys: weight = e^(score − ${signed(data.logsumexp, 3)})`),
    make("table", {}, head, body),
  );
}

function contextPart(run) {
  const part = make("div", { className: "out" }, heading(3, "The weights mix the keys’ values"));
  if (!data.context) {
    part.append(
      make("p", {
        textContent:
          "The values were not recorded here, so the sum can’t be shown. The weights above are all that attention looked at.",
      }),
    );
    return part;
  }
  const key = () => data.keys[picked];
  const shared = greatest([data.context]);
  const given = () => (key()?.value ?? []).map((value) => value * key().weight);
  part.append(
    strip({
      name: () => (key() ? `value of ${token(run, key().position)}` : "value"),
      sign: "v",
      values: () => key()?.value ?? [],
      most: () => greatest(data.keys.map((one) => one.value ?? [])),
    }),
    strip({
      name: () => (key() ? `× its weight ${weight(key().weight)}` : "× its weight"),
      sign: "w·v",
      values: given,
      most: () => shared,
    }),
    strip({
      name: () => `context: the sum of ${plural(data.count, "such vector")}`,
      sign: "context",
      values: () => data.context,
      most: () => shared,
    }),
    told(() => (key() ? oneSum() : "Nothing is seen, so the output is 0.")),
  );
  return part;
}

/** The number that is followed through the vectors: under the pointer, else the greatest of the context. */
function followed(vector) {
  if (dimension != null && dimension < vector.length) return dimension;
  return vector.reduce((best, value, d) => (Math.abs(value) > Math.abs(vector[best]) ? d : best), 0);
}

function oneProduct(key) {
  if (!key) return "";
  const d = followed(data.query.map((value, k) => value * key.key[k]));
  return `q[${d}] · k[${d}] = ${signed(data.query[d])} × ${factor(key.key[d])} = ${signed(data.query[d] * key.key[d], 3)}`;
}

/** One number of the context, as the sum that it is. */
function oneSum() {
  const d = followed(data.context);
  const shown = data.keys.slice(0, 3);
  const terms = shown.map((one) => `${weight(one.weight)} × ${factor(one.value[d])}`);
  const left = data.count - shown.length;
  const rest = data.context[d] - shown.reduce((sum, one) => sum + one.weight * one.value[d], 0);
  if (left > 0) terms.push(`${plural(left, "more key")}: ${factor(rest)}`);
  return `context[${d}] = ${terms.join(" + ")} = ${signed(data.context[d], 3)}`;
}

const factor = (value) => (value < 0 ? `(${signed(value, 3)})` : signed(value, 3));

const barOf = (share) => {
  const bar = make("span", { className: "bar" });
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return bar;
};

const greatest = (vectors) =>
  Math.max(
    1e-9,
    ...vectors.map((vector) => vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0)),
  );

/** A vector as bars, with the number under the pointer, or where the arrows stand, written out. */
function strip({ name, sign, values, most }) {
  const figure = make("div", { className: "figure" });
  const canvas = make("canvas", { className: "strip", tabIndex: 0, role: "img" });
  const root = make("div", {}, figure, canvas);
  const draw = () => {
    const width = Math.max(60, root.clientWidth);
    const numbers = values();
    const chosen = dimension != null && dimension < numbers.length ? dimension : null;
    paintStrip(prepared(canvas, width, HEIGHT), {
      values: numbers,
      width,
      height: HEIGHT,
      most: most(),
      inks: inks(),
      chosen,
    });
    const value = chosen == null ? "" : `  ${sign}[${chosen}] = ${signed(numbers[chosen], 4)}`;
    figure.textContent = `${name()}${value}`;
    figure.title =
      chosen == null ? `${plural(numbers.length, "number")}, greatest ${signed(greatest([numbers]), 3)}` : "";
    canvas.setAttribute(
      "aria-label",
      `${name()}: ${plural(numbers.length, "number")}${value}. Left and right read them.`,
    );
  };
  const choose = (d) => {
    dimension = d;
    strips.forEach((other) => other.draw());
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    choose(
      Math.max(
        0,
        Math.min(values().length - 1, Math.floor(((event.clientX - box.left) / box.width) * values().length)),
      ),
    );
  });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("blur", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.max(0, Math.min(values().length - 1, dimension == null ? 0 : dimension + by)));
    set({ spoken: canvas.getAttribute("aria-label") });
  });
  strips.push({ root, draw });
  return root;
}

function told(words) {
  const root = make("p");
  strips.push({
    root,
    draw: () => {
      root.textContent = words();
    },
  });
  return root;
}

function pick(n) {
  if (n === picked || !data.keys[n]) return;
  picked = n;
  strips.forEach(({ draw }) => draw());
  for (const row of byId("steps").querySelectorAll("tr[data-key]"))
    row.classList.toggle("on", Number(row.dataset.key) === data.keys[n].position);
}
