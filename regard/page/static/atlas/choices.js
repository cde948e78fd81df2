/** What was chosen of an atlas' overview stands in its address, so that going back comes to the same. */
import { make } from "../dom.js";
import { columns, groupName } from "./facts.js";

/** The choices as they stand in the address. */
export const address = () => new URLSearchParams(location.hash.slice(1));

/** Writes a choice into the address, or takes it out. */
export function keep(/** @type {string} */ name, /** @type {string} */ value) {
  const all = address();
  if (value) all.set(name, value);
  else all.delete(name);
  history.replaceState(null, "", String(all) ? `#${all}` : location.pathname);
}

/** The place of a column by its name; null where there is none. */
export const columnNamed = (/** @type {string|null} */ name) => {
  const at = columns.findIndex((column) => column.name === name);
  return at < 0 ? null : at;
};

/** The options of a choice among the columns, by their groups. */
export const columnOptions = () =>
  [...new Set(columns.map(({ group }) => group))].map((group) =>
    make(
      "optgroup",
      { label: groupName(group) },
      ...columns.flatMap((column, k) =>
        column.group === group ? [make("option", { value: String(k), textContent: column.title })] : [],
      ),
    ),
  );
