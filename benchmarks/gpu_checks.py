"""Whether a GPU computes what is to be timed: the tests, and all results against float64."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.cases import name_of
from benchmarks.gpu_peers import peers
from benchmarks.gpu_result import Result
from regard.backends import NAMES, choose
from regard.backends.kernel_spec import Divergence
from regard.inputs import Scoring, check
from regard.pattern.readouts import Top

ROOT = Path(__file__).parents[1]
TESTS = ("tests/experiments/test_cuda.py", "tests/gpt/test_cuda.py", "tests/experiments/triton")
B, H, G, L, S = 2, 4, 2, 517, 643
ROWS = slice(100, 103)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
READOUTS: dict[str, regard.readouts.Readout[Any, Any]] = {
    "received": regard.readouts.Received(),
    "entropy": regard.readouts.Entropy(),
    "distance": regard.readouts.Distance(),
    "max": regard.readouts.Max(),
    "mass": regard.readouts.Mass(slice(0, 4)),
    "top 8": regard.readouts.TopK(8),
    "image 512 × 512": regard.readouts.Image(512, 512),
    "offsets 64": regard.readouts.Offsets(64),
}
DIVERGENCES: tuple[Divergence, ...] = ("kl", "js", "tv")
# Weights are computed from products that were added up in float32, whatever their factors: a score
# near 10 is off by some 1e-6, and a weight by as much of its size. A context comes rounded.
CONTEXT = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}


def further(keys: int) -> dict[str, regard.readouts.Readout[Any, Any]]:
    """Readouts beside those that are timed in one pass, of a pattern of so many keys."""
    return {
        "received, mean": regard.readouts.Received("mean"),
        "received, max": regard.readouts.Received("max"),
        "max score": regard.readouts.MaxScore(),
        "lag 1": regard.readouts.Lag(1),
        "spans of 64 keys": regard.readouts.Spans(torch.arange(keys) // 64),
        "block maxima 64 × 64": regard.readouts.Blocks(64, 64, "max"),
    }


def checks(result: Result, device: torch.device, *, tiny: bool = False) -> None:
    """Compare everything with float64, then run the tests of CUDA; print each failure at once."""
    result.table("Comparisons with float64", "what", "comparisons", "largest error ÷ allowed")
    dtypes, dims = ((torch.float32,), (16,)) if tiny else (DTYPES, (64, 128))
    for dtype in dtypes:
        for dim in dims:
            if result.has_time(f"{name_of(dtype)}, {dim} wide"):
                _compare(result, f"{name_of(dtype)}, {dim} wide", dtype, dim, str(device))
    if result.has_time("other ways to what is received"):
        _compare_peers(result, str(device))
    for file in TESTS[:1] if tiny else TESTS:
        if result.has_time(file):
            _pytest(result, file)


def _compare(result: Result, label: str, dtype: torch.dtype, dim: int, device: str) -> None:
    """Compare readouts and backends for every mask and option."""
    number, largest = 0, 0.0
    torch.manual_seed(torch.seed())  # fresh numbers every time
    query = torch.randn(B, H, L, dim, device=device).to(dtype)
    key, value = torch.randn(2, B, G, S, dim, device=device).to(dtype).unbind()
    for name, options in _options(device).items():
        with result.attempt(f"{label}, {name}"):
            for what, error, allowed in comparisons(query, key, value, options):
                number, largest = number + 1, max(largest, error / allowed)
                if not error <= allowed:
                    by = f"off by {error:.2g}, and {allowed:.2g} is rounding"
                    result.failed(f"{label}, {name}, {what}: {by}")
    result.row(label, number, largest)


def _compare_peers(result: Result, device: str) -> None:
    """Compare the column sums of other ways with ours, in float32."""
    query = torch.randn(1, 4, 160, 32, device=device)
    key = torch.randn(1, 2, 160, 32, device=device)
    pattern = regard.Pattern(query.double(), key.double(), mask=regard.causal())
    exact = pattern.received()
    for name, way in peers(query, key, pattern.logsumexp.float()).items():
        if "backward" in name and device == "cpu":
            result.left_out(name, "FlexAttention has no backward pass on a CPU")
            continue
        with result.attempt(f"received by {name}"):
            error, allowed = _error(way(), exact), 3e-2  # TF32, which a peer may take
            result.row(f"received by {name}", 1, error / allowed)
            if not error <= allowed:
                result.failed(f"received by {name}: off by {error:.2g}")


def _pytest(result: Result, file: str) -> None:
    """Run tests; the name of each that fails is printed when it does."""
    if find_spec("pytest") is None or find_spec("hypothesis") is None:
        result.left_out(file, "pytest or hypothesis is not installed")
        return
    command = [sys.executable, "-m", "pytest", file, "-v", "-p", "no:cacheprovider", "--tb=short"]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None, "it is a pipe"
        for line in run.stdout:
            lines.append(line.rstrip())
            if " FAILED" in line or " ERROR" in line or line.startswith("E  "):
                print(lines[-1], file=sys.stderr, flush=True)
            if result.is_over:
                run.kill()
                lines.append("ended, since the time of this part is over")
    if run.returncode:
        result.failed(f"{file}: {lines[-1] if lines else 'no output'}")
    result.row(f"{file}: {lines[-1].strip('= ') if lines else ''}", None, None)


def comparisons(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Iterator[tuple[str, float, float]]:
    """Yield what was compared, the largest error, relative and absolute, and what it may be."""
    yield "readouts", *_of_readouts(query, key, options)
    yield "divergences", *_of_divergences(query, key, options)
    yield "attention(read=[…])", *_of_attention(query, key, value, options)
    yield from _of_backends(query, key, value, options)


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


def _of_divergences(query: Tensor, key: Tensor, options: dict[str, Any]) -> tuple[float, float]:
    """Compare a pattern with that of a key less exact, as a quantised cache has it."""
    other = (key * 16).round() / 16

    def far(query: Tensor, *keys: Tensor) -> list[Tensor]:
        one, two = (regard.Pattern(query, each, **options) for each in keys)
        return [one.divergence(two, kind) for kind in DIVERGENCES]

    exact = far(query.double(), key.double(), other.double())
    pairs = zip(far(query, key, other), exact, strict=True)
    return max(_error(*pair) for pair in pairs), 2e-5


def _of_attention(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> tuple[float, float]:
    """Compare the readouts that attention takes as well."""
    readouts = [regard.readouts.Received(), regard.readouts.Entropy(), regard.readouts.Max()]
    exact = regard.Pattern(query.double(), key.double(), **options).read(*readouts)
    _, actual = regard.attention(query, key, value, read=readouts, **options)
    return max(_error(*pair) for pair in zip(actual, exact, strict=True)), 2e-5


def _everything(pattern: regard.Pattern) -> list[Tensor]:
    results = pattern.read(*READOUTS.values(), *further(pattern.shape[-1]).values())
    tensors = [r.weights if isinstance(r, Top) else r for r in results]
    tensors = [part for t in tensors for part in (t if isinstance(t, tuple) else (t,))]
    rows = torch.linspace(-1, 1, L, device=pattern.device, dtype=pattern.dtype)
    return [*tensors, pattern.received(), pattern[..., ROWS, :], rows @ pattern]


def _of_backends(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
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
        yield backend, _error(actual, exact), allowed
        expected = regard.Pattern(query.double(), key.double(), **options).logsumexp
        yield f"{backend}'s log-sum-exp", _error(pattern.logsumexp, expected), 2e-5


def _error(actual: Tensor, exact: Tensor) -> float:
    """The largest error, of small numbers absolute, of large ones relative."""
    same = (actual == exact) | (actual.isnan() & exact.isnan())
    error = (actual.double() - exact).abs() / (1 + exact.abs())
    return float(error.masked_fill(same, 0).nan_to_num(nan=torch.inf).max())
