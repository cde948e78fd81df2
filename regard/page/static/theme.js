/** Light or dark: as the system has it, unless a person says otherwise. */
import { byId, cycle, make } from "./dom.js";
import { darkness } from "./scheme.js";
import { get, set, subscribe } from "./store.js";

/** @type {State["theme"][]} */
const ORDER = ["auto", "light", "dark"];
/** @type {Inks|null} */
let read = null;

/** @returns {Inks} The page's colours for drawing, read from its style once a theme. */
export function inks() {
  if (read) return read;
  const style = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["paper", "panel", "ink", "soft", "line", "accent", "changed", "mono", "sans", "serif"];
  const roles = { query: of("role-query"), key: of("role-key") };
  const named = Object.fromEntries(names.map((name) => [name, of(name)]));
  read = /** @type {Inks} */ ({ ...named, ...roles, theme: themeNow() });
  return read;
}

/** @returns {Theme} */
export const themeNow = () => {
  const { theme } = get();
  return theme === "auto" ? (darkness.matches ? "dark" : "light") : theme;
};

export function startTheme() {
  const button = byId("theme");
  const apply = () => {
    read = null;
    document.documentElement.dataset.theme = themeNow();
    const [sign, name] = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[get().theme].split(" ");
    button.replaceChildren(sign, make("span", { textContent: ` ${name}` }));
    button.setAttribute("aria-label", `Colours: ${get().theme}. Press to change.`);
    document.dispatchEvent(new CustomEvent("inks"));
  };
  button.addEventListener("click", () => {
    const theme = cycle(ORDER, get().theme);
    try {
      localStorage.setItem("regard-theme", theme);
    } catch {
      /* a page without storage forgets it */
    }
    set({ theme });
  });
  const choose = (/** @type {string|null} */ chosen) => {
    const theme = ORDER.find((name) => name === chosen);
    if (theme) set({ theme });
  };
  try {
    choose(localStorage.getItem("regard-theme"));
  } catch {
    /* as above */
  }
  // Of another page, such as the one that this one is a part of.
  window.addEventListener("storage", ({ key, newValue }) => key === "regard-theme" && choose(newValue));
  darkness.addEventListener("change", apply);
  subscribe("theme", apply);
  apply();
}
