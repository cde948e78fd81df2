"""The text of a difference between two atlases: the heads that changed most, and what says so."""

from __future__ import annotations

import math

from regard.lens import AtlasDifference, Change
from regard.lens.head_atlas.columns import COLUMNS

__all__ = ["atlas_difference_text"]

_ROWS = 12  # heads that are listed; the others are counted
_TITLES = {column.name: column.title for column in COLUMNS}


def atlas_difference_text(difference: AtlasDifference) -> str:
    """Return a line a head that changed, by evidence, under what was tested."""
    rows = [row for row in difference.rows if row["discovery"]]
    one, other = (atlas.about["model"] for atlas in (difference.before, difference.after))
    models = f"{one}, before and after" if one == other else f"{one} → {other}"
    tested = sum(change.rate is not None for change in difference.changes)
    documents = difference.before.about["documents"]
    over = f"{documents} documents"
    if difference.groups < documents:
        over = f"{difference.groups} groups of {over}"
    lines = [
        f"{models}: {_counted(difference, len(rows))}",
        f"paired over {over}; {tested:,} differences tested, false discovery rate 5 %",
    ]
    cells = []
    for row in rows[:_ROWS]:
        own = difference.of(row["layer"], row["head"])
        change = next(one for one in own if one.column == row["column"])
        before, after = row["role_before"], row["role_after"]
        role = f"{before} → {after}" if before != after else before
        cells.append((f"{row['layer']}.{row['head']}", role, _words(change)))
    if cells:
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [
            f"{head:>{widths[0]}}  {role:<{widths[1]}}  {words}" for head, role, words in cells
        ]
    if len(rows) > _ROWS:
        lines.append(f"… {len(rows) - _ROWS} more: frame()")
    return "\n".join(lines)


def _counted(difference: AtlasDifference, changed: int) -> str:
    heads = len(difference.rows)
    if not changed:
        return f"none of {heads} heads changed"
    roles = sum(row["role_changed"] for row in difference.rows)
    named = f", {roles} of them in role" if roles else ""
    return f"{changed} of {heads} heads changed{named}"


def _words(change: Change) -> str:
    """Describe a change: the number before and after, and the difference with its interval."""
    margin = change.margin or 0.0
    digits = min(6, max(2, 1 - math.floor(math.log10(margin)))) if margin > 0 else 2
    before, after, difference = (
        f"{value:{sign}.{digits}f}".replace("-", "−")
        for value, sign in ((change.before, ""), (change.after, ""), (change.difference, "+"))
    )
    title = _TITLES[change.column]
    return f"{title} {before} → {after}: {difference} ± {margin:.{digits}f}, t = {_t(change)}"


def _t(change: Change) -> str:
    return f"{change.t or 0.0:.1f}".replace("-", "−")
