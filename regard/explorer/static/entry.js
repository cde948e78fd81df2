/** Where a text is typed, pasted, dropped or opened. */
import { byId, make } from "./dom.js";
import { count, plural } from "./format.js";
import { openRun, openText } from "./session.js";
import { get, set, subscribe } from "./store.js";

export function startEntry() {
  const form = byId("entry");
  const field = byId("entry-text");
  const note = byId("entry-note");
  const file = byId("file");

  const open = (shown) => {
    form.hidden = !shown;
    byId("edit").hidden = shown || !get().about?.writes;
    byId("entry-cancel").hidden = !get().run;
    if (!shown) return;
    field.value ||= get().run?.text ?? "";
    tell();
  };
  const tell = () => {
    const most = get().about?.limits?.characters ?? Infinity;
    const length = Array.from(field.value).length;
    note.textContent =
      length > most ? `${plural(length, "character")}; at most ${count(most)} are taken` : "";
    byId("entry-run").disabled = !field.value || length > most;
  };
  const submit = async () => {
    if (!field.value || byId("entry-run").disabled) return;
    byId("entry-run").disabled = true;
    if (await openText(field.value)) open(false);
    tell();
  };
  const take = async (chosen) => {
    if (!chosen) return;
    const most = get().about?.limits?.characters ?? Infinity;
    if (chosen.size > 4 * most) {
      set({
        problem: `${chosen.name} has ${count(chosen.size)} bytes; at most ${count(most)} characters are taken.`,
      });
      return;
    }
    const text = await chosen.text();
    if (text.includes("\u0000")) {
      set({ problem: `${chosen.name} is no text file.` });
      return;
    }
    field.value = text;
    open(true);
    await submit();
  };

  byId("edit").onclick = () => {
    open(true);
    field.focus();
    field.select();
  };
  byId("entry-cancel").onclick = () => open(false);
  byId("entry-file").onclick = () => file.click();
  file.onchange = () => {
    take(file.files[0]);
    file.value = ""; // the same file again is a change, too
  };
  field.addEventListener("input", tell);
  field.addEventListener("keydown", (event) => {
    event.stopPropagation(); // what is typed is no command
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
    else if (event.key === "Escape" && get().run) open(false);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  const panel = byId("text-panel");
  panel.addEventListener("dragover", (event) => {
    if (!get().about?.writes || ![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    form.classList.add("over");
  });
  panel.addEventListener("dragleave", () => form.classList.remove("over"));
  panel.addEventListener("drop", (event) => {
    form.classList.remove("over");
    if (!get().about?.writes || !event.dataTransfer.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  const sequence = byId("sequence");
  sequence.onchange = () => openRun(sequence.value);
  subscribe("about run", ({ about, run }) => {
    if (!about) return;
    byId("sequence-label").hidden = about.writes || about.runs.length < 2;
    sequence.replaceChildren(
      ...about.runs.map((name) =>
        make("option", { value: name, textContent: name, selected: name === run?.id }),
      ),
    );
    if (!form.hidden && document.activeElement === field) return; // someone is writing
    if (run) field.value = run.text ?? "";
    open(about.writes && !run && !get().busy);
  });
  subscribe("busy", ({ about, run, busy }) => {
    if (about?.writes && !run && !busy) open(true); // nothing could be opened by itself
  });
}
