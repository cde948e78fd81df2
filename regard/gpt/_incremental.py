"""Sequences that grow by a token at a time, and what the model says comes next.

Axis letters: B batch, N tokens of the longest sequence, T context, V vocabulary.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from regard.gpt.cache import GPTCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from regard.gpt.model import GPT


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients; afterwards the model is as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class IncrementalDecoder:
    """A batch of sequences, side by side with their ends together.

    The model reads the prompts once and from then on one token a step. Where a sequence has more
    tokens than the context, its oldest quarter is let go and the rest read anew, from position 0
    on: by its own length, not by the batch's. So a step costs one token, and one in T/4 steps the
    reading of 3T/4.

    Args:
        model: the model.
        prompts: ``(N,)`` ids each, at least one, on the model's device.
        tokens: how many may be added.
    """

    def __init__(self, model: GPT, prompts: Sequence[Int[Tensor, "N"]], tokens: int) -> None:
        self._model = model
        self._still = not any(module.training for module in model.modules())
        longest = max(len(prompt) for prompt in prompts)
        self._end = longest
        self._ids = prompts[0].new_zeros(len(prompts), longest + tokens)
        for row, prompt in zip(self._ids, prompts, strict=True):
            row[longest - len(prompt) : longest] = prompt
        context = model.config.context
        self._seen = [longest - min(len(prompt), context) for prompt in prompts]
        """Of each sequence, the first place in `_ids` that the model sees."""
        self._cache: GPTCache | None = None

    def next_logits(self) -> Float[Tensor, "B V"]:
        """Read what is new; what the model says comes next."""
        with self._evaluating(), torch.inference_mode():
            if self._cache is None or self._let_go():
                return self._read_anew()
            return self._model.next_logits(self._ids[:, self._end - 1 : self._end], self._cache)

    def append(self, token: Int[Tensor, "B"]) -> None:
        """Add a token to each sequence."""
        self._ids[:, self._end] = token
        self._end += 1

    def _let_go(self) -> bool:
        """Whether a sequence had more than the context, and has not any more."""
        context = self._model.config.context
        if self._end - min(self._seen) <= context:
            return False
        self._seen = [
            seen + max(1, context // 4) if self._end - seen > context else seen
            for seen in self._seen
        ]
        return True

    def _read_anew(self) -> Tensor:
        first = min(self._seen)
        padding = None
        if max(self._seen) > first:
            padding = torch.tensor([s - first for s in self._seen], device=self._ids.device)
        if self._cache is None:
            room = min(self._ids.shape[1] - first, self._model.config.context)
            self._cache = GPTCache(self._model.config, capacity=room, padding=padding)
        else:
            self._cache.reset(padding=padding)
        return self._model.next_logits(self._ids[:, first : self._end], self._cache)

    def _evaluating(self) -> AbstractContextManager[None]:
        """Switching every module over takes as long as a small model's step: only where need be."""
        return (
            nullcontext() if self._still and not self._model.training else evaluating(self._model)
        )
