/** Making elements. Text goes in as text only: tokens are their author's, never markup. */
import { during, pend } from "./pending.js";

/**
 * An element that index.html has.
 * @template {string} N @param {N} name
 * @returns {N extends keyof PageElements ? PageElements[N] : HTMLElement}
 */
export const byId = (name) => /** @type {any} */ (document.getElementById(name));

/** The first element within another that a selector matches, where there is one for sure. */
export const find = (/** @type {ParentNode} */ root, /** @type {string} */ selector) =>
  /** @type {HTMLElement} */ (root.querySelector(selector));

/** @returns {HTMLElement[]} All elements within another that a selector matches. */
export const findAll = (/** @type {ParentNode} */ root, /** @type {string} */ selector) => [
  ...root.querySelectorAll(/** @type {"div"} */ (selector)),
];

/** The element that an event is for. */
export const targetOf = (/** @type {Event} */ event) => /** @type {HTMLElement} */ (event.target);

/**
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} tag
 * @param {Record<string, any>} [properties] those with a dash are attributes; `on…` listen; `style` and
 *   `dataset` have properties of their own
 * @param {...(Node|string|null)} children
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else if (name === "style" || name === "dataset") Object.assign(element[name], value);
    else Object.assign(element, { [name]: value });
  }
  for (const child of children) if (child != null) element.append(child);
  return element;
}

/**
 * A few values of which one holds; arrows move between them, as in any radio group.
 * @template {string} T
 * @param {HTMLElement} group
 * @param {[value: T, text: string, title: string][]} values
 * @param {T} chosen
 * @param {(value: T) => void} choose
 */
export function segments(group, values, chosen, choose) {
  group.classList.add("segments");
  /** @type {HTMLButtonElement[]} */
  const buttons = values.map(([value, text, title]) =>
    make("button", {
      type: "button",
      role: "radio",
      textContent: text,
      title,
      value,
      onclick: () => choose(value),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const by = lookUp({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }, event.key);
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        const next = cycle(buttons, /** @type {HTMLButtonElement} */ (event.currentTarget), by);
        next.focus();
        next.click();
      },
    }),
  );
  group.replaceChildren(...buttons);
  const mark = (/** @type {T} */ value) => {
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.value === value));
      button.tabIndex = button.value === value ? 0 : -1;
    }
  };
  mark(chosen);
  return mark;
}

/** The entry after one, or so many after it; the first again after the last. @template T @param {T[]} all @param {T} one */
export const cycle = (all, one, by = 1) => all[(all.indexOf(one) + by + all.length) % all.length];

/** Fills a select anew where its names have changed, and chooses. */
export function fillSelect(
  /** @type {HTMLSelectElement} */ select,
  /** @type {[value: string, text: string, title: string][]} */ names,
  /** @type {string|number} */ chosen,
) {
  const key = names.map(([, text]) => text).join();
  if (select.dataset.names !== key) {
    select.dataset.names = key;
    select.replaceChildren(...names.map(([value, text, title]) => make("option", { value, textContent: text, title })));
  }
  select.value = String(chosen);
}

/**
 * The value of a name, or undefined where there is none: what a pressed key means.
 * @template T
 * @param {Record<string, T>} values @param {string} name
 * @returns {T|undefined}
 */
export const lookUp = (values, name) => values[name];

/** Runs at most once a frame, however often it is asked for. */
export function framed(/** @type {() => void} */ draw) {
  /** @type {(() => void)|null} */
  let end = null;
  return () => {
    if (end) return;
    end = pend();
    requestAnimationFrame(() => {
      end?.();
      end = null;
      draw();
    });
  };
}

/** Waits for an event of the document; where it does not come, no longer than so. */
export const documentEvent = (/** @type {string} */ name, most = 20_000) =>
  during(
    new Promise((done) => {
      document.addEventListener(name, done, { once: true });
      setTimeout(done, most);
    }),
  );

/**
 * Runs when nobody has asked for it again for so long.
 * @param {number} milliseconds @param {() => void} run
 */
export function settled(milliseconds, run) {
  let timer = 0;
  /** @type {(() => void)|null} */
  let end = null;
  return () => {
    clearTimeout(timer);
    end ??= pend();
    timer = setTimeout(() => {
      end?.();
      end = null;
      run();
    }, milliseconds);
  };
}

/**
 * Declares whether a part of the page still answers a question that is no longer the current one.
 * @param {HTMLElement} element @param {any} stale
 */
export function markStale(element, stale) {
  element.dataset.state = stale ? "stale" : "current";
}

/** A table with a label, its header and its rows. @param {string} label @param {Node[]} head @param {Node[]} rows */
export const table = (label, head, rows) =>
  make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));

/** A bar as long as a share of the longest; what is below 0 has a colour of its own. */
export const bar = (/** @type {number} */ share) =>
  make("span", {
    className: share < 0 ? "bar less" : "bar",
    style: { width: `${100 * Math.min(1, Math.abs(share))}%` },
  });

/** A key's name at the start of a row, to be pressed; the row's own click does the rest. */
export function keyButton(/** @type {string[]} */ labels, /** @type {number} */ key, /** @type {string} */ fact) {
  const own = labels[key] === String(key) ? "" : labels[key];
  return make(
    "button",
    { className: "key-name", type: "button", tabIndex: -1, title: own, "aria-label": `key ${key} ${own}, ${fact}` },
    make("i", { textContent: `${key} ` }),
    own,
  );
}

/** Up and down move between the rows of a table; Tab comes to one of them. */
export function rove(/** @type {HTMLElement} */ root) {
  const buttons = () => findAll(root, "tbody .key-name");
  root.addEventListener("keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(targetOf(event));
    const to = lookUp({ ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: all.length - 1 }, event.key);
    if (at < 0 || to == null || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(all.length - 1, to))].focus();
  });
  root.addEventListener("focusin", (event) => {
    if (!targetOf(event).matches(".key-name")) return;
    for (const button of buttons()) button.tabIndex = button === event.target ? 0 : -1;
  });
  const reach = () => {
    const all = buttons();
    if (all.length && !all.some(({ tabIndex }) => tabIndex === 0)) all[0].tabIndex = 0;
  };
  new MutationObserver(reach).observe(root, { childList: true, subtree: true });
}
