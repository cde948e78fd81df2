/**
 * How far one is in the course: pages that were read, stops of the path of one hour, exercises answered right. It is
 * kept in this browser and nowhere else. A numbered page is ticked by its reader at its end, or once every answer that
 * can be given on it is right; a stop by following the line that leads on from it, or in the table of stops.
 *
 * @typedef {"pages"|"stops"|"exercises"} Kind
 */
"use strict";
(() => {
  const KEY = "regard-progress";
  const NUMBERED = /^\d\d[a-z]?-[\w-]+$/;
  const KINDS = /** @type {Kind[]} */ (["pages", "stops", "exercises"]);
  const here = named(location.pathname);
  let kept = restored();

  /** The name of the page that an address leads to, such as 05-causal-mask. */
  function named(/** @type {string} */ address) {
    return address
      .replace(/[?#].*$/, "")
      .replace(/^.*\//, "")
      .replace(/\.html$/, "");
  }

  /** @returns {Record<Kind, Set<string>>} */
  function empty() {
    return { pages: new Set(), stops: new Set(), exercises: new Set() };
  }

  /** What this browser keeps, as far as it can be read. */
  function restored() {
    const fresh = empty();
    try {
      const all = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      for (const kind of KINDS) for (const one of all[kind] ?? []) fresh[kind].add(String(one));
    } catch {
      /* no storage, or nothing of ours in it: begin anew */
    }
    return fresh;
  }

  function set(/** @type {Kind} */ kind, /** @type {string} */ name, isDone = true) {
    if (isDone) kept[kind].add(name);
    else kept[kind].delete(name);
    try {
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(KINDS.map((one) => [one, [...kept[one]]]))));
    } catch {
      /* a page without storage forgets it */
    }
    show();
  }

  /**
   * @template {keyof HTMLElementTagNameMap} K
   * @param {K} tag @param {Partial<HTMLElementTagNameMap[K]>} [properties] @param {(Node|string)[]} children
   * @returns {HTMLElementTagNameMap[K]}
   */
  function make(tag, properties = {}, ...children) {
    const one = document.createElement(tag);
    Object.assign(one, properties);
    one.append(...children);
    return one;
  }

  /** @param {Element} after @param {string} says Where a tick may stand, and what it says. */
  function tick(after, says) {
    const one = make("span", { className: "tick", textContent: " ✓", hidden: true });
    one.setAttribute("role", "img");
    one.setAttribute("aria-label", says);
    after.append(one);
    return one;
  }

  const box = (/** @type {string} */ label, /** @type {(isDone: boolean) => void} */ turned) => {
    const input = make("input", { type: "checkbox", autocomplete: "off" });
    input.addEventListener("change", () => turned(input.checked));
    return { input, label: make("label", {}, input, label) };
  };

  // Ticks: beside links in the list of pages, and in the index beside those of its rows.
  const links = /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll("#pages a, td:first-child > a")]);
  const ticks = links
    .map((link) => ({ link, name: named(link.getAttribute("href") ?? "") }))
    .filter(({ name }) => NUMBERED.test(name))
    .map(({ link, name }) => ({ name, mark: tick(link, "read") }));

  // The end of a page.
  const finish = /** @type {HTMLElement|null} */ (document.querySelector(".finish"));
  const read = finish && box("I have read this page", (isDone) => set("pages", here, isDone));
  if (finish && read) {
    finish.hidden = false;
    finish.append(read.label);
  }

  // Exercises that were answered right.
  const forms = /** @type {HTMLFormElement[]} */ ([...document.querySelectorAll("form.answer")]);
  const numberOf = (/** @type {HTMLFormElement} */ form) => form.querySelector("output")?.htmlFor.value ?? "";
  const answers = forms.map((form) => {
    const mark = make("span", { className: "tick", textContent: "✓ answered", hidden: true });
    form.querySelector("button")?.after(mark);
    return { number: numberOf(form), mark };
  });
  document.addEventListener("right", ({ target }) => {
    set("exercises", numberOf(/** @type {HTMLFormElement} */ (target)));
    if (answers.every(({ number }) => kept.exercises.has(number))) set("pages", here);
  });

  // Stops of the path of one hour: a box in each row; the last page of the row is where the stop ends.
  const rows = [...(document.querySelector(".hour")?.nextElementSibling?.querySelectorAll("tbody tr") ?? [])];
  const stops = rows.map((row) => {
    const name = named([...row.querySelectorAll("a")].at(-1)?.getAttribute("href") ?? "");
    const { input, label } = box("", (isDone) => set("stops", name, isDone));
    const [cell] = row.children;
    label.append(...cell.childNodes);
    cell.append(label);
    return { name, input };
  });
  for (const link of document.querySelectorAll(".onpath a")) link.addEventListener("click", () => set("stops", here));

  // What the index says of it all.
  const place = document.querySelector("div.progress");
  const said = make("span");
  said.setAttribute("role", "status");
  const forget = make("button", {
    type: "button",
    textContent: "Forget my progress",
    onclick: () => {
      kept = empty();
      try {
        localStorage.removeItem(KEY);
      } catch {
        /* nothing was kept */
      }
      show();
    },
  });
  place?.append(said, forget);

  function show() {
    for (const { name, mark } of ticks) mark.hidden = !kept.pages.has(name);
    for (const { number, mark } of answers) mark.hidden = !kept.exercises.has(number);
    for (const { name, input } of stops) input.checked = kept.stops.has(name);
    if (read) read.input.checked = kept.pages.has(here);
    const pages = new Set(ticks.map(({ name }) => name));
    const nothing = !KINDS.some((kind) => kept[kind].size);
    const count = [...pages].filter((name) => kept.pages.has(name)).length;
    said.textContent = nothing
      ? "Pages that you have read are ticked here. That is kept in this browser alone."
      : `${count} of ${pages.size} pages read, ${kept.exercises.size} ${kept.exercises.size === 1 ? "exercise" : "exercises"} answered here. That is kept in this browser alone.`;
    forget.hidden = nothing;
  }

  // Ticks of another page that is open, which this one would else overwrite.
  addEventListener("storage", ({ key }) => {
    if (key !== KEY && key !== null) return;
    kept = restored();
    show();
  });
  // A page that is come back to shows what was ticked since.
  addEventListener("pageshow", ({ persisted }) => {
    if (!persisted) return;
    kept = restored();
    show();
  });
  show();
})();
