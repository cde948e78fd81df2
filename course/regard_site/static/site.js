/** What every page of the site does: colours, the menu on a phone, copying code, search. */
"use strict";
(() => {
  const root = document.documentElement;
  const script = /** @type {HTMLScriptElement} */ (document.currentScript);
  const base = script.dataset.root ?? ".";
  /**
   * @template {HTMLElement} T
   * @param {string} id
   * @returns {T}
   */
  const byId = (id) => /** @type {T} */ (document.getElementById(id));

  // Colours: as the system has it, until a person says otherwise.
  const theme = byId("theme");
  let chosen = false;
  try {
    chosen = ["light", "dark"].includes(localStorage.getItem("regard-theme") ?? "");
  } catch {
    /* no storage: nothing was chosen */
  }
  const colour = (/** @type {boolean} */ dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    theme.setAttribute("aria-label", `Colours: ${root.dataset.theme}. Press to change.`);
  };
  theme.addEventListener("click", () => {
    colour(root.dataset.theme !== "dark");
    chosen = true;
    try {
      localStorage.setItem("regard-theme", root.dataset.theme ?? "");
    } catch {
      /* a page without storage forgets it */
    }
  });
  // The live page within this one follows the system, too.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => chosen || colour(matches));
  colour(root.dataset.theme === "dark");

  // The list of pages, on a narrow screen.
  const menu = byId("menu");
  const pages = document.getElementById("pages");
  menu.hidden = !pages;
  menu.addEventListener("click", () => {
    const open = pages?.classList.toggle("open") ?? false;
    menu.setAttribute("aria-expanded", String(open));
  });
  pages?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", behavior: "instant" });

  // Code is copied as it is typed: without prompts, and without what it prints.
  for (const block of document.querySelectorAll(".code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(typedIn(block));
      button.textContent = "Copied";
    });
    button.addEventListener("blur", () => (button.textContent = "Copy"));
    block.append(button);
  }

  /** @param {Element} block */
  function typedIn(block) {
    const whole = /** @type {HTMLElement} */ (block.querySelector("pre")?.cloneNode(true));
    for (const prompt of whole.querySelectorAll(".prompt")) prompt.remove();
    const typed = [...whole.querySelectorAll(".typed")];
    return typed.length ? typed.map((one) => one.textContent).join("") : (whole.textContent ?? "");
  }

  // What is wider than the screen can be scrolled by keys.
  const fits = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
      else target.removeAttribute("tabindex");
    }
  });
  for (const one of document.querySelectorAll("pre, .table, div.math")) fits.observe(one);

  // The heading that is being read, in the list of those on this page.
  const links = new Map(
    /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll(".contents a")]).map((a) => [
      decodeURIComponent(a.hash.slice(1)),
      a,
    ]),
  );
  const seen = new IntersectionObserver(
    (entries) => {
      const top = entries.find((entry) => entry.isIntersecting);
      if (!top) return;
      for (const link of links.values()) link.classList.toggle("here", link === links.get(top.target.id));
    },
    { rootMargin: "-70px 0px -70% 0px" },
  );
  for (const heading of document.querySelectorAll("main [id]")) if (links.has(heading.id)) seen.observe(heading);

  // Search is loaded when it is first opened.
  const load = (/** @type {string} */ name) =>
    new Promise((resolve, reject) => {
      const one = document.createElement("script");
      one.src = `${base}/static/${name}`;
      one.addEventListener("load", resolve);
      one.addEventListener("error", reject);
      document.head.append(one);
    });
  /** @type {Promise<void>|null} */
  let loaded = null;
  async function openSearch() {
    loaded ??= Promise.all([load("vendor/minisearch.js"), load("search-index.js")]).then(() => load("search.js"));
    /** @type {HTMLDialogElement} */ (byId("search")).showModal();
    byId("query").focus();
    await loaded;
    document.dispatchEvent(new CustomEvent("search", { detail: base }));
  }
  byId("search-open").addEventListener("click", openSearch);
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input, textarea, select");
    const slash = event.key === "/" && !typing && !event.ctrlKey && !event.metaKey;
    if (slash || (event.key === "k" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      openSearch();
    }
  });
})();
