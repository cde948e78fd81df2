/**
 * Questions that a reader answers twice: before the course and after it. The answers stay in this browser.
 *
 * @typedef {"before"|"after"} Time
 * @typedef {{answers: Record<string, number>, finished: boolean}} Sitting answers: the choice, counted from 1, by the
 *   question's anchor; 0 for “I don't know”
 * @typedef {{anchor: string, title: string, right: number, fieldset: HTMLFieldSetElement, answer: HTMLElement,
 *   verdict: HTMLElement}} Question
 */
"use strict";
(() => {
  const KEY = "regard-questions";
  const UNKNOWN = 0;
  /** @type {Record<Time, Sitting>} */
  let sittings = restored();
  let reading = false;

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

  /** @returns {Record<Time, Sitting>} */
  function empty() {
    return { before: { answers: {}, finished: false }, after: { answers: {}, finished: false } };
  }

  /** @returns {Record<Time, Sitting>} what this browser keeps, as far as it can be read */
  function restored() {
    const fresh = empty();
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      for (const time of /** @type {Time[]} */ (["before", "after"])) {
        for (const [anchor, choice] of Object.entries(kept[time]?.answers ?? {}))
          if (Number.isInteger(choice)) fresh[time].answers[anchor] = choice;
        fresh[time].finished = kept[time]?.finished === true;
      }
    } catch {
      /* no storage, or nothing of ours in it: begin anew */
    }
    return fresh;
  }

  function keep() {
    try {
      localStorage.setItem(KEY, JSON.stringify(sittings));
    } catch {
      /* a page without storage forgets them */
    }
  }

  /** @returns {Time|null} which answers are being taken */
  const now = () => (!sittings.before.finished ? "before" : !sittings.after.finished ? "after" : null);

  const place = /** @type {HTMLElement} */ (document.querySelector(".questions"));
  const questions = [...document.querySelectorAll(".question")].map((mark) => built(/** @type {HTMLElement} */ (mark)));
  const progress = make("p", { className: "progress" });
  progress.setAttribute("role", "status");
  const actions = make("div", { className: "switches" });
  const table = make("div", { className: "table" });
  place.append(progress, actions, table);

  /** The choices of one question, in place of its list. @returns {Question} */
  function built(/** @type {HTMLElement} */ mark) {
    const heading = /** @type {HTMLElement} */ (before(mark, "H2"));
    const list = /** @type {HTMLElement} */ (mark.nextElementSibling);
    const answer = /** @type {HTMLElement} */ (list.nextElementSibling);
    const { id: anchor } = heading;
    const title = /** @type {string} */ (heading.firstChild?.textContent);
    const texts = [...list.children].map((one) => one.innerHTML);
    const choice = (/** @type {string} */ html, /** @type {number} */ number) => {
      const input = make("input", { type: "radio", name: anchor, value: String(number) });
      input.autocomplete = "off"; // or a browser would put back what it remembers, perhaps of a moment before
      input.addEventListener("change", () => choose(anchor, number));
      const words = make("span");
      words.innerHTML = html;
      return make("label", {}, input, words);
    };
    const fieldset = make(
      "fieldset",
      { className: "choices" },
      make("legend", { className: "unseen", textContent: title }),
      ...texts.map((html, at) => choice(html, at + 1)),
      choice("I don’t know", UNKNOWN),
    );
    const verdict = make("p", { className: "verdict", hidden: true });
    list.replaceWith(fieldset, verdict);
    return { anchor, title, right: Number(mark.dataset.right), fieldset, answer, verdict };
  }

  function before(/** @type {Element|null} */ one, /** @type {string} */ tag) {
    let at = one;
    while (at && at.tagName !== tag) at = at.previousElementSibling;
    return at;
  }

  function choose(/** @type {string} */ anchor, /** @type {number} */ number) {
    const time = now();
    if (!time) return;
    sittings[time].answers[anchor] = number;
    keep();
    show();
  }

  const score = (/** @type {Time} */ time) =>
    questions.filter(({ anchor, right }) => sittings[time].answers[anchor] === right).length;
  const answered = (/** @type {Time} */ time) => questions.filter((one) => one.anchor in sittings[time].answers).length;

  /** Bring the page up to date: which answers are taken, or what came of both times. */
  function show() {
    const time = now();
    const open = reading || time === null;
    for (const one of questions) {
      const chosen = time ? sittings[time].answers[one.anchor] : sittings.after.answers[one.anchor];
      for (const input of one.fieldset.querySelectorAll("input")) input.checked = Number(input.value) === chosen;
      one.fieldset.disabled = open;
      one.answer.hidden = !open;
      one.verdict.hidden = time !== null;
      one.verdict.textContent = `Before: ${verdictOf(one, "before")}. After: ${verdictOf(one, "after")}.`;
    }
    progress.textContent = reading && time ? "The answers are open, and none is taken." : said(time);
    actions.replaceChildren(...buttons(time));
    table.replaceChildren(...(time === null ? [difference()] : []));
  }

  /** @returns {string} what stands at the top */
  function said(/** @type {Time|null} */ time) {
    const all = questions.length;
    if (time === "before") return `Before the course: ${answered("before")} of ${all} answered.`;
    if (time === "after")
      return answered("after")
        ? `After the course: ${answered("after")} of ${all} answered.`
        : `Before the course ${score("before")} of ${all} were right. Which ones, the second time tells: come back after the course.`;
    const [was, is] = [score("before"), score("after")];
    const by = is - was;
    return `Right before: ${was} of ${all}. After: ${is} of ${all}${by ? `, ${Math.abs(by)} ${by > 0 ? "more" : "fewer"}` : ", as many"}.`;
  }

  function buttons(/** @type {Time|null} */ time) {
    const all = [];
    if (time && !reading) {
      const left = questions.find((one) => !(one.anchor in sittings[time].answers));
      if (left && answered(time))
        all.push(button("Next unanswered", () => left.fieldset.querySelector("input")?.focus()));
      if (!left)
        all.push(
          button("Finish", () => {
            sittings[time].finished = true;
            keep();
            show();
            place.scrollIntoView({ block: "center" });
            place.querySelector("button")?.focus();
          }),
        );
    }
    if (time)
      all.push(
        button(reading ? "Close the answers" : "Only read the answers", () => {
          reading = !reading;
          show();
          actions.querySelector("button")?.focus();
        }),
      );
    if (answered("before"))
      all.push(
        button("Forget my answers", () => {
          sittings = empty();
          reading = false;
          try {
            localStorage.removeItem(KEY);
          } catch {
            /* nothing was kept */
          }
          show();
          actions.querySelector("button")?.focus();
        }),
      );
    return all;
  }

  const button = (/** @type {string} */ textContent, /** @type {() => void} */ press) =>
    make("button", { type: "button", textContent, onclick: press });

  const verdictOf = (/** @type {Question} */ { anchor, right }, /** @type {Time} */ time) => {
    const choice = sittings[time].answers[anchor];
    return choice === right ? "right" : choice ? "wrong" : "not known";
  };

  /** Both times side by side, a row for each question. */
  function difference() {
    const head = make(
      "tr",
      {},
      ...["question", "before", "after"].map((textContent) => make("th", { scope: "col", textContent })),
    );
    const rows = questions.map((one) => {
      const [was, is] = [verdictOf(one, "before"), verdictOf(one, "after")];
      const link = make("a", { href: `#${one.anchor}`, textContent: one.title });
      const row = make(
        "tr",
        {},
        make("td", {}, link),
        make("td", { textContent: was }),
        make("td", { textContent: is }),
      );
      row.classList.toggle("changed", was !== is);
      return row;
    });
    return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  }

  // Answers given on another page of these questions, which this one would else overwrite.
  addEventListener("storage", ({ key }) => {
    if (key !== KEY && key !== null) return;
    sittings = restored();
    show();
  });
  show();
})();
