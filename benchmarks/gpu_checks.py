"""Whether a GPU computes what is to be timed: every readout and backend against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import regard
from regard.backends import NAMES, choose
from regard.pattern.readouts import Top
from regard.problem import Scoring, check

B, H, G, L, S = 2, 4, 2, 517, 643
ROWS = slice(100, 103)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
READOUTS: dict[str, regard.Readout[Any, Any]] = {
    "received": regard.Received(),
    "entropy": regard.Entropy(),
    "distance": regard.Distance(),
    "max": regard.Max(),
    "mass": regard.Mass(slice(0, 4)),
    "top 8": regard.TopK(8),
    "image 512 × 512": regard.Image(512, 512),
    "offsets 64": regard.Offsets(64),
}
# Weights are computed from products that were added up in float32, whatever their factors: a score
# near 10 is off by some 1e-6, and a weight by as much of its size. A context comes rounded.
CONTEXT = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}


def checks(device: str = "cuda") -> Iterator[tuple[str, float, float]]:
    """Yield what was checked, the largest error, relative and absolute, and what it may be."""
    torch.manual_seed(torch.seed())  # fresh numbers every time
    for dtype in DTYPES:
        for dim in (64, 128):
            query = torch.randn(B, H, L, dim, device=device).to(dtype)
            key, value = torch.randn(2, B, G, S, dim, device=device).to(dtype).unbind()
            for name, options in _options(device).items():
                label = f"{str(dtype).removeprefix('torch.')}, {dim} wide, {name}"
                yield label, *_of_readouts(query, key, options)
                yield from _of_backends(label, query, key, value, options)


def _options(device: str) -> dict[str, dict[str, Any]]:
    index = torch.arange(S, device=device)
    keep = torch.stack([index >= S // 3, index < S - S // 4])
    return {
        "no mask": {},
        "causal": {"mask": regard.causal()},
        "window": {"mask": regard.causal() & regard.window(37)},
        "documents": {"mask": regard.causal() & regard.documents(index // 50)},
        "padding": {"mask": regard.causal() & regard.padding(keep)},
        "softcap": {"mask": regard.causal(), "softcap": 3.0},
        "bias": {"bias": torch.randn(L, S, device=device), "scale": 0.1},
        "alibi, sink": {
            "mask": regard.causal(),
            "alibi": 0.5 ** torch.arange(1, H + 1, device=device),
            "sink": torch.randn(H, device=device),
        },
        "dense": {"mask": regard.dense(torch.rand(L, S, device=device) > 0.3)},
    }


def _of_readouts(query: Tensor, key: Tensor, options: dict[str, Any]) -> tuple[float, float]:
    exact = _everything(regard.Pattern(query.double(), key.double(), **options))
    actual = _everything(regard.Pattern(query, key, **options))
    pairs = zip(actual, exact, strict=True)
    return max(_error(one, other) for one, other in pairs), 2e-5


def _everything(pattern: regard.Pattern) -> list[Tensor]:
    results = pattern.read(*READOUTS.values())
    tensors = [r.weights if isinstance(r, Top) else r for r in results]
    rows = torch.linspace(-1, 1, L, device=pattern.device, dtype=pattern.dtype)
    return [*tensors, pattern.received(), pattern[..., ROWS, :], rows @ pattern]


def _of_backends(
    label: str, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Iterator[tuple[str, float, float]]:
    exact = regard.attention(query.double(), key.double(), value.double(), **options)
    problem = check(query, key, value, Scoring(**options))
    for backend in NAMES:
        try:
            choose(problem, backend)
        except ValueError:  # the backend can't run this problem
            continue
        actual, pattern = regard.attention_with_pattern(
            query, key, value, **options, backend=backend
        )
        allowed = CONTEXT[query.dtype]
        yield f"{label}, {backend}", _error(actual, exact), allowed
        expected = regard.Pattern(query.double(), key.double(), **options).logsumexp
        yield f"{label}, {backend}'s log-sum-exp", _error(pattern.logsumexp, expected), 2e-5


def _error(actual: Tensor, exact: Tensor) -> float:
    """The largest error, of small numbers absolute, of large ones relative."""
    same = (actual == exact) | (actual.isnan() & exact.isnan())
    error = (actual.double() - exact).abs() / (1 + exact.abs())
    return float(error.masked_fill(same, 0).nan_to_num(nan=torch.inf).max())
