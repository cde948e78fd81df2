"""Reads the folder that HeadVis' frontend shows, as an atlas.

Nothing in it is trusted: sizes are limited, every field that is taken is checked, and an error
names file and field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.lens.head_atlas.headvis import METRICS
from regard.lens.head_atlas.headvis_tree import MEANINGS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HeadVis", "load_headvis"]

_LARGEST = {"config.json": 2**24, "scatter_data.json": 2**26}  # bytes
_LARGEST_HEAD = 2**26  # bytes
_MOST_HEADS = 2**17
_MOST_METRICS = 256
_MOST_SEQUENCES = 2**12
_MOST_TOKENS = 2**17  # of a sequence
_MOST_INTERVALS = 1000
_WINDOW = 24  # tokens that are shown either side of a query
_LINKS = 8  # keys of a query that are shown
_UNKNOWN = "not measured"


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadVis:
    """A tree of HeadVis, with the attributes of an `Atlas`; what it does not hold is None.

    Example:
        >>> import regard
        >>> regard.lens.load_headvis("none")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: ...
    """

    folder: Path
    about: dict[str, Any]
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]

    def frame(self) -> pd.DataFrame:
        """Return the table, a row a head."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def details(self, layer: int, head: int) -> dict[str, Any]:
        """Read one head's file.

        Of each sequence the query with the largest weight is an example, with its strongest keys;
        position 0 is left out in both, as HeadVis leaves it out. They stand under ``deciles``, an
        interval as the last decile of it.

        Raises:
            KeyError: for a head that the tree does not have.
            ValueError: for a file that is not as it should be.
        """
        row = next((r for r in self.rows if (r["layer"], r["head"]) == (layer, head)), None)
        if row is None:
            raise KeyError(f"{self.folder} has no head {layer}.{head}")
        path = self.folder / "heads" / f"L{layer}H{head}.json"
        content = _Fields(path, _parse(path, _LARGEST_HEAD))
        sequences = content.take("sequences", list)
        if len(sequences) > _MOST_SEQUENCES:
            raise content.error("sequences", f"has {len(sequences)}, above {_MOST_SEQUENCES}")
        found = [
            _example(_Fields(path, one, f"sequences[{i}]."), self.about)
            for i, one in enumerate(sequences)
        ]
        edges, mass = _bins(content, "qk_distance_histogram")
        whole = sum(mass)
        bounds, counts = _bins(content, "histogram")
        return {
            "layer": layer,
            "head": head,
            "row": row,
            "resting": dict.fromkeys(("first token", "separator", "other")),
            "profile": {
                "edges": edges[:-1],
                "share": [value / whole if whole > 0 else None for value in mass],
                "uniform": [None] * len(mass),
            },
            "classes": {"query": {}, "key": {}},
            "histogram": {"edges": bounds, "counts": counts},
            "examples": {
                "moved": [],
                "received": [],
                "effect": [],
                "deciles": [example for example in found if example is not None],
                "sample": [],
            },
            "needed": None,
        }


def load_headvis(folder: str | Path) -> HeadVis:
    """Open a tree of HeadVis, as `export_headvis` or Neuronpedia's scripts write it.

    Args:
        folder: the one that holds ``config.json``.

    Returns:
        What has the attributes of an `Atlas`; each head's file is read when it is asked for.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: for a file that is too large or not as it should be; it names file and field.

    Example:
        >>> import regard, tempfile
        >>> atlas = regard.lens.atlas(regard.models.open(), ["The cat sat on."], probes=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tree = regard.lens.export_headvis(atlas, folder, name="tiny", dataset="cats")
        ...     regard.lens.load_headvis(tree).about["corpus"]
        ['cats']
    """
    root = Path(folder)
    config = _Fields(
        root / "config.json", _parse(root / "config.json", _LARGEST["config.json"])
    ).flat()
    pattern = config.get("head_data_pattern", str, "L{layer}H{head}.json")
    if pattern != "L{layer}H{head}.json":
        raise config.error(
            "head_data_pattern", f"is {pattern!r}, expected 'L{{layer}}H{{head}}.json'"
        )
    metrics = config.get("metrics", list, list(METRICS))
    if len(metrics) > _MOST_METRICS or not all(isinstance(metric, str) for metric in metrics):
        raise config.error("metrics", f"must be at most {_MOST_METRICS} names")
    described = config.get("metric_descriptions", dict, {})
    path = root / "scatter_data.json"
    table = _parse(path, _LARGEST["scatter_data.json"])
    if not isinstance(table, list) or len(table) > _MOST_HEADS:
        raise ValueError(f"{path} must be a list of at most {_MOST_HEADS} heads")
    rows = [_row(_Fields(path, one, f"[{i}]."), metrics) for i, one in enumerate(table)]
    if len({(row["layer"], row["head"]) for row in rows}) < len(rows):
        raise ValueError(f"{path} has a head twice")
    rows.sort(key=lambda row: (row["layer"], row["head"]))
    return HeadVis(
        folder=root,
        about={
            "model": config.take("model_name", str),
            "model_fingerprint": None,
            "corpus": [config.take("dataset_name", str)],
            "documents": config.whole("n_sequences"),
            "tokens": None,
            "duplicates": None,
            "strided": None,
            "length": config.whole("seq_len"),
            "seed": None,
            "effects": {"documents": None, "share": None},
            "made_with": "HeadVis",
            "dtype": config.take("dtype", str),
            "intervals": config.whole("n_intervals", 1, _MOST_INTERVALS),
            "torch": None,
            "threads": None,
        },
        columns=[
            {
                "name": metric,
                "title": metric.replace("_", " "),
                "meaning": MEANINGS.get(metric) or str(described.get(metric, _UNKNOWN)),
                "unit": {"pattern_entropy": "nats", "qk_distance": "tokens"}.get(metric, ""),
                "group": "headvis",
            }
            for metric in metrics
        ],
        rows=rows,
    )


def _row(entry: _Fields, metrics: Sequence[str]) -> dict[str, Any]:
    known = {
        "role": _UNKNOWN,
        "words": _UNKNOWN,
        "evidence": _UNKNOWN,
        "discovery": None,
    }
    return (
        {"layer": entry.whole("layer", 0, 2**16), "head": entry.whole("head", 0, 2**16)}
        | known
        | {metric: entry.number(metric) for metric in metrics}
    )


def _example(entry: _Fields, about: dict[str, Any]) -> dict[str, Any] | None:
    """Return the query of the largest weight, and its keys; None if nothing is beside key 0."""
    tokens = entry.take("tokens", list)
    size = len(tokens)
    if size > _MOST_TOKENS or not all(isinstance(token, str) for token in tokens):
        raise entry.error("tokens", f"must be at most {_MOST_TOKENS} strings")
    indices, values = entry.take("attention_indices", list), entry.take("attention_values", list)
    if len(indices) != len(values):
        raise entry.error("attention_values", f"has {len(values)} for {len(indices)} indices")
    by_query: dict[int, list[tuple[float, int]]] = {}
    for index, value in zip(indices, values, strict=True):
        if not _is_number(value) or not 0 <= value <= 1.01:
            raise entry.error("attention_values", f"holds {str(value)[:40]!r}, not a weight")
        if not _is_whole(index) or not 0 <= index < size**2 or index % size > index // size:
            raise entry.error(
                "attention_indices", f"holds {str(index)[:40]!r}, no earlier key of {size} tokens"
            )
        if index % size:
            by_query.setdefault(index // size, []).append((-float(value), index % size))
    if not by_query:
        return None
    query = min(by_query, key=lambda q: (min(by_query[q]), q))
    links = sorted(by_query[query])[:_LINKS]
    start = max(0, query - _WINDOW)
    interval = entry.whole("interval", 0, _MOST_INTERVALS)
    return {
        "document": entry.whole("sequence_id", default=0),
        "source": about["corpus"][0],
        "position": query,
        "start": start,
        "tokens": tokens[start : query + _WINDOW + 1],
        "value": -links[0][0],
        "decile": min(10, math.ceil(10 * interval / about["intervals"])),
        "rest": None,
        "moved": None,
        "toward": None,
        "effect": None,
        "links": [
            {
                "position": key,
                "weight": -weight,
                "moved": None,
                "tokens": tokens[key - 1 : key + 2],
                "at": 1,
            }
            for weight, key in links
        ],
    }


def _bins(content: _Fields, name: str) -> tuple[list[float], list[float]]:
    inner = _Fields(content.path, content.take(name, dict), f"{name}.")
    edges, values = inner.take("bin_edges", list), inner.take("bin_values", list)
    if len(edges) != len(values) + 1 or len(values) > 10_000:
        raise inner.error("bin_edges", f"has {len(edges)} for {len(values)} values")
    for field, numbers in (("bin_edges", edges), ("bin_values", values)):
        if not all(_is_number(number) and number >= 0 for number in numbers):
            raise inner.error(field, "must be numbers of at least 0")
    return edges, values


class _Fields:
    """The fields of a JSON object, each taken with a check that names file and field."""

    def __init__(self, path: Path, content: object, prefix: str = "") -> None:
        if not isinstance(content, dict):
            raise ValueError(  # noqa: TRY004 - a file with a fault, not an argument
                f"{path}: {prefix.rstrip('.') or 'the whole'} must be an object"
            )
        self.path, self._content, self._prefix = path, content, prefix

    def error(self, name: str, says: str) -> ValueError:
        return ValueError(f"{self.path}: {self._prefix}{name} {says}")

    def flat(self) -> _Fields:
        """Return all fields, those of the run before those of the frontend, as their loaders do."""
        run = self._content.get("pipeline_config")
        return _Fields(self.path, self._content | (run if isinstance(run, dict) else {}))

    def get(self, name: str, kind: type, default: Any) -> Any:
        return default if self._content.get(name) is None else self.take(name, kind)

    def take(self, name: str, kind: type) -> Any:
        value = self._content.get(name)
        if not isinstance(value, kind):
            words: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
            missing = "is missing" if value is None else f"is a {type(value).__name__}"
            raise self.error(name, f"{missing}; expected {words[kind]}")
        return value

    def whole(
        self, name: str, least: int = 0, most: int = 2**53, default: int | None = None
    ) -> int:
        value = self._content.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"must be a whole number of {least} to {most}")
        return value

    def number(self, name: str) -> float | None:
        value = self._content.get(name)
        if value is None:
            return None
        if not _is_number(value):
            raise self.error(name, f"is {str(value)[:40]!r}, not a number")
        return float(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return -1e300 < value < 1e300


def _parse(path: Path, most: int) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; give the folder with config.json in it")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} is larger than {most // 2**20} MiB")
    try:
        return json.loads(data, parse_constant=lambda _: None)  # NaN is what is not known
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
