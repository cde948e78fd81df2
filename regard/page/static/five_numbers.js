/** One entry as five numbers, each the next one's reason; a press opens the vectors that it is made of. */
import { make } from "./dom.js";
import { bare, scaleName, signed, weight } from "./format.js";

/** The part of the steps that each number opens, by its place there. */
const PARTS = { product: 0, scaled: 0, masked: 1, weight: 1, value: 2 };

/**
 * @param {HTMLElement} root whose `data-open` says which part is open
 * @param {{data: StepsShown, token: (k: number) => string, picked: () => StepKey|null}} of
 * @returns {{root: HTMLElement, draw: () => void}}
 */
export function fiveNumbers(root, { data, token, picked }) {
  const names = /** @type {(keyof typeof PARTS)[]} */ (Object.keys(PARTS));
  const buttons = names.map((name) =>
    make(
      "button",
      {
        type: "button",
        dataset: { number: name },
        "aria-expanded": "false",
        onclick: () => {
          root.dataset.open = root.dataset.open === name ? "" : name;
          mark();
        },
      },
      make("small"),
      make("b"),
      make("span"),
    ),
  );
  const mark = () => {
    const open = /** @type {keyof typeof PARTS|""|undefined} */ (root.dataset.open);
    buttons.forEach((button, k) => button.setAttribute("aria-expanded", String(names[k] === open)));
    root
      .querySelectorAll(".walk > div")
      .forEach((part, k) =>
        part.classList.toggle("open", Boolean(open) && PARTS[/** @type {keyof typeof PARTS} */ (open)] === k),
      );
  };
  const draw = () => {
    const one = picked();
    const words = one ? numbersOf(data, one, token) : [];
    buttons.forEach((button, k) => {
      const [title = "", number = "–", note = ""] = words[k] ?? [];
      [title, number, note].forEach((text, at) => {
        button.children[at].textContent = text;
      });
    });
    mark();
  };
  return {
    root: make("div", { className: "five", role: "group", "aria-label": "The weight in five numbers" }, ...buttons),
    draw,
  };
}

/** The last number of a view that multiplies weights. @type {Partial<Record<Shows, [title: string, note: string]>>} */
const LAST = {
  moved: ["× length of value", "what the value is long, behind W_O"],
  toward: ["× value → answer", "what the value adds to the answer’s logit"],
};

/** Title, number and note of each. @param {StepsShown} data @param {StepKey} key @param {(k: number) => string} token */
function numbersOf({ at, query, scale, logsumexp, context, count, shows }, key, token) {
  const [title, what] = LAST[shows] ?? ["", ""];
  const hidden = shows === "without" ? "hidden, or the head rests on it" : "hidden";
  const factor = weight((key.entry ?? 0) / key.weight);
  const adjusted = key.masked == null ? key.scaled : key.masked;
  return [
    [
      "q · k",
      signed(key.score, 2),
      `${query.length} products, of “${bare(token(at))}” and “${bare(token(key.position))}”`,
    ],
    [`× ${scaleName(scale)}`, signed(key.scaled, 2), "scaled"],
    ["mask", key.visible ? signed(adjusted, 2) : "−∞", key.visible ? `visible, like ${count} keys in all` : hidden],
    ["softmax", weight(key.weight), `e^(${signed(adjusted, 2)} − ${signed(logsumexp, 2)})`],
    title
      ? [title, weight(key.entry), `${weight(key.weight)} × ${key.weight ? factor : "…"}, ${what}`]
      : ["× value", `${weight(key.weight)} · v`, context ? shareOf(context, key) : "values were not recorded"],
  ];
}

/** How much of the head's output comes from a key: its part of the sum, along that sum. */
function shareOf(/** @type {number[]} */ context, /** @type {StepKey} */ { weight: w, value }) {
  const along = context.reduce((sum, c, d) => sum + c * w * value[d], 0);
  const all = context.reduce((sum, c) => sum + c * c, 0);
  return all > 0 ? `${signed((100 * along) / all, 0)} % of the head’s output, along it` : "the head’s output is 0";
}
