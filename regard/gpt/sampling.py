"""Sampling the next token from the model's logits.

Axis letters: B batch, V vocabulary.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard._tensors import upload
from regard.gpt.config import Sampling

NO_TOKEN = -1
"""The id drawn on CUDA from logits that are not finite."""

_STEPS = 256  # whose random numbers are copied to a GPU at once
_BITS = 48  # of a random number: 1 − 2⁻⁴⁸ times a float64 is still below it


class Sampler:
    """Samples the tokens of some sequences, step by step.

    Args:
        sampling: the settings.
        prompts: the ids that each sequence begins with.
        vocab_size: V.
        device: where the logits will be.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Int[Tensor, "N"]],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._sampling = sampling
        self._step = 0
        self._uniforms: _Uniforms | None = None
        if sampling.temperature > 0:
            drawn = sampling.seed is None
            seed = int(torch.randint(2**63 - 1, (), device="cpu")) if drawn else sampling.seed or 0
            self._uniforms = _Uniforms(seed, _copies(prompts), device)
        self._held: Tensor | None = None  # (B, V): the tokens that each sequence holds
        if sampling.repetition_penalty != 1:
            shape = (len(prompts), vocab_size)
            self._held = torch.zeros(shape, dtype=torch.bool, device=device)
            for row, prompt in zip(self._held, prompts, strict=True):
                row[prompt.to(device).long()] = True

    def draw(self, logits: Float[Tensor, "B V"]) -> Int[Tensor, "B"]:
        """The next token of each sequence; on CUDA `NO_TOKEN` where there is none.

        Raises:
            ValueError: the largest logit of a sequence is not finite, except on CUDA, which would
                have to be waited for; see `require_tokens`.
        """
        likeliest, chosen = logits.max(dim=-1)  # (B,)
        if not logits.is_cuda and not all(map(isfinite, likeliest.tolist())):
            raise _not_finite()
        if self._held is not None:
            logits = penalised(logits, self._held, self._sampling.repetition_penalty)
            chosen = logits.argmax(dim=-1)
        if self._uniforms is not None:
            shares = probabilities(logits, self._sampling)
            chosen = pick(shares, self._uniforms.at(self._step))
            if logits.is_cuda:  # of shares that are NaN it picks a token beyond the last
                chosen = chosen.clamp(max=logits.shape[-1] - 1)
        self._step += 1
        if self._held is not None:
            self._held.scatter_(1, chosen[:, None], value=True)
        return torch.where(likeliest.isfinite(), chosen, NO_TOKEN) if logits.is_cuda else chosen


class _Uniforms:
    """The random numbers of some sequences, copied to their device many steps at once.

    Args:
        seed: of the text.
        copies: how many equal prompts come before each, ``(B,)`` on the device.
        device: where the numbers are needed.
    """

    def __init__(self, seed: int, copies: Int[Tensor, "B"], device: torch.device) -> None:
        self._seed, self._copies, self._device = seed, copies, device
        self._first = 0
        self._table: Tensor | None = None

    def at(self, step: int) -> Float[Tensor, "B"]:
        """The numbers of a step; steps are asked for in order."""
        if self._table is None or step - self._first == len(self._table):
            self._first = step
            count = _STEPS if self._device.type == "cuda" else 1
            rows = [
                [uniform(self._seed, copy, step + i) for copy in range(len(self._copies))]
                for i in range(count)
            ]
            table = upload(torch.tensor(rows, dtype=torch.float64, device="cpu"), self._device)
            self._table = table[:, self._copies]
        return self._table[step - self._first]


def require_tokens(tokens: Int[Tensor, "..."]) -> None:
    """Require that drawn tokens, on the CPU, are tokens.

    Raises:
        ValueError: the logits that one was drawn from were not finite.
    """
    if bool((tokens == NO_TOKEN).any()):
        raise _not_finite()


def _not_finite() -> ValueError:
    return ValueError(
        "the model's logits are not finite, so none is the largest: its weights "
        "are damaged or its training diverged; use another model"
    )


def penalised(
    logits: Float[Tensor, "B V"], present: Bool[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Make the tokens that a sequence holds less likely, or more with a penalty below 1."""
    bounds = torch.finfo(logits.dtype)
    penalty = min(max(penalty, bounds.tiny), bounds.max)  # else it would be 0 or infinite there
    moved = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(present, moved.clamp(bounds.min, bounds.max), logits)


def probabilities(logits: Float[Tensor, "B V"], sampling: Sampling) -> Float[Tensor, "B V"]:
    """The distribution of the next token, in float32 at least: all filters, then a softmax."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    coldest = torch.finfo(logits.dtype).tiny  # a divisor below it would be 0
    centred = logits - logits.amax(dim=-1, keepdim=True)
    scaled = centred / max(sampling.temperature, coldest)
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(~_top_k(logits, sampling.top_k), -torch.inf)
    if sampling.top_p < 1:
        scaled = scaled.masked_fill(~_top_p(scaled, sampling.top_p), -torch.inf)
    shares = torch.softmax(scaled, dim=-1)
    if sampling.min_p > 0:
        few = shares < sampling.min_p * shares.amax(dim=-1, keepdim=True)
        shares = torch.softmax(scaled.masked_fill(few, -torch.inf), dim=-1)
    return shares


def pick(shares: Float[Tensor, "B V"], uniform: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The token at which the running sum of the probabilities passes a number in [0, 1).

    In the order of the ids, not of the probabilities: two tokens that are almost equally likely
    then change nothing by changing places.
    """
    running = shares.double().cumsum(dim=-1)  # (B, V)
    drawn = uniform[:, None] * running[:, -1:]  # below the last entry
    return torch.searchsorted(running, drawn, right=True)[:, 0]


def uniform(seed: int, copy: int, step: int) -> float:
    """A random number in [0, 1) that is a function of three others."""
    digest = blake2b(struct.pack("<3Q", seed, copy, step), digest_size=_BITS // 8).digest()
    return int.from_bytes(digest, "little") / 2**_BITS


def _copies(prompts: Sequence[Int[Tensor, "N"]]) -> Int[Tensor, "B"]:
    """The number of equal prompts before each, counted on their device."""
    longest = max(map(len, prompts))
    rows = torch.stack([F.pad(p.long(), (0, longest - len(p)), value=NO_TOKEN) for p in prompts])
    before = [(rows[:row] == rows[row]).all(dim=-1).sum() for row in range(len(rows))]
    return torch.stack(before)


def _top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest entries of each row; among equals the first ones."""
    least = logits.topk(k, dim=-1).values[..., -1:]  # (B, 1)
    above, equal = logits > least, logits == least
    free = k - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= free))


def _top_p(scaled: Tensor, p: float) -> Tensor:
    """As few of the largest entries as make up p; among equals the first ones."""
    falling, order = scaled.sort(dim=-1, descending=True, stable=True)
    upto = torch.softmax(falling, dim=-1).cumsum(dim=-1)
    kept = F.pad(upto[..., :-1], (1, 0)) < p  # the sum of the likelier ones is too little
    kept[..., 0] = True  # also where p is too small for the dtype
    return torch.empty_like(kept).scatter_(-1, order, kept)
