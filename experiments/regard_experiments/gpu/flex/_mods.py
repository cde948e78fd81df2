"""What is done to a score, as functions of the score and its place, for FlexAttention to compile.

A function reads tables, tensors whose axes of size 1 are shared. Those axes are taken off, so that
none is indexed by a place that it does not have. Only tensors and what stays the same from call to
call are closed over: a number that changes would be compiled anew each time.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard._tensors import upload
from regard.inputs import Problem

Look = Callable[..., Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def kind(problem: Problem) -> tuple[object, ...]:
    """Tell all of a problem that is compiled into its two functions."""
    rows = problem.rows
    tables = (rows.start, rows.allowed, rows.bias, problem.alibi, rows.positions)
    kinds = (None if t is None else (t.dtype, *(size > 1 for size in t.shape)) for t in tables)
    spans = () if rows.spans is None else tuple(rows.spans.start.shape)
    return (problem.softcap, *kinds, *(size > 1 for size in spans[1:]), *spans[:1])


def score_mod(problem: Problem) -> ScoreMod | None:
    """Softcap, bias, ALiBi and spans of a scaled score; None where there is none."""
    every = (_softcap(problem), _bias(problem), _alibi(problem), _shift(problem))
    steps = [step for step in every if step]
    if not steps:
        return None

    def modified(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, q, k)
        return score

    return modified


def mask_mod(problem: Problem) -> MaskMod:
    """Say whether a query sees a key: within its interval, and nothing dense against it."""
    rows = problem.rows
    start, stop = (_table(bound.to(torch.int32)) for bound in (rows.start, rows.stop))
    allowed = None if rows.allowed is None else _table(rows.allowed)
    bias = None if rows.bias is None else _table(rows.bias.detach())
    spans = _spans(problem)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (start(b, h, q) <= k) & (k < stop(b, h, q))
        if allowed is not None:
            seen = seen & allowed(b, h, q, k)
        if bias is not None:
            seen = seen & (bias(b, h, q, k) != -torch.inf)
        for low, high, added in spans:
            hidden = (low(b, h, q) <= k) & (k < high(b, h, q)) & (added() == -torch.inf)
            seen = seen & ~hidden
        return seen

    return visible


def _softcap(problem: Problem) -> ScoreMod | None:
    cap = problem.softcap
    if cap is None:
        return None

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001 - torch's signature
        return cap * torch.tanh(score / cap)

    return capped


def _bias(problem: Problem) -> ScoreMod | None:
    if problem.rows.bias is None:
        return None
    bias = _table(problem.rows.bias.detach())

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + bias(b, h, q, k).to(torch.float32)

    return biased


def _alibi(problem: Problem) -> ScoreMod | None:
    """−slope·distance (Press et al. 2022, arXiv:2108.12409, section 3)."""
    if problem.alibi is None:
        return None
    slope = _table(problem.alibi.detach().float())
    position = _table(problem.rows.positions.to(torch.int32))

    def distanced(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score - slope(b, h) * (position(b, h, q) - k).abs().to(torch.float32)

    return distanced


def _shift(problem: Problem) -> ScoreMod | None:
    """What spans of keys add; mask_mod hides those that are hidden."""
    spans = _spans(problem)
    if not spans:
        return None

    def shifted(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for low, high, added in spans:
            inside = (low(b, h, q) <= k) & (k < high(b, h, q)) & (added() > -torch.inf)
            score = torch.where(inside, score + added(), score)
        return score

    return shifted


def _spans(problem: Problem) -> list[tuple[Look, Look, Look]]:
    """Start, stop and what is added, of each span."""
    spans = problem.rows.spans
    if spans is None:
        return []
    start, stop = (table.to(torch.int32).unbind() for table in (spans.start, spans.stop))
    added = upload(spans.added.float(), spans.start.device).unbind()
    tables = zip(start, stop, added, strict=True)
    return [(_table(low), _table(high), _table(number)) for low, high, number in tables]


def _table(tensor: Tensor) -> Look:
    """Look numbers up by the places on the axes that they differ in."""
    differs = [size > 1 for size in tensor.shape]
    if not any(differs):
        number = tensor.reshape(())
        return lambda *_: number
    packed = tensor.reshape([size for size in tensor.shape if size > 1])

    def look(*place: Tensor) -> Tensor:
        return packed[tuple([at for at, own in zip(place, differs, strict=True) if own])]

    return look
