/** Which heads of an atlas are listed: by a search, a role, the least that a column must have. */
import { make } from "../dom.js";
import { count, plural } from "../format.js";
import { columns } from "./facts.js";
import { address, columnNamed, columnOptions, keep } from "./choices.js";

/** @param {AtlasHead[]} heads @param {(shown: AtlasHead[]) => void} show */
export function startFilters(heads, show) {
  const given = address();
  const search = make("input", {
    type: "search",
    id: "search",
    placeholder: "5.1, induction …",
    value: given.get("search") ?? "",
    autocomplete: "off",
    spellcheck: false,
  });
  const role = make("select", { id: "of-role" }, make("option", { value: "", textContent: "any" }), ...roles(heads));
  role.value = given.get("role") ?? "";
  const column = make(
    "select",
    { id: "least-column", "aria-label": "Column with a minimum" },
    make("option", { value: "", textContent: "no minimum" }),
    ...columnOptions(),
  );
  const least = make("input", { type: "number", id: "least", step: "any", "aria-label": "Minimum" });
  const percent = make("span", { textContent: "%" });
  const [name, number] = (given.get("least") ?? "").split(":");
  column.value = String(columnNamed(name) ?? "");
  least.value = column.value ? (number ?? "") : "";
  const note = make("p", { id: "many", className: "note", role: "status" });

  const apply = () => {
    const at = column.value === "" ? null : Number(column.value);
    const isShare = at != null && columns[at].unit === "share";
    least.hidden = at == null;
    percent.hidden = !isShare;
    const bound = at == null || least.value === "" ? null : Number(least.value) / (isShare ? 100 : 1);
    const finds = finder(search.value);
    const shown = heads.filter(
      (head) =>
        finds(head) &&
        (!role.value || head.role === role.value) &&
        (at == null || bound == null || (head.values[at] ?? -Infinity) >= bound),
    );
    keep("search", search.value.trim());
    keep("role", role.value);
    keep("least", at == null || bound == null ? "" : `${columns[at].name}:${least.value}`);
    note.textContent =
      shown.length === heads.length
        ? `all: ${plural(heads.length, "head")}`
        : shown.length
          ? `${count(shown.length)} of ${count(heads.length)} heads`
          : `none of ${count(heads.length)} heads: search for less, or take a lower minimum`;
    show(shown);
  };
  search.oninput = apply;
  role.onchange = apply;
  least.oninput = apply;
  column.onchange = () => {
    least.value = "";
    apply();
    if (!least.hidden) least.focus();
  };
  const root = make(
    "form",
    {
      className: "filters",
      "aria-label": "Filter the heads",
      onsubmit: (/** @type {Event} */ e) => e.preventDefault(),
    },
    make("label", { className: "choice" }, "search ", search),
    make("label", { className: "choice" }, "role ", role),
    make("span", { className: "choice" }, "at least ", column, least, percent),
    note,
  );
  return { root, start: apply };
}

/** Options of all roles, with how many heads have each. */
function roles(/** @type {AtlasHead[]} */ heads) {
  /** @type {Map<string, number>} */
  const many = new Map();
  for (const { role } of heads) if (role) many.set(role, (many.get(role) ?? 0) + 1);
  return [...many]
    .sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]))
    .map(([value, heads_]) => make("option", { value, textContent: `${value} (${heads_})` }));
}

/** Whether a head is what was searched for: by its name, its layer alone, or words that all have to be there. */
export function finder(/** @type {string} */ typed) {
  const words = typed.trim().toLowerCase().split(/\s+/).filter(Boolean);
  return (/** @type {AtlasHead} */ { layer, head, role, words: said, evidence }) =>
    words.every((word) => {
      const place = /^l?(\d+)(?:[.h·](\d*))?$/.exec(word);
      if (place) return Number(place[1]) === layer && (!place[2] || Number(place[2]) === head);
      return `${role ?? ""} ${said} ${evidence}`.toLowerCase().includes(word);
    });
}
