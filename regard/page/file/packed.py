"""Queries, keys and values as small whole numbers, from which a browser recomputes any weight.

A vector's numbers are kept as multiples of a step, one step a head. An error δ of a query shifts a
score by scale·δ·key, and one of a key by scale·query·δ; so the steps are chosen such that scores
are off by about as much in every head, whatever its vectors' size, and the two sides share the
error. The log-sum-exps are those of the kept numbers: rows still add up to 1.

Axes: L queries, S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard._shapes import Float
from regard.inputs import Problem
from regard.page.file.bundle import deflated
from regard.steps import written_out

__all__ = ["Errors", "Numbers", "PackedHead", "pack_layer"]

_PLANES = 4  # bytes of a number; of each kind all are put together, since the upper are mostly 0
_LARGEST = 2 ** (8 * _PLANES - 1) - 1
_LOGSUMEXP = 2.0**-18  # its step, unless scores are huge
_VALUES = 2**3  # a value's step relative to its size, in units of the tolerance
_WEIGHTS = 2**22  # compared at a time


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The largest differences between what the kept numbers give and what is exact."""

    weight: float = 0.0
    score: float = 0.0
    """Of a scaled score."""
    product: float = 0.0
    """Of a query · key."""
    vector: float = 0.0
    """Of any number of a query, key or value."""
    context: float = 0.0

    def __or__(self, other: Errors) -> Errors:
        """Take the larger of each."""
        names = [entry.name for entry in fields(self)]
        return Errors(**{name: max(getattr(self, name), getattr(other, name)) for name in names})


@dataclass
class Numbers:
    """Whole numbers, one array after the other, to be written as text."""

    _arrays: list[np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=list)
    count: int = 0

    def add(self, numbers: Tensor) -> int:
        """Take some more; returns the place of the first."""
        assert int(numbers.abs().max()) <= _LARGEST, "steps are chosen so that they fit"
        place = self.count
        self._arrays.append(numbers.flatten().cpu().numpy())
        self.count += numbers.numel()
        return place

    def text(self) -> str:
        """A zlib stream of the lowest bytes of all numbers, then of the next, and so on.

        The sign goes to the lowest bit: 0, −1, 1, −2 … become 0, 1, 2, 3 …
        """
        whole = np.concatenate(self._arrays)
        folded = (whole << 1) ^ (whole >> 63)
        planes = [((folded >> (8 * p)) & 255).astype(np.uint8).tobytes() for p in range(_PLANES)]
        return deflated(planes)


@dataclass(frozen=True)
class _Kept:
    """A matrix as whole numbers: the first row is what is added to all others, in steps."""

    numbers: Tensor
    step: float

    @classmethod
    def of(cls, matrix: Float[Tensor, "n d"], step: float) -> _Kept:
        matrix = matrix.double()
        middle = matrix.mean(dim=0, keepdim=True)
        reach = max(float((matrix - middle).abs().max()), float(middle.abs().max()))
        step = max(step, 2 * reach / _LARGEST) or 1.0  # all are 0: any step will do
        first = (middle / step).round()
        numbers = torch.cat([first, (matrix / step).round() - first])
        return cls(numbers.long(), step)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        """What is read back, in float64."""
        return (self.numbers[1:] + self.numbers[0]).double() * self.step

    def encoded(self, numbers: Numbers) -> dict[str, Any]:
        return {
            "at": numbers.add(self.numbers),
            "step": self.step,
            "dim": self.numbers.shape[1],
        }


@dataclass(frozen=True, kw_only=True)
class PackedHead:
    """What is embedded of one head, and how far off it is."""

    encoded: dict[str, Any]
    errors: Errors


def pack_layer(
    problems: Sequence[Problem],
    values: Sequence[Tensor] | None,
    tolerance: float,
    numbers: Numbers,
    *,
    compare: bool = True,
) -> Iterator[PackedHead]:
    """Keep the heads of a layer.

    Args:
        problems: one a head, with a key of its own or one that it shares with its neighbours.
        values: ``(S, Dv)`` of each head, if they are known.
        tolerance: how far off a score may typically be; the numbers get finer with it.
        numbers: where to put them.
        compare: False leaves the log-sum-exps 0 and the errors out, which take the time; what
            takes the room is there.
    """
    keys: dict[tuple[Any, ...], tuple[_Kept, dict[str, Any]]] = {}
    for head, problem in enumerate(problems):
        query, key = problem.query[0, 0].double(), problem.key[0, 0].double()
        unit = tolerance / (abs(problem.scale) * key.shape[-1] ** 0.5 or 1.0)
        kept_query = _Kept.of(query, unit / (_size(key - key.mean(dim=0)) or 1.0))
        shared = _name(problem.key)
        if shared not in keys:
            group = torch.cat([p.query[0, 0] for p in problems if _name(p.key) == shared]).double()
            kept_key = _Kept.of(key, unit / (_size(group) or 1.0))
            keys[shared] = kept_key, kept_key.encoded(numbers)
        kept_key, encoded_key = keys[shared]
        value = None if values is None else values[head].double()
        kept_value = (
            None if value is None else _Kept.of(value, _VALUES * tolerance * (_size(value) or 1.0))
        )
        step = max(_LOGSUMEXP, 2 * _reach(problem, kept_query, kept_key) / _LARGEST)
        if compare:
            logsumexp, errors = _compared(problem, kept_query, kept_key, value, kept_value, step)
        else:
            logsumexp = torch.zeros(problem.queries, dtype=torch.int64, device="cpu")
            errors = Errors()
        yield PackedHead(
            encoded={
                "scale": problem.scale,
                "softcap": problem.softcap,
                "alibi": None if problem.alibi is None else float(problem.alibi),
                "sink": problem.sink is not None,
                "query": kept_query.encoded(numbers),
                "key": encoded_key,
                "value": None if kept_value is None else kept_value.encoded(numbers),
                "logsumexp": {"at": numbers.add(logsumexp), "step": step},
            },
            errors=errors,
        )


def _name(tensor: Tensor) -> tuple[Any, ...]:
    """Name the memory that a view looks at."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _size(matrix: Tensor) -> float:
    """The root mean square of its numbers."""
    return float(matrix.square().mean().sqrt()) if matrix.numel() else 0.0


def _reach(problem: Problem, query: _Kept, key: _Kept) -> float:
    """A size that no score and no log-sum-exp exceeds."""
    longest = [float(kept.values.norm(dim=-1).max()) for kept in (query, key)]
    reach = abs(problem.scale) * longest[0] * longest[1] + math.log(problem.keys)
    if problem.alibi is not None:
        reach += abs(float(problem.alibi)) * problem.keys
    return reach if problem.sink is None else reach + abs(float(problem.sink))


def _compared(
    problem: Problem,
    query: _Kept,
    key: _Kept,
    value: Tensor | None,
    kept_value: _Kept | None,
    step: float,
) -> tuple[Tensor, Errors]:
    """Compare all that the kept numbers give with what is exact, some rows at a time.

    Returns:
        The log-sum-exps ``(L,)`` in whole steps of this size, and the largest errors.
    """
    exact = problem.cast(torch.float64)
    kept = replace(exact, query=query.values[None, None], key=key.values[None, None])
    matrices = [(query, exact.query[0, 0]), (key, exact.key[0, 0])]
    if value is not None and kept_value is not None:
        matrices.append((kept_value, value))
    errors = Errors(vector=max(_most(one.values - true) for one, true in matrices))
    logsumexps = []
    rows = max(1, _WEIGHTS // max(problem.keys, 1))
    for index in torch.arange(problem.queries, device="cpu").split(rows):
        true, own = (
            {name: tensor[0, 0] for name, tensor in written_out(one.at(index))}
            for one in (exact, kept)
        )
        steps = own["logsumexp"].nan_to_num(neginf=0.0).div(step).round()
        logsumexps.append(steps.long())
        weights = (own["masked"] - steps[:, None] * step).exp()
        seen = true["masked"] != -torch.inf
        errors |= Errors(
            weight=_most(weights - true["weights"]),
            score=_most((own["masked"] - true["masked"])[seen]),
            product=_most((own["scores"] - true["scores"])[seen]),
            context=0.0
            if value is None or kept_value is None
            else _most(weights @ kept_value.values - true["weights"] @ value),
        )
    return torch.cat(logsumexps), errors


def _most(differences: Tensor) -> float:
    return float(differences.abs().max()) if differences.numel() else 0.0
