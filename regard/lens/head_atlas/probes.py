"""What is measured once a corpus is read: copying, retrieval, and what breaks without a head."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from regard.errors import Error
from regard.lens import circuits
from regard.lens.head_atlas.corpus import Corpus, Text, documents_of
from regard.lens.head_atlas.examples import hashes
from regard.lens.head_atlas.needed import needed
from regard.lens.head_atlas.needle import retrieval
from regard.lens.head_atlas.reading import Document
from regard.lens.head_atlas.result import Atlas
from regard.lens.naming.heads import Heads

__all__ = ["probe_heads"]

_DOCUMENTS = 4  # on which heads are switched off
_TOKENS = 512  # of each of them, at most
_HAYSTACKS = 16  # documents from which haystacks are drawn
_LONGEST = 2048  # tokens of a haystack, at most


def probe_heads(atlas: Atlas, model: Any, corpus: Corpus, *, progress: bool | None) -> None:
    """Measure what needs runs of its own, on documents that the atlas' seed draws.

    Copying is of the weights alone. Retrieval is measured in 16 documents, the loss without named
    heads on the first 512 tokens of four.

    Args:
        atlas: takes what is measured.
        model: a `regard.models.LanguageModel`.
        corpus: what the atlas was read of.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    about = atlas.state.about
    drawn = heapq.nsmallest(
        _HAYSTACKS,
        _read_documents(model, corpus, about["last_document"], about["length"]),
        key=lambda one: int(hashes(about["seed"] + 2, one[0].number, 1)),
    )
    _add_copying(atlas, model, atlas.heads)
    if not model.predicts:
        return
    length, seed = min(about["length"], _LONGEST), about["seed"]
    texts = [text.content for _, text in drawn]
    try:
        found = retrieval(model, texts, length=length, seed=seed, progress=progress)
    except (Error, ValueError) as error:  # such as texts that are too short
        atlas.unmeasured["retrieval"] = str(error)
    else:
        for name, values in (
            ("retrieval", found.score - found.control),
            ("retrieval_margin", found.margin),
        ):
            atlas.probes[name] = {
                f"{one.layer}.{one.head}": float(values[found.layers.index(one.layer), one.head])
                for one in atlas.heads
            }
    ids = [torch.tensor(one.windows[0][:_TOKENS], device=model.device) for one, _ in drawn]
    try:
        every = needed(model, atlas.heads, ids[:_DOCUMENTS], seed=seed, progress=progress)
    except (Error, TypeError, ValueError, NotImplementedError) as error:
        atlas.unmeasured["needed"] = str(error)
        return
    atlas.needed.update({f"{place[0]}.{place[1]}": asdict(one) for place, one in every.items()})


def _add_copying(atlas: Atlas, model: Any, heads: Heads) -> None:
    copying = {}
    for head in heads:
        try:
            value = circuits.copying(model.module, head.layer, head.head)
        except (TypeError, ValueError) as error:  # matrices of a kind that circuits does not know
            atlas.unmeasured["copying"] = str(error)
            return
        copying[f"{head.layer}.{head.head}"] = value
    atlas.probes["copying"] = copying


def _read_documents(
    model: Any, corpus: Corpus, last: int, length: int
) -> Iterator[tuple[Document, Text]]:
    """Yield the documents that were read, each with its text."""
    latest: list[Text] = []

    def texts() -> Iterator[Text]:
        for number, text in enumerate(corpus):
            if number >= last:
                return
            latest[:] = [text]
            yield text

    for document in documents_of(texts(), model, tokens=None, length=length):
        yield document, latest[0]
