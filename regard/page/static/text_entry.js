/** Where texts are typed, pasted, dropped or opened: one for each side. */
import { byId, make, targetOf } from "./dom.js";
import { count, plural } from "./format.js";
import { during } from "./pending.js";
import { openRun, openText, typeText } from "./session.js";
import { get, runOf, set, subscribe } from "./store.js";
import { typesAtOnce } from "./typing.js";

const most = () => get().about?.limits?.characters ?? Infinity;

export function startTextEntry() {
  const first = new TextEntry("first", "");
  const second = new TextEntry("second", "-second");
  const sequence = byId("sequence");
  sequence.onchange = () => openRun(sequence.value);
  subscribe("about run", ({ about }) => {
    if (!about) return;
    byId("sequence-label").hidden = about.writes || about.runs.length < 2;
    sequence.replaceChildren(
      ...about.runs.map((name) =>
        make("option", {
          value: name,
          textContent: name,
          selected: name === runOf("first")?.id,
        }),
      ),
    );
  });
  subscribe("busy", ({ about, busy }) => {
    if (about?.writes && !runOf("first") && !busy) first.open(true); // nothing could be opened by itself
  });
  drops((file, target) => {
    const right = get().compare === "text" && target.closest?.("#map-second, #text-second, #grid-second");
    (right ? second : first).take(file);
  });
}

class TextEntry {
  /** @param {SideName} side @param {string} suffix of its elements' names */
  constructor(side, suffix) {
    this.side = side;
    const of = (/** @type {string} */ name) => byId(`${name}${suffix}`);
    this.form = of("entry");
    this.field = /** @type {HTMLTextAreaElement} */ (of("entry-text"));
    this.note = of("entry-note");
    this.edit = of("edit");
    this.button = /** @type {HTMLButtonElement} */ (of("entry-run"));
    this.cancel = of("entry-cancel");
    const file = /** @type {HTMLInputElement} */ (of("file"));
    /** The text that was there before one was typed. @type {string|null|undefined} */
    this.before = null;
    /** Whether what is being typed is shown already. */
    this.typed = false;
    this.edit.onclick = () => {
      this.before = runOf(this.side)?.text;
      this.typed = false;
      this.open(true);
      this.field.focus();
      this.field.select();
    };
    this.cancel.onclick = () => {
      if (get().about?.live && this.before && this.before !== runOf(this.side)?.text)
        openText(this.before, this.side, this.typed);
      this.open(false);
      this.edit.focus();
    };
    of("entry-file").onclick = () => file.click();
    file.onchange = () => {
      this.take(file.files?.[0]);
      file.value = ""; // the same file again is a change, too
    };
    this.field.addEventListener("input", async () => {
      this.#tell();
      if (!get().about?.live || this.button.disabled) return;
      const shown = await typeText(this.field.value, this.side, this.typed); // seen as it is typed
      this.typed ||= shown; // not where more was typed before the answer came
    });
    this.field.addEventListener("keydown", (event) => {
      event.stopPropagation(); // what is typed is not a command
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#submit();
      else if (event.key === "Escape" && runOf(this.side)) this.cancel.click();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.field.addEventListener("focus", () => {
      if (typesAtOnce(this.side)) this.typed = false; // another step of the history
    });
    subscribe("about run view", ({ about }) => {
      if (!about || (!this.form.hidden && document.activeElement === this.field)) return; // someone is writing
      const run = runOf(this.side);
      if (run) this.field.value = run.text ?? "";
      this.open(about.writes && ((!run && !get().busy) || typesAtOnce(this.side)));
    });
  }

  open(/** @type {boolean} */ shown) {
    this.form.hidden = !shown;
    this.edit.hidden = shown || !get().about?.writes;
    this.cancel.hidden = !runOf(this.side);
    if (!shown) return;
    this.field.value ||= runOf(this.side)?.text ?? "";
    this.#tell();
  }

  #tell() {
    const length = Array.from(this.field.value).length;
    const over = length > most();
    this.note.textContent = over ? `${plural(length, "character")}; at most ${count(most())} are taken` : "";
    this.button.disabled = !this.field.value || over;
  }

  async #submit() {
    if (!this.field.value || this.button.disabled) return;
    this.button.disabled = true;
    if (await openText(this.field.value, this.side, this.typed)) this.open(false);
    this.#tell();
  }

  /** Opens a file as a text. */
  async take(/** @type {File|undefined} */ file) {
    if (!file) return;
    const refuse = (/** @type {string} */ why) => set({ problem: `“${file.name}” ${why}.` }); // a name is not to be capitalised
    if (!file.size) return refuse("is empty");
    if (file.size > 4 * most())
      return refuse(`has ${count(file.size)} bytes; at most ${count(most())} characters are taken`);
    const text = decoded(await during(file.arrayBuffer()));
    if (text === null) return refuse("is not UTF-8 text; convert it first, for example with iconv -f latin1 -t utf-8");
    if (text.includes("\u0000")) return refuse("is not a text file");
    this.field.value = text;
    this.typed = false;
    this.open(true);
    await this.#submit();
  }
}

/** The text of a file, or null where its bytes are none: replaced, they would be read as another text. */
function decoded(/** @type {ArrayBuffer} */ bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** Files that are dropped anywhere on the page. */
function drops(/** @type {(file: File, target: HTMLElement) => void} */ take) {
  const page = document.documentElement;
  const holds = (/** @type {DragEvent} */ event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holds(event)) return;
    event.preventDefault(); // else the browser would leave the page for the file
    const writes = Boolean(get().about?.writes);
    if (event.dataTransfer) event.dataTransfer.dropEffect = writes ? "copy" : "none";
    page.classList.toggle("dropping", writes);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) page.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    page.classList.remove("dropping");
    if (!holds(event)) return;
    event.preventDefault();
    if (get().about?.writes && event.dataTransfer) take(event.dataTransfer.files[0], targetOf(event));
    else set({ problem: "This is a recording, which takes no other text." });
  });
}
