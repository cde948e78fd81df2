"""Incremental decoding: one new token a step, with a cache of keys and values.

Axis letters: B batch, N tokens of the longest sequence, T context, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard._tensors import upload
from regard.gpt._step import step_logits
from regard.gpt.cache import GPTCache
from regard.gpt.model import GPT


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without dropout and gradients; afterwards the model is as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:  # a module before those within it
            if module.training != training:
                module.train(training)


class IncrementalDecoder:
    """A batch of sequences, left-padded so that they end together.

    The model reads the prompts once, then one token a step. Where a sequence, by its own length,
    has more tokens than the context, its oldest quarter is dropped and the rest read again from
    position 0. So a step costs one token, and every T/4 steps the reading of 3T/4 tokens.

    Args:
        model: the model.
        prompts: ``(N,)`` ids each, at least one, on the model's device.
        tokens: how many will be appended.
        model_is_fixed: whether no code but the sampler's runs between two steps, so that the model
            cannot change.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Int[Tensor, "N"]],
        tokens: int,
        *,
        model_is_fixed: bool = False,
    ) -> None:
        self._model = model
        self._model_is_fixed = model_is_fixed
        self._evaluates = not any(module.training for module in model.modules())
        longest = max(len(prompt) for prompt in prompts)
        self._end = longest
        self._ids = prompts[0].new_zeros(len(prompts), longest + tokens)
        for row, prompt in zip(self._ids, prompts, strict=True):
            row[longest - len(prompt) : longest] = prompt
        context = model.config.context
        self._starts = [longest - min(len(prompt), context) for prompt in prompts]
        """The index in `_ids` of the first token that the model reads, of each sequence."""
        self._cache: GPTCache | None = None

    def next_logits(self) -> Float[Tensor, "B V"]:
        """Read the new tokens; the logits of the next ones."""
        with self._evaluating(), torch.inference_mode():
            if self._cache is None or self._drop_oldest():
                return self._read_again()
            ids = self._ids[:, self._end - 1 : self._end]
            if self._model_is_fixed:
                logits = step_logits(self._model, ids, self._cache, unchanged=True)
                if logits is not None:
                    return logits
            return self._model.next_logits(ids, self._cache)

    def append(self, token: Int[Tensor, "B"]) -> None:
        """Add a token to each sequence; where none was drawn, the model reads token 0."""
        self._ids[:, self._end] = token.clamp(min=0) if token.is_cuda else token
        self._end += 1

    def _drop_oldest(self) -> bool:
        """Drop the oldest quarter of sequences longer than the context; whether there were any."""
        context = self._model.config.context
        if self._end - min(self._starts) <= context:
            return False
        self._starts = [
            start + max(1, context // 4) if self._end - start > context else start
            for start in self._starts
        ]
        return True

    def _read_again(self) -> Tensor:
        first = min(self._starts)
        padding = None
        if max(self._starts) > first:
            padding = torch.tensor([s - first for s in self._starts], device="cpu")
            padding = upload(padding, self._ids.device)
        if self._cache is None:
            room = min(self._ids.shape[1] - first, self._model.config.context)
            self._cache = GPTCache(self._model.config, capacity=room, padding=padding)
        else:
            self._cache.reset(padding=padding)
        return self._model.next_logits(self._ids[:, first : self._end], self._cache)

    def _evaluating(self) -> AbstractContextManager[None]:
        """Switch to evaluation if needed: that takes as long as a small model's step."""
        return (
            nullcontext()
            if self._evaluates and not self._model.training
            else evaluating(self._model)
        )
