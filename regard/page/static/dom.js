/** Making elements. Text goes in as text only: tokens are their author's, never markup. */
import { during, pend } from "./pending.js";

export const byId = (name) => document.getElementById(name);

/**
 * @param {string} tag
 * @param {Record<string, any>} [properties] those with a dash are attributes; `on…` listen
 * @param {...(Node|string|null)} children
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** A few answers of which one holds; arrows move between them, as in any radio group. */
export function segments(group, answers, chosen, choose) {
  group.classList.add("segments");
  const buttons = answers.map(([value, text, title]) =>
    make("button", {
      type: "button",
      role: "radio",
      textContent: text,
      title: title ?? "",
      value,
      onclick: () => choose(value),
      onkeydown: (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        const next = buttons[(buttons.indexOf(event.currentTarget) + by + buttons.length) % buttons.length];
        next.focus();
        next.click();
      },
    }),
  );
  group.replaceChildren(...buttons);
  const mark = (value) => {
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.value === value));
      button.tabIndex = button.value === value ? 0 : -1;
    }
  };
  mark(chosen);
  return mark;
}

/** Runs at most once a frame, however often it is asked for. */
export function framed(draw) {
  /** @type {(() => void)|null} */
  let end = null;
  return () => {
    if (end) return;
    end = pend();
    requestAnimationFrame(() => {
      end();
      end = null;
      draw();
    });
  };
}

/** Waits for an event of the document; where it does not come, no longer than so. */
export const documentEvent = (name, most = 20_000) =>
  during(
    new Promise((done) => {
      document.addEventListener(name, done, { once: true });
      setTimeout(done, most);
    }),
  );

/** Runs when nobody has asked for it again for so long. */
export function settled(milliseconds, run) {
  let timer = 0;
  /** @type {(() => void)|null} */
  let end = null;
  return (...given) => {
    clearTimeout(timer);
    end ??= pend();
    timer = setTimeout(() => {
      end();
      end = null;
      run(...given);
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

/** A key's name at the start of a row, to be pressed; the row's own click does the rest. */
export function keyButton(labels, key, told) {
  const own = labels[key] === String(key) ? "" : labels[key];
  return make(
    "button",
    { className: "key-name", type: "button", tabIndex: -1, title: own, "aria-label": `key ${key} ${own}, ${told}` },
    make("i", { textContent: `${key} ` }),
    own,
  );
}

/** Up and down move between the rows of a table; Tab comes to one of them. */
export function rove(root) {
  const buttons = () => [...root.querySelectorAll("tbody .key-name")];
  root.addEventListener("keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(event.target);
    const to = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to == null || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(all.length - 1, to))].focus();
  });
  root.addEventListener("focusin", (event) => {
    if (!event.target.matches(".key-name")) return;
    for (const button of buttons()) button.tabIndex = button === event.target ? 0 : -1;
  });
  const reach = () => {
    const all = buttons();
    if (all.length && !all.some(({ tabIndex }) => tabIndex === 0)) all[0].tabIndex = 0;
  };
  new MutationObserver(reach).observe(root, { childList: true, subtree: true });
}
