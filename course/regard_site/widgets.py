"""Widgets: tables of a page that its reader may change, and the numbers that they begin with.

A widget is a comment in the Markdown, ``<!-- widget key=query … -->``. Each word sets one thing:

==============  ==================================================================================
query, key      names of tensors of the page, (T, D) each
value           likewise, (T, E), or numbers such as 4,2,9
x               a tensor that is query, key and value at once
scores          a tensor (T, T) in place of query and key; 0 for zeros
labels          a tensor whose rows have comments, as names of the rows; else numbers
from            another page of the same folder, on which the tensors stand
scale           none, where the page does not scale by 1/√D
mask            causal, or none
dropout         a probability; survives names the tensor whose entries above 0 are kept at first
query-at        the row that is looked at first
==============  ==================================================================================

A tensor is read where the page writes it down or where it prints it; its numbers are those that
the tests of the page have compared.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from html import escape

__all__ = ["printed", "widget"]

_WORD = re.compile(r"(?P<name>[\w-]+)=(?P<value>\S+)")
_NAMES = {"query", "key", "value", "x", "scores", "labels", "from", "scale", "mask", "dropout"}
_NAMES |= {"survives", "query-at"}
_TENSORS = ("query", "key", "value", "x", "scores", "survives")
_NUMBERS = re.compile(r"-?[\d.]+(?:,-?[\d.]+)*")

Table = list[list[float]]


def widget(settings: str, text: str, page: Callable[[str], str]) -> str:
    """Write the place where a widget starts.

    Args:
        settings: what the comment says after ``widget``.
        text: the page's Markdown.
        page: gives the Markdown of another page in its folder.

    Raises:
        ValueError: the comment says what no widget takes, or names numbers that the page lacks.
    """
    words = {match["name"]: match["value"] for match in _WORD.finditer(settings)}
    unknown = words.keys() - _NAMES
    if unknown or _WORD.sub("", settings).strip():
        raise ValueError(f"a widget takes {', '.join(sorted(_NAMES))}, each as name=value")
    source = page(words["from"]) if "from" in words else text
    data = json.dumps(_data(words, source, text), ensure_ascii=False)
    return f'<div class="widget" data-widget="{escape(data)}"></div>\n'


def _data(words: Mapping[str, str], source: str, text: str) -> dict[str, object]:
    """What the script takes, see `Settings` in static/widget/state.js."""
    tables = {name: _table(words[name], source) for name in _TENSORS[:-1] if name in words}
    if "survives" in words:
        tables["survives"] = _table(words["survives"], text)
    if "x" in tables:
        tables |= dict.fromkeys(("query", "key", "value"), tables["x"])
    if words.get("scores") == "0":
        size = len(tables["value"])
        tables["scores"] = [[0.0] * size for _ in range(size)]
    if not {"scores"} & tables.keys() and not {"query", "key"} <= tables.keys():
        raise ValueError("it needs query and key, or scores")
    rows = len(tables.get("query", tables.get("scores", [])))
    keys = len(tables["key"]) if "key" in tables else len(tables["scores"][0])
    return {
        **tables,
        "labels": _labels(words["labels"], source) if "labels" in words else _counted(keys),
        "scaled": "query" in tables and words.get("scale") != "none",
        "causal": words.get("mask") == "causal",
        "dropout": float(words.get("dropout", 0)),
        "queryAt": int(words.get("query-at", rows - 1)),
    }


def _counted(keys: int) -> list[str]:
    return [str(key) for key in range(keys)]


def _table(name: str, text: str) -> Table:
    """Numbers that the comment itself has, or a tensor of the page."""
    if _NUMBERS.fullmatch(name):
        return [[float(number)] for number in name.split(",")]
    return _written(name, text) or printed(name, text)


def _written(name: str, text: str) -> Table | None:
    """A tensor that code writes down: ``name = torch.tensor([…])``."""
    pattern = rf"^(?:>>> )?{re.escape(name)} = torch\.tensor\((?P<rows>[^()]*)\)"
    match = re.search(pattern, text, re.MULTILINE)
    return _numbers(match["rows"]) if match else None


def printed(name: str, text: str, at: int = 0) -> Table:
    """A tensor that a session prints, from ``>>> name`` on.

    Args:
        name: the statement after whose prompt it stands.
        text: the page's Markdown.
        at: which of several.

    Raises:
        ValueError: where the page prints no such thing.
    """
    pattern = rf"^>>> {re.escape(name)}(?:  #.*)?\ntensor\((?P<rows>[^()]*)\)"
    found = [match["rows"] for match in re.finditer(pattern, text, re.MULTILINE)]
    if len(found) <= at:
        raise ValueError(f"the page neither writes down nor prints {name}")
    return _numbers(found[at])


def _numbers(rows: str) -> Table:
    """The rows of a tensor's text; a vector is one row, −∞ is −inf."""
    rows = re.sub(r"#.*", "", rows)
    rows = re.sub(r"\s*dtype=\S+", "", rows).replace("-inf", "-1e999").strip().rstrip(",")
    numbers = ast.literal_eval(rows)
    table = numbers if isinstance(numbers[0], list) else [numbers]
    return [[float(number) for number in row] for row in table]


def _labels(name: str, text: str) -> list[str]:
    """The comments at the ends of a tensor's rows."""
    match = re.search(
        rf"^{re.escape(name)} = torch\.tensor\((?P<rows>[^()]*)\)", text, re.MULTILINE
    )
    labels = re.findall(r"\],  # (\S+)$", match["rows"], re.MULTILINE) if match else []
    if not labels:
        raise ValueError(f"the rows of {name} have no comments that name them")
    return labels
