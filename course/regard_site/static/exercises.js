/** Answers to exercises, checked in the page: numbers up to a tolerance, or one of several choices. */
"use strict";
(() => {
  /**
   * @typedef {Array<number | string> | string} Value numbers, of which infinite ones are texts; or a choice
   * @typedef {{ expected: Value, tolerance: number, mistakes: Array<{ name: string, wrong: Value, why: string }> }} Exercise
   */

  for (const form of /** @type {NodeListOf<HTMLFormElement>} */ (document.querySelectorAll("form.answer"))) {
    /** @type {Exercise} */
    const exercise = JSON.parse(form.dataset.answer ?? "");
    const field = /** @type {HTMLInputElement | HTMLSelectElement} */ (form.querySelector("input, select"));
    const output = /** @type {HTMLOutputElement} */ (form.querySelector("output"));
    form.hidden = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [state, text] = judge(exercise, field.value);
      output.dataset.state = state;
      output.textContent = text;
      if (state === "right") form.dispatchEvent(new CustomEvent("right", { bubbles: true }));
    });
    field.addEventListener("input", () => (output.textContent = ""));
  }

  /**
   * @param {Exercise} exercise
   * @param {string} text
   * @returns {[string, string]} right, wrong or unclear; and what to say
   */
  function judge(exercise, text) {
    const { expected, tolerance, mistakes } = exercise;
    const given = typeof expected === "string" ? text : numbersIn(text);
    if (given === "") return ["unclear", "Choose one of them."];
    if (given === null) return ["unclear", "Write numbers with spaces between, such as 0.5 or 1/2."];
    if (given.length !== expected.length && typeof expected !== "string") {
      return ["unclear", `Expected ${expected.length} ${expected.length === 1 ? "number" : "numbers"}.`];
    }
    if (isSame(given, expected, tolerance)) return ["right", "Right."];
    const mistake = mistakes.find(({ wrong }) => isSame(given, wrong, tolerance));
    return ["wrong", mistake ? `Not it: ${mistake.name}. ${mistake.why}` : "Not it."];
  }

  /**
   * @param {Value} given
   * @param {Value} value
   * @param {number} tolerance
   */
  function isSame(given, value, tolerance) {
    if (typeof given === "string" || typeof value === "string") return given === value;
    return value.every((one, at) => {
      const [number, came] = [toNumber(String(one)), Number(given[at])];
      return came === number || Math.abs(came - number) <= tolerance;
    });
  }

  /**
   * @param {string} text
   * @returns {number[] | null} null where there is a word that is not a number
   */
  function numbersIn(text) {
    const numbers = (text.replaceAll(",", " ").match(/\S+/g) ?? []).map(toNumber);
    return numbers.some(Number.isNaN) || !numbers.length ? null : numbers;
  }

  /** @param {string} word a number, a fraction such as 1/3, or inf */
  function toNumber(word) {
    const plain = word.replaceAll("−", "-").replace(/^([-+]?)(?:inf|∞)$/, "$1Infinity");
    const [above, below, ...rest] = plain.split("/");
    if (rest.length || !above || below === "") return NaN;
    return Number(above) / Number(below ?? 1);
  }
})();
