"""What it costs to look at a pattern: readouts in one pass, beside the forward and beside eager."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from benchmarks.report import Report, milliseconds
from regard.cli.measure import READOUTS, in_place
from regard.cli.timing import interleaved
from regard.pattern.readouts import Readout
from regard.record import Recording, read_while_running

HEADS, DIM = 12, 64
LENGTHS = (4096, 16384)
STORABLE = 4096  # at 16384, each step of eager would take 13 GB

TOP, RECEIVED, IMAGE = READOUTS
ENTROPY = regard.readouts.Entropy()
ALL = (
    *(RECEIVED, IMAGE, ENTROPY, TOP),
    *(
        regard.readouts.Max(),
        regard.readouts.Distance(),
        regard.readouts.Offsets(64),
        regard.readouts.Mass(slice(0, 4)),
    ),
)
TOGETHER: dict[str, tuple[Readout[Any, Any], ...]] = {
    "received": (RECEIVED,),
    "entropy": (ENTROPY,),
    "top 8": (TOP,),
    "image 512 × 512": (IMAGE,),
    "received, maximum": (regard.readouts.Received("max"),),
    "received, mean": (regard.readouts.Received("mean"),),
    "received of the last 64, grouped": (
        regard.readouts.Received(queries=slice(-64, None), grouped=True),
    ),
    "max score": (regard.readouts.MaxScore(),),
    "lag 1": (regard.readouts.Lag(1),),
    "blocks 64 × 64, maximum": (regard.readouts.Blocks(64, 64, "max"),),
    "blocks 60 × 60, mean": (regard.readouts.Blocks(60, 60),),
    "received, image": (RECEIVED, IMAGE),
    "received, image, entropy, top 8": (RECEIVED, IMAGE, ENTROPY, TOP),
    "all eight kinds": ALL,
}
# Read with the forward, by attention(read=…) and by read_while_running.
WITH_FORWARD: dict[str, tuple[Readout[Any, Any], ...]] = {
    "received": (RECEIVED,),
    "received, entropy, top 8": (RECEIVED, ENTROPY, TOP),
}
HEADS_WITH_FORWARD = {"2 heads": (2, 2), "4 heads that share their keys": (4, 1)}
"""Query heads and key heads."""
_SECONDS = 20.0  # of its rounds: what is added is a difference of times, which takes many
ADDED = 0.5
"""What the three may add to the forward, as a multiple of its time."""
SDPA_LENGTH = 8192
SDPA_ADDED = 0.35
"""What a key receives may add to torch's forward, where a model calls that."""
# Targets, as multiples of the forward's time.
TARGETS = {
    "received, image": 0.7,
    "received, image, entropy, top 8": 1.0,
    "all eight kinds": 1.0,
}
LONG_TARGETS = TARGETS | {"received, image, entropy, top 8": 0.7}
"""At the longest of LENGTHS, where finding the strongest keys is a smaller share."""


IN_PLACE_TARGETS = {
    "weighted by key": 1.3,
    "weighted by a dot product": 2.0,
    "without two keys, known": 1.05,
    "without two keys, anew": 2.0,
    "odds": None,
}
"""Targets of what stands in place of the weights, as multiples of the time of the plain pattern."""


def readouts(report: Report, lengths: Sequence[int] = LENGTHS) -> None:
    """Print the tables."""
    for length in lengths:
        report.table(
            f"readouts at {length}: causal, {HEADS} heads of {DIM}, float32, one pass each",
            *(("what", 34), ("ms", 9), ("of our forward", 16)),
        )
        _rows(report, length)
        report.table(
            f"in place of the weights at {length}: top 8, received and image in one pass",
            *(("what", 34), ("ms", 9), ("of the weights", 16)),
        )
        _rows_in_place(report, length)
        for name, heads in HEADS_WITH_FORWARD.items():
            report.table(
                f"readouts with the forward at {length}: {name}; what it adds",
                *(("what, and by which call", 44), ("ms", 9), ("of our forward", 16)),
            )
            _rows_with_forward(report, length, *heads)
    for name, heads in HEADS_WITH_FORWARD.items():
        report.table(
            f"readouts where a model calls SDPA, at {SDPA_LENGTH}: {name}; what is added",
            *(("what", 44), ("ms", 9), ("of torch's forward", 18)),
        )
        _rows_of_sdpa(report, *heads)


def _rows(report: Report, length: int) -> None:
    query, key, value = torch.randn(3, HEADS, length, DIM).unbind()
    _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    tasks: dict[str, Callable[[], object]] = {
        "our forward": lambda: regard.attention(query, key, value, mask=regard.causal()),
    }
    tasks |= {name: partial(pattern.read, *readouts) for name, readouts in TOGETHER.items()}
    tasks["roles of heads, tokens known"] = partial(regard.lens.heads, _text(query, key, value))
    tasks["32 spans"] = partial(pattern.spans, torch.arange(length) * 32 // length)
    _, coarse = regard.attention_with_pattern(
        query, (key * 8).round() / 8, value, mask=regard.causal()
    )
    for kind in ("kl", "js", "tv"):
        tasks[f"divergence, {kind}"] = partial(pattern.divergence, coarse, kind)
    if length <= STORABLE:
        tasks["eager, weights stored, those four"] = lambda: _eager(query, key, value)
    with torch.no_grad():
        seconds = interleaved(tasks).seconds
    targets = LONG_TARGETS if length >= max(LENGTHS) else TARGETS
    for name, taken in seconds.items():
        over = taken / seconds["our forward"]
        ratio = report.at_most(f"L = {length}, {name}", over, targets.get(name))
        report.row(name, milliseconds(taken), ratio)


def _rows_in_place(report: Report, length: int) -> None:
    query, key, value, other = torch.randn(4, HEADS, length, DIM).unbind()
    _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    keys, norms = [0, length // 3], value.norm(dim=-1)
    known = pattern.without(keys)
    known.read(TOP)  # computes its log-sum-exps before the clock
    made: dict[str, Callable[[], Any]] = {
        "weighted by key": lambda: pattern.weighted(key=norms),
        "weighted by a dot product": lambda: pattern.weighted(dot=(other, value)),
        "without two keys, known": lambda: known,
        "without two keys, anew": lambda: pattern.without(keys),
        "odds": pattern.odds,
    }
    seconds = interleaved(in_place(pattern, made)).seconds
    plain = seconds["the weights"]
    for name, taken in seconds.items():
        target = IN_PLACE_TARGETS.get(name)
        ratio = report.at_most(f"L = {length}, {name}", taken / plain, target)
        report.row(name, milliseconds(taken), ratio)


def _text(query: Tensor, key: Tensor, value: Tensor) -> Recording:
    """Record a text of some hundred words, of which some are frequent."""
    words = [f"word {number}" for number in (torch.rand(query.shape[-2]) ** 3 * 300).int().tolist()]
    with regard.record(tokens=words) as recording:
        regard.attention(query, key, value, mask=regard.causal())
    return recording


def _rows_with_forward(report: Report, length: int, heads: int, key_heads: int) -> None:
    query = torch.randn(heads, length, DIM)
    key, value = torch.randn(2, key_heads, length, DIM).unbind()

    def attend() -> Tensor:
        return regard.attention(query, key, value, mask=regard.causal())

    def recorded(read: tuple[Readout[Any, Any], ...]) -> object:
        with read_while_running(None, *read) as run:
            attend()
        return run

    tasks: dict[str, Callable[[], object]] = {"our forward": attend}
    for name, read in WITH_FORWARD.items():
        tasks[f"{name}, attention(read=…)"] = partial(
            regard.attention, query, key, value, mask=regard.causal(), read=read
        )
        tasks[f"{name}, read_while_running"] = partial(recorded, read)
    with torch.no_grad():
        seconds = interleaved(tasks, seconds_of_rounds=_SECONDS).seconds
    forward = seconds.pop("our forward")
    for name, taken in seconds.items():
        target = ADDED if "entropy" in name else None
        of_heads = f"L = {length}, {heads}/{key_heads} heads, {name}"
        ratio = report.at_most(of_heads, taken / forward - 1, target)
        report.row(name, milliseconds(taken - forward), ratio)


def _rows_of_sdpa(report: Report, heads: int, key_heads: int) -> None:
    query = torch.randn(1, heads, SDPA_LENGTH, DIM)
    key, value = torch.randn(2, 1, key_heads, SDPA_LENGTH, DIM).unbind()
    hidden = torch.ones(SDPA_LENGTH, SDPA_LENGTH, dtype=torch.bool).triu(1)
    grouped = heads != key_heads

    def attend() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)

    def while_running(read: tuple[Readout[Any, Any], ...]) -> object:
        with read_while_running(None, *read) as run:
            attend()
        return run

    def recorded() -> object:
        with regard.record() as recording:
            attend()
        return recording[0].received()

    def by_hand() -> list[Tensor]:
        scores = (query @ key.mT / DIM**0.5).masked_fill_(hidden, -torch.inf)
        return [attend(), scores.softmax(-1).sum(-2)]

    tasks: dict[str, Callable[[], object]] = {"torch's forward": attend}
    tasks |= {
        f"{name}, read_while_running": partial(while_running, read)
        for name, read in WITH_FORWARD.items()
    }
    tasks |= {"received, record": recorded, "received, by hand, weights stored": by_hand}
    with torch.no_grad():
        seconds = interleaved(tasks, seconds_of_rounds=_SECONDS, clock=time.process_time).seconds
    forward = seconds.pop("torch's forward")
    report.row("torch's forward", milliseconds(forward))
    for name, taken in seconds.items():
        target = SDPA_ADDED if name == "received, read_while_running" else None
        of_heads = f"SDPA, {heads}/{key_heads} heads, {name}"
        ratio = report.at_most(of_heads, taken / forward - 1, target)
        report.row(name, milliseconds(taken - forward), ratio)


def _eager(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Do as one does without lazy weights: store them, then reduce them."""
    length = query.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (query @ key.mT / DIM**0.5).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    return [
        weights @ value,
        weights.topk(8).values,
        torch.special.entr(weights).sum(-1),
        weights.sum(-2),
        F.adaptive_avg_pool2d(weights, (512, 512)),
    ]
