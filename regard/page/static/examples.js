/** Texts to begin with, a chip each; they are there where a model reads other texts. */
import { byId, make } from "./dom.js";
import { openText } from "./session.js";
import { subscribe } from "./store.js";

export function startExamples() {
  subscribe("about plain view", ({ about, plain }) => {
    const examples = (about?.writes && about.examples) || [];
    const root = byId("examples");
    root.hidden = !about?.writes;
    const at = [...root.children].findIndex((one) => one === document.activeElement);
    root.replaceChildren(
      ...examples.map(({ name, text }) =>
        make("button", {
          type: "button",
          textContent: name,
          "aria-pressed": String(plain?.text === text),
          onclick: () => plain?.text !== text && openText(text),
        }),
      ),
      make("button", { type: "button", textContent: "your own text …", onclick: () => byId("edit").click() }),
    );
    /** @type {HTMLElement|undefined} */ (root.children[at])?.focus();
  });
}
