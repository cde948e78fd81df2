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

_STEPS = 256  # steps whose random numbers are copied to a GPU at once
_BITS = 48  # bits of a random number: (1 − 2⁻⁴⁸) · x rounds to less than x in float64


class Sampler:
    """Samples the tokens of a batch of sequences, step by step.

    Args:
        sampling: the settings.
        prompts: the prompt of each sequence.
        vocab_size: V.
        device: the device of the logits.
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
        """Return the next token of each sequence; on CUDA `NO_TOKEN` where there is none.

        Raises:
            ValueError: if the largest logit of a sequence is not finite, except on CUDA, to avoid
                synchronization; see `require_tokens`.
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
            if logits.is_cuda:  # NaN probabilities would pick a token beyond the last
                chosen = chosen.clamp(max=logits.shape[-1] - 1)
        self._step += 1
        if self._held is not None:
            self._held.scatter_(1, chosen[:, None], value=True)
        return torch.where(likeliest.isfinite(), chosen, NO_TOKEN) if logits.is_cuda else chosen


class _Uniforms:
    """The random numbers of a batch, copied to the device for many steps at once.

    Args:
        seed: the seed.
        copies: number of equal prompts before each, ``(B,)`` on the device.
        device: the device of the result.
    """

    def __init__(self, seed: int, copies: Int[Tensor, "B"], device: torch.device) -> None:
        self._seed, self._copies, self._device = seed, copies, device
        self._first = 0
        self._table: Tensor | None = None

    def at(self, step: int) -> Float[Tensor, "B"]:
        """Return the numbers of a step; steps are asked for in order."""
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
    """Check that drawn tokens, on the CPU, are valid.

    Raises:
        ValueError: if one was drawn from logits that were not finite.
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
    """Apply the repetition penalty to the tokens that a sequence holds."""
    bounds = torch.finfo(logits.dtype)
    penalty = min(max(penalty, bounds.tiny), bounds.max)  # else 0 or infinity in this dtype
    moved = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(present, moved.clamp(bounds.min, bounds.max), logits)


def probabilities(logits: Float[Tensor, "B V"], sampling: Sampling) -> Float[Tensor, "B V"]:
    """The distribution of the next token, in float32 at least: all filters, then a softmax."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    coldest = torch.finfo(logits.dtype).tiny  # a smaller divisor would be 0
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
    """Return the token at which the cumulative probability exceeds a number in [0, 1).

    Tokens are in the order of ids, not of probabilities, so that rounding, which may swap almost
    equally likely tokens, does not change the result.
    """
    running = shares.double().cumsum(dim=-1)  # (B, V)
    drawn = uniform[:, None] * running[:, -1:]  # below the last entry
    return torch.searchsorted(running, drawn, right=True)[:, 0]


def uniform(seed: int, copy: int, step: int) -> float:
    """Return a pseudorandom number in [0, 1), a function of seed, copy and step."""
    digest = blake2b(struct.pack("<3Q", seed, copy, step), digest_size=_BITS // 8).digest()
    return int.from_bytes(digest, "little") / 2**_BITS


def _copies(prompts: Sequence[Int[Tensor, "N"]]) -> Int[Tensor, "B"]:
    """Return the number of equal prompts before each, counted on their device."""
    longest = max(map(len, prompts))
    rows = torch.stack([F.pad(p.long(), (0, longest - len(p)), value=NO_TOKEN) for p in prompts])
    before = [(rows[:row] == rows[row]).all(dim=-1).sum() for row in range(len(rows))]
    return torch.stack(before)


def _top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest entries of each row, the first ones in case of ties."""
    least = logits.topk(k, dim=-1).values[..., -1:]  # (B, 1)
    above, equal = logits > least, logits == least
    free = k - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= free))


def _top_p(scaled: Tensor, p: float) -> Tensor:
    """Keep the fewest largest entries that sum to p, the first ones in case of ties."""
    falling, order = scaled.sort(dim=-1, descending=True, stable=True)
    upto = torch.softmax(falling, dim=-1).cumsum(dim=-1)
    kept = F.pad(upto[..., :-1], (1, 0)) < p  # the sum of the likelier ones is below p
    kept[..., 0] = True  # even if p underflows in the dtype
    return torch.empty_like(kept).scatter_(-1, order, kept)
