/** What changed between two maps of one window: the changed run's weights − those as they are. */
import { make, segments } from "./dom.js";
import { get, set, subscribe } from "./store.js";

/** What a voice calls its map. */
export const DIFFERENCE = "Difference, changed − as it is, in the map";

/** Whether a side shows the difference. */
export const isDifference = (/** @type {SideName} */ side) =>
  side === "second" && get().compare === "change" && get().difference;

/** The choice between the changed map and the difference. */
export function differenceChoice() {
  const group = make("span", { role: "radiogroup", "aria-label": "What the right map shows", hidden: true });
  const mark = segments(
    group,
    [
      ["changed", "changed", "The weights of the changed run"],
      ["difference", "difference", "The weights of the changed run − those as it is"],
    ],
    "changed",
    (choice) => set({ difference: choice === "difference" }),
  );
  subscribe("compare difference", ({ compare, difference }) => {
    group.hidden = compare !== "change";
    mark(difference ? "difference" : "changed");
  });
  return group;
}

/** Differences that were taken, by what was changed. @type {WeakMap<Drawn, {plain: Drawn, data: Drawn}>} */
const taken = new WeakMap();

/**
 * Subtracts the weights as they are from the changed ones; null where they are not of the same window.
 * @param {Drawn|null} plain @param {Drawn|null} changed
 * @returns {Drawn|null}
 */
export function subtract(plain, changed) {
  if (!plain || !changed || windowOf(plain) !== windowOf(changed)) return null;
  const known = taken.get(changed);
  if (known?.plain === plain) return known.data;
  const values = changed.values.map((value, k) => value - plain.values[k]);
  const greatest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const data = { ...changed, values, greatest, key: `${changed.key} − ${plain.key}` };
  taken.set(changed, { plain, data });
  return data;
}

const windowOf = (/** @type {Drawn} */ { queries, keys, block }) => `${queries}/${keys}/${block}`;
