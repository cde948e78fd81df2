"""The state of an atlas: what is summed and kept so far, in one file that is replaced at once.

Shards of a corpus each have their own; merged, in any order, they equal the state of one run.

Axes: N heads of all layers, m rows of the uniform sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard._files import replace_file
from regard._shapes import Int
from regard.errors import Error
from regard.lens.head_atlas.examples import SAMPLED, Examples
from regard.lens.head_atlas.layer_reading import LISTS
from regard.lens.head_atlas.reading import DocumentRead
from regard.lens.head_atlas.sums import DocumentSums

__all__ = ["KEPT", "State", "difference_of"]

KEPT = 8
"""Documents of each list of the strongest places."""
_FORMAT = 3
_NO_HASH = 2**62


@dataclass(eq=False)
class State:
    """What was read so far.

    Attributes:
        about: what is read by what, which must be equal for states that are merged.
        shards: the shards that are in it, each "i/n".
        next_document: number of the first document that was not read; of all shards the least.
        heads: layer and head of each of the N heads.
        unmeasured: what could not be measured, and why.
        sums: over the documents.
        lists: the strongest places, by name.
        hashes: of the sampled rows, in order; 2⁶² for an empty place.
        sample: the sampled rows, in the same order.
        effects: number of documents in the sample for effects.
    """

    about: dict[str, Any]
    shards: list[str]
    next_document: int = 0
    heads: tuple[tuple[int, int], ...] = ()
    unmeasured: dict[str, str] = field(default_factory=dict)
    sums: DocumentSums = field(default_factory=DocumentSums)
    lists: dict[str, Examples] = field(default_factory=dict)
    hashes: Int[Tensor, " m"] = field(
        default_factory=lambda: torch.full((SAMPLED,), _NO_HASH, dtype=torch.int64, device="cpu")
    )
    sample: Examples | None = None
    effects: int = 0

    @property
    def lowest(self) -> dict[str, Tensor]:
        """Of each list, the value above which a place enters it."""
        return {name: table.lowest for name, table in self.lists.items()}

    @property
    def below(self) -> int:
        """The hash below which a row enters the sample."""
        return int(self.hashes[-1])

    def add(self, read: DocumentRead, heads: tuple[tuple[int, int], ...]) -> None:
        """Add a document."""
        self.heads = self.heads or heads
        self.sums.add(read.number, read.clustered, read.plain)
        for name, best in read.best.items():
            self._list(name).merge(best)
        for hashes, rows in read.sampled:
            self._sample(hashes, rows)

    def merge(self, other: State) -> None:
        """Add the state of other shards of the same corpus.

        Raises:
            Error: for a state of something else, or of the same shard.
        """
        key = difference_of(self.about, other.about)
        if key is not None:
            raise Error(
                f"shards {self.shards} and {other.shards} do not belong together: {key} is "
                f"{self.about[key]!r} and {other.about.get(key)!r}"
            )
        twice = {*self.shards} & {*other.shards}
        if twice:
            raise Error(f"shard {min(twice)} would be counted twice")
        self.heads = self.heads or other.heads
        self.shards = sorted([*self.shards, *other.shards])
        self.next_document = min(self.next_document, other.next_document)
        self.unmeasured |= other.unmeasured
        self.effects += other.effects
        self.sums.merge(other.sums)
        for name, table in other.lists.items():
            self._list(name).merge(table)
        if other.sample is not None:
            self._sample(other.hashes, other.sample)

    def _list(self, name: str) -> Examples:
        if name not in self.lists:
            self.lists[name] = Examples.empty(len(self.heads), KEPT)
        return self.lists[name]

    def _sample(self, hashes: Int[Tensor, " r"], rows: Examples) -> None:
        own = self.sample or Examples.empty(len(self.heads), SAMPLED)
        every = torch.cat([self.hashes, hashes])
        order = every.argsort(stable=True)[:SAMPLED]
        tensors, more = own.tensors(), rows.tensors()
        self.hashes = every[order]
        self.sample = Examples.restored(
            {name: torch.cat([one, more[name]], dim=1)[:, order] for name, one in tensors.items()}
        )

    def packed(self) -> bytes:
        """Return the state as one file in the format safetensors."""
        from safetensors.torch import save

        tensors = {"hashes": self.hashes}
        tensors |= {f"sums.{name}": one for name, one in self.sums.tensors().items()}
        tables = {**self.lists, **({} if self.sample is None else {"sample": self.sample})}
        for table, examples in tables.items():
            tensors |= {f"{table}.{name}": one for name, one in examples.tensors().items()}
        header = {
            "format": _FORMAT,
            "about": self.about,
            "shards": self.shards,
            "next_document": self.next_document,
            "heads": self.heads,
            "unmeasured": self.unmeasured,
            "documents": self.sums.documents,
            "effects": self.effects,
        }
        return save(tensors, {"atlas": json.dumps(header)})

    @classmethod
    def unpacked(cls, packed: bytes, origin: str) -> Self:
        """Restore what `packed` returned.

        Args:
            packed: the file.
            origin: where it comes from, for an error's message.

        Raises:
            Error: for a file that is damaged, or of another kind or version.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(packed)  # which checks the header's length
            size = int.from_bytes(packed[:8], "little")
            header = json.loads(json.loads(packed[8 : 8 + size])["__metadata__"]["atlas"])
            if header["format"] != _FORMAT:
                raise Error(f"{origin} is of another version of regard's atlas: make it anew")
            return cls._of(header, tensors)
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise Error(f"{origin} is no state of an atlas, or is damaged: make it anew") from error

    def save(self, path: Path) -> None:
        """Replace a file by this state; if that fails, the old one is kept.

        Raises:
            OSError: such as for a full disk.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, self.packed())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a state.

        Raises:
            Error: for a file that is damaged, or of another kind or version.
            OSError: for one that can't be read.
        """
        return cls.unpacked(path.read_bytes(), str(path))

    @classmethod
    def _of(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        def of(table: str) -> dict[str, Tensor]:
            own = f"{table}."
            return {n.removeprefix(own): t for n, t in tensors.items() if n.startswith(own)}

        return cls(
            about=header["about"],
            shards=header["shards"],
            next_document=header["next_document"],
            heads=tuple((layer, head) for layer, head in header["heads"]),
            unmeasured=header["unmeasured"],
            sums=DocumentSums.of(header["documents"], of("sums")),
            lists={name: Examples.restored(of(name)) for name in LISTS if of(name)},
            hashes=tensors["hashes"],
            sample=Examples.restored(of("sample")) if of("sample") else None,
            effects=header["effects"],
        )


def difference_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the first key by which two descriptions are not of one atlas; None if there is none.

    What the files of a corpus are called does not count: its fingerprint does.
    """
    keys = (key for key in one if key != "corpus")
    return next((key for key in keys if one[key] != other.get(key)), None)
