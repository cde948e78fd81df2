/** Search: MiniSearch over the parts of all pages, listed as one types. */
"use strict";
(() => {
  const LIMIT = 12;
  const AROUND = 70; // characters on each side of a match
  /** @type {any} */
  const scope = globalThis;
  /** @typedef {{id: string, page: string, title: string, text: string}} Part */
  /** @type {Part[]} */
  const parts = scope.searchIndex;
  const texts = new Map(parts.map((part) => [part.id, part.text]));
  const engine = new scope.MiniSearch({
    fields: ["title", "page", "text"],
    storeFields: ["title", "page"],
    tokenize: (/** @type {string} */ text) => text.match(/[\p{L}\p{N}]+/gu) ?? [],
    searchOptions: { boost: { title: 4, page: 2 }, prefix: true, fuzzy: 0.15, combineWith: "AND" },
  });
  engine.addAll(parts);

  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("search"));
  const query = /** @type {HTMLInputElement} */ (document.getElementById("query"));
  const list = /** @type {HTMLElement} */ (document.getElementById("results"));
  const count = /** @type {HTMLElement} */ (document.getElementById("count"));
  let base = ".";
  let chosen = 0;

  document.addEventListener("search", (event) => {
    base = /** @type {CustomEvent} */ (event).detail;
    show();
  });
  query.addEventListener("input", show);
  query.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Escape") {
      event.preventDefault(); // else a browser empties the field first
      dialog.close();
    } else if (event.key === "Enter") {
      event.preventDefault();
      /** @type {HTMLElement|null} */ (list.children[chosen]?.querySelector("a"))?.click();
    }
  });
  list.addEventListener("click", () => dialog.close());

  function show() {
    const results = query.value.trim() ? engine.search(query.value) : [];
    list.replaceChildren(...results.slice(0, LIMIT).map(item));
    query.setAttribute("aria-expanded", String(results.length > 0));
    const more = results.length > LIMIT ? `, the best ${LIMIT} shown` : "";
    const places = results.length === 1 ? "1 place" : `${results.length} places`;
    count.textContent = query.value.trim() ? places + more : `${parts.length} sections are searched, in this page.`;
    choose(0);
  }

  /**
   * @param {{id: string, page: string, title: string, terms: string[]}} result
   * @param {number} at
   */
  function item(result, at) {
    const row = document.createElement("li");
    row.id = `result-${at}`;
    row.setAttribute("role", "option");
    const link = document.createElement("a");
    link.href = `${base}/${result.id}`;
    link.tabIndex = -1;
    link.append(result.title, span("where", result.title === result.page ? "" : result.page), excerpt(result));
    row.append(link);
    return row;
  }

  /** @param {{id: string, terms: string[]}} result The text around the first match. */
  function excerpt({ id, terms }) {
    const text = texts.get(id) ?? "";
    const lower = text.toLowerCase();
    const places = terms.map((term) => [lower.indexOf(term), term.length]).filter(([at]) => at >= 0);
    if (!places.length) return span("excerpt", text.slice(0, 2 * AROUND));
    const [at, length] = places.reduce((a, b) => (b[0] < a[0] ? b : a));
    const start = Math.max(0, at - AROUND);
    const mark = document.createElement("mark");
    mark.textContent = text.slice(at, at + length);
    const around = span("excerpt", (start ? "… " : "") + text.slice(start, at));
    around.append(mark, text.slice(at + length, at + length + AROUND));
    return around;
  }

  /**
   * @param {string} kind
   * @param {string} text
   */
  function span(kind, text) {
    const one = document.createElement("span");
    one.className = kind;
    one.textContent = text;
    return one;
  }

  /** @param {number} next */
  function choose(next) {
    const rows = [...list.children];
    chosen = Math.max(0, Math.min(rows.length - 1, next));
    rows.forEach((row, at) => row.setAttribute("aria-selected", String(at === chosen)));
    rows[chosen]?.scrollIntoView({ block: "nearest" });
    if (rows.length) query.setAttribute("aria-activedescendant", rows[chosen].id);
    else query.removeAttribute("aria-activedescendant");
  }
})();
