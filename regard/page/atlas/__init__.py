"""An atlas of heads as a folder of pages that open from disk: an overview, and a page a head.

A page opened by ``file://`` can neither fetch nor load modules. So each holds its data in a script
element that no browser runs, and all share one classic script, one style, and the columns:

    index.html             layer × head by any column, and the table of all heads
    L5H1/index.html        one head, with its examples
    static/atlas.js        both pages' script, bundled from `regard/page/static/atlas`
    static/atlas.css       the style of the page of `regard.explore`, and the atlas' own
    static/about.js        where the atlas comes from, and what its columns mean

A head's page holds what is this head's own. Its examples take most of the room: tokens are written
as one text, numbers to three figures, and a link's neighbours only where the example's window does
not have them.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from regard._files import replace_file
from regard.page.file.bundle import embedded, script, static, style
from regard.view.tokens import readable, visible

__all__ = ["AtlasPages", "write_atlas"]

_FIGURES = 4
"""Figures of a column's number; an example's have one less."""
_BESIDE = "\n"
"""What stands between two tokens: no token holds it, since a line break is shown as ↵."""


class AtlasPages(Protocol):
    """What the pages need of an atlas.

    Example:
        >>> from regard.page.atlas import AtlasPages
        >>> [name for name in ("about", "columns", "rows") if hasattr(AtlasPages, name)]
        ['about', 'columns', 'rows']
    """

    @property
    def about(self) -> Mapping[str, Any]:
        """Where it comes from: model, corpus, documents, tokens and the like."""

    @property
    def columns(self) -> Sequence[Mapping[str, Any]]:
        """Name, title, meaning, unit and group of each column."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Layer, head, role, words, evidence, discovery and the columns of each head."""

    def details(self, layer: int, head: int) -> Mapping[str, Any]:
        """Distances, classes of tokens, examples and the like of one head."""
        ...


def write_atlas(atlas: AtlasPages, folder: str | os.PathLike[str]) -> Path:
    """Write the pages of an atlas; files of the same names are replaced, others are left.

    Args:
        atlas: an atlas, such as `regard.lens.atlas` returns.
        folder: where to put them; it is created if it is missing.

    Returns:
        The overview, ``folder/index.html``, to be opened in a browser.

    Raises:
        OSError: the folder can't be written.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> from regard.page.atlas import write_atlas
        >>> row = {"layer": 0, "head": 0, "role": "other", "words": "other", "evidence": ""}
        >>> few = SimpleNamespace(
        ...     about={"model": "mine"}, columns=[], rows=[row],
        ...     details=lambda layer, head: {"examples": {}},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = write_atlas(few, folder)
        ...     index.name, (index.parent / "L0H0" / "index.html").is_file()
        ('index.html', True)
    """
    folder = Path(folder)
    columns = [column["name"] for column in atlas.columns]
    heads = [_head(row, columns) for row in atlas.rows]
    model = str(atlas.about.get("model", "a model"))
    _write(folder / "static" / "atlas.js", _script())
    _write(folder / "static" / "atlas.css", style() + static("atlas/atlas.css"))
    shared = embedded(
        {"about": dict(atlas.about), "columns": [dict(column) for column in atlas.columns]}
    )
    _write(folder / "static" / "about.js", f"const regardAtlas = {shared};\n")
    for place, head in enumerate(heads):
        around = {
            "previous": heads[place - 1] if place else None,
            "next": heads[place + 1] if place + 1 < len(heads) else None,
        }
        data = {
            "row": head,
            **{way: one and [one["layer"], one["head"]] for way, one in around.items()},
            **_details(atlas.details(head["layer"], head["head"])),
        }
        title = f"Head {head['layer']}.{head['head']} of {model}"
        name = f"L{head['layer']}H{head['head']}"
        _write(folder / name / "index.html", _page("head", title, data, to_top="../"))
    index = folder / "index.html"
    _write(index, _page("overview", f"Atlas of {model}", {"heads": heads}, to_top=""))
    return index


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode("utf-8", errors="replace"))


def _script() -> str:
    """Give the script of both pages; a classic one is not strict by itself."""
    return f'(() => {{\n"use strict";\n{script("atlas/main.js")}\n}})();\n'


def _page(kind: str, title: str, data: object, *, to_top: str) -> str:
    filled = {
        "KIND": kind,
        "TITLE": html.escape(title),
        "TOP": to_top,
        "DATA": embedded(data, ascii_only=False),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], static("atlas/page.html"))


def _head(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """A row of the table, with its numbers in the order of the columns."""
    return {
        "layer": int(row["layer"]),
        "head": int(row["head"]),
        "role": row.get("role"),
        "words": row.get("words") or row.get("role") or "",
        "evidence": row.get("evidence") or "",
        "discovery": row.get("discovery"),
        "values": [_number(row.get(name), _FIGURES) for name in columns],
        "margins": [_number(row.get(f"{name}_margin"), 2) for name in columns],
    }


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    sources: list[str] = []
    examples = {
        name: [_example(example, sources) for example in examples]
        for name, examples in (details.get("examples") or {}).items()
    }
    parts = ("resting", "profile", "classes", "histogram", "needed")
    rounded = {part: _rounded(details.get(part)) for part in parts}
    return {**rounded, "sources": sources, "examples": examples}


def _example(example: Mapping[str, Any], sources: list[str]) -> list[Any]:
    """One example as a list; `AtlasExample` of `atlas.d.ts` names its places."""
    source = str(example.get("source", example.get("document", "")))
    if source not in sources:
        sources.append(source)
    start, window = int(example["start"]), example["tokens"]
    links = []
    for link in example["links"]:
        place = int(link["position"])
        numbers = [_number(link.get(name), 3) for name in ("weight", "moved")]
        is_inside = start <= place < start + len(window)
        around = [] if is_inside else [_joined(link["tokens"]), link["at"]]
        links.append([place, *numbers, *around])
    numbers = [_number(example.get(n), 3) for n in ("value", "rest", "moved", "toward", "effect")]
    return [
        sources.index(source),
        int(example["position"]),
        start,
        _joined(window),
        *numbers,
        example.get("decile"),
        links,
    ]


def _joined(tokens: Sequence[str]) -> str:
    """Tokens as they are shown, as one text."""
    return _BESIDE.join(readable(token) or visible(token) for token in tokens)


def _number(value: object, figures: int) -> float | int | None:
    """Round to so many figures; None for what was not measured, and for what is no number."""
    if value is None or isinstance(value, str):
        return None
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{figures}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _rounded(part: Any) -> Any:
    """Round all numbers within lists and dictionaries; counts stay exact."""
    if isinstance(part, Mapping):
        return {name: _rounded(one) for name, one in part.items()}
    if isinstance(part, (list, tuple)):
        return [_rounded(one) for one in part]
    if part is None or isinstance(part, (str, bool, int)):
        return part
    return _number(part, _FIGURES)
