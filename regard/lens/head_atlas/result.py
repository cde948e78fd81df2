"""The atlas of a model: a row of numbers a head, its evidence, and examples of what it does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard._extras import needing
from regard._files import replace_files
from regard.errors import Error
from regard.lens.head_atlas.columns import COLUMNS
from regard.lens.head_atlas.difference import AtlasDifference
from regard.lens.head_atlas.examples import Examples
from regard.lens.head_atlas.layer_reading import BINS, DISTANCES, KINDS, LISTS
from regard.lens.head_atlas.scores import heads_of, rows_of
from regard.lens.head_atlas.state import State
from regard.lens.head_atlas.token_classes import CLASSES
from regard.lens.naming.heads import Heads

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Atlas", "document_numbers", "token_ids"]

_TABLE = "atlas.json"
_STATE = "atlas.safetensors"
_DECILES = 10
_SHOWN = 8  # rows of the uniform sample that a head shows
_OF_CLASSES = [
    "queries",
    "rest",
    "entropy",
    "keys",
    "keys_uniform",
    "moved",
    "toward",
    "predictions",
]


class Atlas:
    """What each head of a model does, over a corpus; made by `regard.lens.atlas`.

    Args:
        state: the sums and examples of all documents.
        tokens: the text of each token of the examples, by id.
        sources: where the documents of the examples come from, by number.
        probes: further numbers, of a column by head such as "5.1".
        needed: of heads that carry a name, by head, what their tokens lose without them.
        unmeasured: what could not be measured, and why.

    Example:
        >>> import regard
        >>> texts = ["Tom had a red kite. Tom wanted the red kite.", "The cat sat. The cat ran."]
        >>> atlas = regard.lens.atlas(regard.models.open(), texts, probes=False)
        >>> len(atlas.rows), atlas.about["documents"], sorted(atlas.details(0, 1)["examples"])
        (20, 2, ['deciles', 'moved', 'received', 'sample'])
    """

    def __init__(
        self,
        state: State,
        *,
        tokens: Mapping[int, str],
        sources: Mapping[int, str],
        probes: Mapping[str, Mapping[str, float]] | None = None,
        needed: Mapping[str, Any] | None = None,
        unmeasured: Mapping[str, str] | None = None,
    ) -> None:
        self.state = state
        self._tokens = dict(tokens)
        self._sources = dict(sources)
        self.probes = {name: dict(own) for name, own in (probes or {}).items()}
        self.needed = dict(needed or {})
        self.unmeasured = dict(state.unmeasured) | dict(unmeasured or {})

    @property
    def about(self) -> dict[str, Any]:
        """Where it comes from."""
        state = self.state
        return {
            **state.about,
            "effects": {"documents": state.effects, "share": state.about["effects"]},
            "unmeasured": self.unmeasured,
        }

    @property
    def columns(self) -> list[dict[str, str]]:
        """Name, title, meaning, unit and group of each number, of those that any head has."""
        known = {name for row in self.rows for name, value in row.items() if value is not None}
        return [asdict(column) for column in COLUMNS if column.name in known]

    @cached_property
    def heads(self) -> Heads:
        """The heads with their names."""
        return heads_of(self.state.sums, self.state.heads)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each head, layer by layer; None is what was not measured."""
        return rows_of(self.state.sums, self.heads, self.probes)

    def frame(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def to_parquet(self, path: str | Path) -> None:
        """Write the rows as a Parquet file.

        Raises:
            ModuleNotFoundError: without pyarrow, which the extra ``corpus`` installs.
        """
        with needing("corpus"):
            import pyarrow as pa  # noqa: F401 - pandas writes by it
        self.frame().to_parquet(path, engine="pyarrow", index=False)

    def __repr__(self) -> str:
        about = self.about
        return (
            f"Atlas({about['model']!r}: {len(self.rows)} heads, {about['tokens']:,} tokens of "
            f"{about['documents']:,} documents)"
        )

    def details(self, layer: int, head: int) -> dict[str, Any]:
        """Return everything that is known of one head, as plain numbers, lists and texts.

        Raises:
            IndexError: for a head that the model lacks.
        """
        try:
            number = self.state.heads.index((layer, head))
        except ValueError:
            raise IndexError(f"layer {layer} has no head {head} in this atlas") from None
        row = self.rows[number]
        return {
            "layer": layer,
            "head": head,
            "row": row,
            "resting": {words: row[f"rest_{kind}"] for kind, words in KINDS.items()},
            "profile": self._profile(number),
            "classes": self._classes(number),
            "histogram": {
                "edges": [edge / BINS for edge in range(BINS + 1)],
                "counts": [int(count) for count in self.state.sums["histogram"][number]],
            },
            "examples": self._examples(number),
            "needed": self.needed.get(f"{layer}.{head}"),
        }

    def _profile(self, number: int) -> dict[str, list[float]]:
        sums = self.state.sums
        used = int((sums["profile_uniform"][number] > 0).nonzero().max()) + 1
        each = {
            name: (own / own.sum().clamp_min(1e-300))[:used].tolist()
            for name, own in (
                ("share", sums["profile"][number]),
                ("uniform", sums["profile_uniform"][number]),
            )
        }
        return {"edges": list(DISTANCES[:used]), **each}

    def _classes(self, number: int) -> dict[str, dict[str, dict[str, float | None]]]:
        sums = self.state.sums
        columns = {
            name: sums[f"class_{name}"][number].tolist()
            for name in _OF_CLASSES
            if f"class_{name}" in sums
        }
        none = [0.0] * len(CLASSES)
        received, even = sum(columns["keys"]), sum(columns["keys_uniform"])
        query: dict[str, dict[str, float | None]] = {}
        key: dict[str, dict[str, float | None]] = {}
        for place, name in enumerate(CLASSES):
            count = columns["queries"][place]
            if not count:
                continue
            after = columns.get("predictions", none)[place]
            query[name] = {
                "queries": int(count),
                "resting": columns["rest"][place] / count,
                "entropy": columns["entropy"][place] / count,
                "moved": columns["moved"][place] / count if "moved" in columns else None,
                "toward": columns["toward"][place] / after if after else None,
            }
            key[name] = {
                "share": columns["keys"][place] / received if received else None,
                "uniform": columns["keys_uniform"][place] / even if even else None,
            }
        return {"query": query, "key": key}

    # Examples.

    def _examples(self, number: int) -> dict[str, list[dict[str, Any]]]:
        found = {
            name: [self._example(one) for one in self.state.lists[name].of(number)]
            for name in LISTS
            if name in self.state.lists
        }
        rows = [] if self.state.sample is None else self.state.sample.of(number)
        ranked = sorted(rows, key=lambda row: (row["value"], row["document"], row["position"]))
        deciles: dict[int, list[dict[str, Any]]] = {}
        for place, row in enumerate(ranked):
            deciles.setdefault(1 + place * _DECILES // len(ranked), []).append(row)
        found["deciles"] = [
            {**self._example(own[len(own) // 2]), "decile": decile}
            for decile, own in reversed(deciles.items())
        ]
        found["sample"] = [self._example(row) for row in rows[:_SHOWN]]
        return found

    def _example(self, row: Mapping[str, Any]) -> dict[str, Any]:
        rest, moved, toward, effect = (
            None if number != number else number  # noqa: PLR0124 - NaN
            for number in row["numbers"]
        )
        links = [
            {
                "position": position,
                "weight": weight,
                "moved": None if carried != carried else carried,  # noqa: PLR0124 - likewise
                "tokens": [self._tokens[one] for one in near if one >= 0],
                "at": int(near[0] >= 0),
            }
            for position, weight, carried, near in zip(
                *(row[f"link_{name}"] for name in ("position", "weight", "moved", "tokens")),
                strict=True,
            )
            if position >= 0
        ]
        return {
            "document": row["document"],
            "source": self._sources.get(row["document"], ""),
            "position": row["position"],
            "start": row["start"],
            "tokens": [self._tokens[one] for one in row["window"] if one >= 0],
            "value": row["value"],
            "rest": rest,
            "moved": moved,
            "toward": toward,
            "effect": effect,
            "links": links,
        }

    def diff(self, after: Atlas) -> AtlasDifference:
        """Return what changed in each head from this atlas to another, of the same documents.

        Such as a base model and a tuned one, two checkpoints, or a model and its quantised form;
        only the two atlases are needed, made or loaded. See `AtlasDifference`.

        Args:
            after: the other atlas: same corpus, same length of windows, a model of the same shape.

        Raises:
            Error: for an atlas of another corpus, length or number of heads.
        """
        return AtlasDifference(self, after)

    # Files.

    def save(self, folder: str | Path) -> None:
        """Write `atlas.json`, the table, and `atlas.safetensors`, all sums and examples.

        Raises:
            OSError: such as for a full disk; files that were there are kept.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "about": self.about,
            "columns": self.columns,
            "rows": self.rows,
            "tokens": self._tokens,
            "sources": self._sources,
            "probes": self.probes,
            "needed": self.needed,
        }
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        replace_files({folder / _STATE: self.state.packed(), folder / _TABLE: text.encode()})

    @classmethod
    def load(cls, folder: str | Path) -> Atlas:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: for a folder without an atlas.
            Error: for damaged files.
        """
        folder = Path(folder)
        state = State.load(folder / _STATE)
        try:
            content = json.loads((folder / _TABLE).read_bytes())
            texts = {int(one): text for one, text in content["tokens"].items()}
            return cls(
                state,
                tokens={one: texts[one] for one in token_ids(state)},
                sources={int(one): text for one, text in content["sources"].items()},
                probes=content["probes"],
                needed=content["needed"],
                unmeasured=content["about"]["unmeasured"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Error(f"{folder / _TABLE} is no table of an atlas: make it anew") from error


def token_ids(state: State) -> list[int]:
    """Return the ids of the tokens that examples show."""
    tables: Sequence[Examples] = [
        *state.lists.values(),
        *([] if state.sample is None else [state.sample]),
    ]
    ids = [one.flatten() for table in tables for one in (table.window, table.link_tokens)]
    found: list[int] = torch.cat(ids).unique().tolist() if ids else []
    return [one for one in found if one >= 0]


def document_numbers(state: State) -> set[int]:
    """Return the numbers of the documents that examples come from."""
    tables = [*state.lists.values(), *([] if state.sample is None else [state.sample])]
    return {one for table in tables for one in table.document.unique().tolist() if one >= 0}
