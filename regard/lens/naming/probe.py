"""Runs a model on a text made to show what its heads do: random tokens, twice over.

Axes: T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard._shapes import Int
from regard.lens import circuits
from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.roles import ENOUGH, Role
from regard.record.layer import Layer

__all__ = ["probe", "random_twice"]

_LINE = 128  # tokens of the line that comes twice


class _Tokenizer(Protocol):
    def tokens(self, ids: Iterable[int], /) -> list[str]: ...


class _Prompt(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def added(self) -> Sequence[bool]: ...


class _Model(Protocol):
    """A model that reads text, as a `regard.models.LanguageModel`."""

    module: nn.Module

    @property
    def tokenizer(self) -> _Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int | None: ...
    @property
    def device(self) -> torch.device: ...

    def read(self, text: str, /) -> _Prompt: ...
    def read_layers(
        self, ids: Int[Tensor, " T"], read: Callable[[Layer], Any], /
    ) -> tuple[Sequence[tuple[Layer, Any]], Any]: ...


def probe(model: _Model, *, seed: int = 0) -> Heads:
    """Name the heads of a model on random tokens twice over, where each has something to do.

    On prose a head may find nothing to do: what repeats there is little. Here every token of the
    second copy has one earlier copy, no token is more likely than another, and what is near says
    nothing. This is the text on which Olsson et al. 2022 (arXiv:2209.11895) measure induction. A
    line of 128 different tokens, or as many as fit twice into the context, is drawn from the
    tokens that are letters alone, and comes twice, between the tokens that the tokenizer adds to
    every text. Nothing is said of separators, of which there are none.

    `induction` is named by where a head looks. Whether it also copies what it finds is
    `HeadScores.copying`, computed for these heads where `circuits.copying` knows the model; an
    induction head may have a negative one.

    Args:
        model: a `regard.models.LanguageModel`.
        seed: of the draw.

    Raises:
        ValueError: for a model with too few such tokens, or too short a context.
        RecordError: for attention that cannot be recorded.

    Example:
        >>> import regard
        >>> heads = regard.lens.probe(regard.models.open(None))
        >>> "induction" in {head.role for head in heads}
        True
    """
    ids, names = random_twice(model, seed)

    def read(layer: Layer) -> Heads:
        return score_heads([layer], (names,), progress=False)

    results, _ = model.read_layers(torch.tensor(ids, device=model.device), read)
    return Heads([_with_copying(model.module, head) for _, heads in results for head in heads])


def random_twice(model: _Model, seed: int) -> tuple[list[int], tuple[str, ...]]:
    """Draw the text: its ids and the names of its tokens."""
    names = ((token, model.tokenizer.tokens([token])[0]) for token in range(model.vocab_size))
    ordinary = {name: token for token, name in names if name.strip().isalpha()}
    if not ordinary:
        raise ValueError("model has no token of letters alone, of which a text could be drawn")
    prompt = model.read(next(iter(ordinary)))
    own = [place for place, added in enumerate(prompt.added) if not added]
    before, after = list(prompt.ids[: own[0]]), list(prompt.ids[own[-1] + 1 :])
    room = _LINE if model.context is None else (model.context - len(before) - len(after)) // 2
    length = min(_LINE, room, len(ordinary))
    if length < ENOUGH:
        raise ValueError(
            f"model has {len(ordinary)} tokens of letters alone and a context of {model.context}: "
            f"no line of {ENOUGH} different ones fits in twice"
        )
    generator = torch.Generator(device="cpu").manual_seed(seed)
    drawn = torch.randperm(len(ordinary), generator=generator, device="cpu")[:length].tolist()
    every = list(ordinary.items())
    line = [every[place] for place in drawn]
    ids = [*before, *(token for _, token in line * 2), *after]
    parts = [model.tokenizer.tokens([token])[0] for token in (*before, *after)]
    start, stop = parts[: len(before)], parts[len(before) :]
    return ids, (*start, *(name for name, _ in line * 2), *stop)


def _with_copying(module: nn.Module, head: HeadScores) -> HeadScores:
    if head.role is not Role.INDUCTION:
        return head
    try:
        return replace(head, copying=circuits.copying(module, head.layer, head.head))
    except (TypeError, ValueError):  # its matrices are of a kind that circuits does not know
        return head
