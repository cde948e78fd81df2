"""Training batches: windows of text, and repeated random spans of tokens.

Axes: R rows of a batch, T tokens of a row, N tokens of the text.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import Error
from regard.gpt._loss import IGNORED
from regard.gpt.training._permutation import mix, permuted
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.schedule import context_length, is_focused
from regard.masks import Mask, documents

_ONE = 1 << 20  # fractions of rows are multiples of 1/_ONE
_RARE = 3e-3  # maximum frequency of a rare token in the text
_UNFOCUSED = 0.1  # weight in the loss of targets that `TrainConfig.focus` reduces
_COUNTED = 1 << 20  # tokens counted at once: a copy of all may not fit into memory
_ORDER, _SHIFT, _RUNS = range(3)  # keys of random numbers, by use


def require_window(tokens: int, context: int) -> None:
    """Raise `Error` where a text has no window of `context` tokens and their targets."""
    if tokens <= context:
        raise Error(
            f"the text has {tokens} tokens to train on and a window of context={context} "
            f"needs {context + 1}; give more text, or train with a smaller context"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The rows of one update, or a part of them.

    Attributes:
        ids: ``(R, T)`` int64.
        targets: ``(R, T)`` int64; the next token of each position, or `IGNORED`.
        weights: ``(R, T)`` float32; weight of each target in the loss, 0 where it is ignored.
        starts: ``(R,)``, start of each row in the text; -1 for a random span.
        passes: ``(R,)``, number of earlier passes over the text; 0 for a random span.
    """

    ids: Tensor
    targets: Tensor
    weights: Tensor
    starts: NDArray[np.int64]
    passes: NDArray[np.int64]

    def split(
        self, accumulate: int, *, rank: int, ranks: int
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return ids, targets and weights of each of a rank's forward passes; weights sum to 1.

        Every rank makes the same number of passes, since ranks wait for each other. A pass has as
        many rows as in a single process, so several ranks need fewer passes. A rank without rows
        for its last pass runs a row whose targets are all ignored.

        Args:
            accumulate: number of passes of a single process.
            rank: index of the rank.
            ranks: number of ranks that share the batch.
        """
        rows = len(self.ids)
        each = rows // accumulate
        own = slice(rank * rows // ranks, (rank + 1) * rows // ranks)  # differ by a row at most
        ids, targets = self.ids[own].split(each), self.targets[own].split(each)
        weights = (self.weights[own] / self.weights.sum()).split(each)
        passes = list(zip(ids, targets, weights, strict=True)) if len(self.ids[own]) else []
        idle = self.ids.new_zeros(1, self.ids.shape[1])
        most = -(-rows // ranks)
        missing = -(-most // each) - len(passes)
        return passes + [(idle, torch.full_like(idle, IGNORED), idle.float())] * missing


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """The batch of every update, as a pure function of its number.

    The text is divided into windows. A pass visits each of them once, in random order; the next
    pass shifts the boundaries, so at most a window's length is left out at either end. When windows
    become longer (`context_length`), a new pass begins.

    A fraction `config.repeats` of the rows, evenly distributed, holds a span of random tokens,
    repeated to fill the row. Such a row can only be continued by attending to the span's earlier
    copy, as an induction head does (Olsson et al., "In-context Learning and Induction Heads",
    2022). The first copy can't be predicted, so its targets are ignored. A span's length is random,
    an eighth to a half of the row, so that the copy is recognised by content and not by distance.

    In the first fraction `config.focus` of the updates a target has a tenth of its weight in the
    loss, unless it is rare in the text and occurred earlier in the same document of the row, as
    names do. Such a token is predicted by attending to its earlier occurrence; its gradient is
    small at first, and would otherwise be lost among those of unpredictable tokens.

    Args:
        tokens: ``(N,)`` ids of the text, in memory or memory-mapped.
        context: T of a full window.
        vocab_size: V; random tokens are below it.
        config: the recipe.
        end: the token that ends a document; None if the text is one document.

    Raises:
        Error: if the text has fewer than `context + 1` tokens.
    """

    tokens: NDArray[np.integer]
    context: int
    vocab_size: int
    config: TrainConfig
    end: int | None = None

    def __post_init__(self) -> None:
        require_window(len(self.tokens), self.context)

    def rows(self, step: int) -> int:
        """Return the number of rows of an update's batch: fewer for longer windows."""
        length = context_length(step, self.context, self.config)
        return self.config.batch * self.config.accumulate * (self.context // length)

    def batch(self, step: int) -> Batch:
        """Return the batch of an update.

        Args:
            step: the update's number, from 0.
        """
        length, first = self._phase(step)
        rows = self.rows(step)
        number = np.arange(rows, dtype=np.int64) + (step - first) * rows
        share = round(self.config.repeats * _ONE)
        runs_before = number * share // _ONE
        is_run = (number + 1) * share // _ONE > runs_before
        starts, passes = self._places(number - runs_before, length)
        starts[is_run], passes[is_run] = -1, 0
        copies, copy_targets = self._runs(step, int(is_run.sum()), length)

        tokens = torch.empty(rows, length + 1, dtype=torch.int64, device="cpu")  # (R, T + 1)
        spans = starts[~is_run, None] + np.arange(length + 1)
        tokens[~is_run] = torch.from_numpy(self.tokens[spans].astype(np.int64))
        tokens[is_run] = copies
        targets = tokens[:, 1:].clone()
        targets[is_run] = copy_targets
        return Batch(
            ids=tokens[:, :-1],
            targets=targets,
            weights=self._weights(step, tokens) * (targets != IGNORED),
            starts=starts,
            passes=passes,
        )

    def _weights(self, step: int, tokens: Tensor) -> Tensor:
        """Return the weight of each target in the loss, ``(R, T)``, of ignored ones too."""
        if not is_focused(step, self.config):
            return torch.ones(tokens[:, 1:].shape, device="cpu")
        returning = _returning(tokens, self.end)[:, 1:] & self._rare[tokens[:, 1:]]
        return torch.where(returning, 1.0, _UNFOCUSED)

    @cached_property
    def _rare(self) -> Tensor:
        """True for tokens that are rare in the text, ``(V,)``."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for start in range(0, len(self.tokens), _COUNTED):
            part = self.tokens[start : start + _COUNTED]
            counts += np.bincount(part, minlength=self.vocab_size)
        return torch.from_numpy(counts < _RARE * len(self.tokens))

    def _phase(self, step: int) -> tuple[int, int]:
        """Return the length of an update's windows, and the first update that has it."""
        length = context_length(step, self.context, self.config)
        steps = range(step + 1)
        return length, bisect_left(
            steps, length, key=lambda number: context_length(number, self.context, self.config)
        )

    def _places(
        self, number: NDArray[np.int64], length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start of each window, by number, and the passes before it."""
        windows = max(1, (len(self.tokens) - length) // length)
        spare = min(len(self.tokens) - 1 - windows * length, length - 1)
        passes, place = np.divmod(number, windows)
        starts = np.empty_like(number)
        for number_of_pass in range(int(passes[0]), int(passes[-1]) + 1):
            key = (self.config.seed, length, number_of_pass)
            here = passes == number_of_pass
            shift = mix(*key, _SHIFT) % (spare + 1)
            starts[here] = shift + length * permuted(place[here], windows, mix(*key, _ORDER))
        return starts, passes

    def _runs(self, step: int, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Return all random spans of an update: tokens and targets."""
        if count == 0:
            empty = torch.empty(0, length + 1, dtype=torch.int64, device="cpu")
            return empty, empty[:, 1:]
        generator = torch.Generator(device="cpu").manual_seed(mix(self.config.seed, step, _RUNS))
        least, most = max(1, length // 8), max(1, length // 2)
        sizes = torch.randint(least, most + 1, (count, 1), generator=generator, device="cpu")
        spans = torch.randint(self.vocab_size, (count, most), generator=generator, device="cpu")
        position = torch.arange(length + 1, device="cpu")
        rows = spans.gather(1, position % sizes)  # (count, T + 1)
        # The first copy, and the first token of the second, can't be predicted.
        targets = rows[:, 1:].masked_fill(position[:-1] < sizes, IGNORED)
        return rows, targets


def _returning(tokens: Tensor, end: int | None) -> Tensor:
    """Return True for tokens that occurred earlier in their document of the row, ``(R, N)``."""
    documents_before = torch.zeros_like(tokens) if end is None else _documents(tokens, end)
    pairs, order = (documents_before * (tokens.max() + 1) + tokens).sort(dim=-1, stable=True)
    again = torch.zeros_like(pairs, dtype=torch.bool)
    again[:, 1:] = pairs[:, 1:] == pairs[:, :-1]
    return torch.empty_like(again).scatter_(-1, order, again)


def _documents(ids: Tensor, end: int) -> Tensor:
    """Return the index of each token's document in its row; an end token belongs to it."""
    ends = ids == end
    return ends.cumsum(-1) - ends.long()


def document_mask(ids: Tensor, end: int | None) -> Mask | None:
    """Keep the documents of each row apart; an end token belongs to the document that it ends."""
    return None if end is None else documents(_documents(ids, end))
