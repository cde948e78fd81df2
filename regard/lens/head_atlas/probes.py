"""What is measured once the corpus is read: copying, retrieval, and what breaks without a head.

Axes: none of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from regard.errors import Error
from regard.lens import circuits
from regard.lens.head_atlas.corpus import Text
from regard.lens.head_atlas.examples import hashes
from regard.lens.head_atlas.needed import needed
from regard.lens.head_atlas.needle import retrieval
from regard.lens.head_atlas.reading import Document
from regard.lens.naming.heads import Heads

__all__ = ["Probes", "probe_heads"]

_DOCUMENTS = 4  # on which heads are switched off
_TOKENS = 512  # of each of them, at most
_HAYSTACKS = 16  # documents from which haystacks are drawn
_LONGEST = 2048  # tokens of a haystack, at most


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Further numbers of heads.

    Attributes:
        columns: of a column, its value by head such as "5.1".
        needed: of heads that carry a name, by head, what their tokens lose without them.
        unmeasured: what could not be measured, and why.
    """

    columns: dict[str, dict[str, float]]
    needed: dict[str, dict[str, Any]]
    unmeasured: dict[str, str]


def probe_heads(
    model: Any,
    heads: Heads,
    documents: Iterable[tuple[Document, Text]],
    *,
    length: int,
    seed: int,
    progress: bool | None,
) -> Probes:
    """Measure what needs runs of its own, on a sample of the documents drawn by the seed.

    Args:
        model: a `regard.models.LanguageModel`.
        heads: the heads with their names.
        documents: those that were read, each with its text.
        length: tokens of the longest haystack.
        seed: of the samples.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    drawn = heapq.nsmallest(
        _HAYSTACKS, documents, key=lambda one: int(hashes(seed + 2, one[0].number, 1))
    )
    columns: dict[str, dict[str, float]] = {"copying": {}}
    unmeasured: dict[str, str] = {}
    for head in heads:
        try:
            value = circuits.copying(model.module, head.layer, head.head)
        except (TypeError, ValueError) as error:
            unmeasured["copying"] = str(error)
            break
        columns["copying"][f"{head.layer}.{head.head}"] = value
    found: dict[str, dict[str, Any]] = {}
    if not model.predicts:
        return Probes(columns=columns, needed=found, unmeasured=unmeasured)
    try:
        texts = [text.content for _, text in drawn]
        looked = retrieval(
            model, texts, length=min(length, _LONGEST), seed=seed, progress=progress
        )
        for name, values in (
            ("retrieval", looked.score - looked.control),
            ("retrieval_margin", looked.margin),
        ):
            columns[name] = {
                f"{head.layer}.{head.head}": float(values[looked.layers.index(head.layer), head.head])
                for head in heads
            }
    except (Error, ValueError) as error:
        unmeasured["retrieval"] = str(error)
    ids = [torch.tensor(one.windows[0][:_TOKENS], device=model.device) for one, _ in drawn]
    try:
        every = needed(model, heads, ids[:_DOCUMENTS], seed=seed, progress=progress)
        found = {f"{layer}.{head}": asdict(one) for (layer, head), one in every.items()}
    except (Error, ValueError, TypeError) as error:
        unmeasured["needed"] = str(error)
    return Probes(columns=columns, needed=found, unmeasured=unmeasured)
