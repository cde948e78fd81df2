"""What `regard doctor --measure` measures: the machine's rates, and six ratios.

The peers are torch's own functions, so that a wheel measures the same as a checkout. The sizes are
such that everything takes half a minute on two idle cores; on a slow machine fewer rounds are made.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.backends.native import describe
from regard.backends.native.peak import peak_bandwidth, peak_flops
from regard.cli.timing import Ratio, interleaved
from regard.gpt import GPT, Engine, GPTConfig, Sampling, generate
from regard.nn import KVCache
from regard.pattern.readout import Readout

READOUTS: tuple[Readout[Any, Any], ...] = (
    regard.readouts.TopK(8),
    regard.readouts.Received(),
    regard.readouts.Image(512, 512),
)
"""What is looked at, in one pass: the strongest keys, what each key receives, and a picture."""

_ROUNDS = 3  # of a rate


@dataclass(frozen=True)
class Sizes:
    """How large a task is; the default is what people send."""

    heads: int = 12
    dim: int = 64
    length: int = 2048
    """Queries and keys of attention over a whole text."""
    cached: int = 16_384
    """Keys of one query."""
    layers: int = 4
    vocabulary: int = 8192
    tokens: int = 8
    """Tokens that are generated."""
    product: int = 1024
    """Rows and columns of a matrix product."""
    copied: int = 2**26
    """Bytes that are copied: more than caches hold."""
    seconds: float = 3.0
    """Of the rounds of one ratio, where the fewest do not take longer."""


class Rate(NamedTuple):
    """How much of something the machine does a second."""

    name: str
    value: float
    unit: str


class Headline(NamedTuple):
    """One of the six ratios."""

    name: str
    ratio: Ratio
    unit: str
    """What the ratio is of."""


def machine() -> dict[str, str]:
    """Return what computes here, without names of files: people send it to others.

    Example:
        >>> list(machine())
        ['regard', 'torch', 'python', 'processor', 'instructions', 'threads', 'load']
    """
    library = describe()
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "not known"
    return {
        "regard": version("regard"),
        "torch": torch.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "instructions": "torch's kernels alone" if library is None else library.instructions,
        "threads": str(torch.get_num_threads()),
        "load": f"{load} before the measurement",
    }


def processor() -> str:
    """Return the processor's name from the operating system, or else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = re.findall(r"^model name\s*: (.*)$", text, flags=re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()


def rates(sizes: Sizes) -> Iterator[Rate]:
    """Measure torch's product of matrices and copy, and the peaks that our kernels can reach.

    Yields:
        Each when it is measured.
    """
    threads = torch.get_num_threads()
    one, other = torch.randn(2, sizes.product, sizes.product, device="cpu").unbind()
    operations = 2 * sizes.product**3
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        try:
            rate = operations / _fastest(partial(torch.mm, one, other))
        finally:
            torch.set_num_threads(threads)
        name = f"float32 product, {count} thread{'s' if count > 1 else ''}"
        yield Rate(name, rate / 1e9, "GFLOP/s")
    if describe() is not None:
        for dtype in (torch.float32, torch.bfloat16):
            peak = statistics.median(peak_flops(dtype) for _ in range(_ROUNDS))
            name = f"peak {str(dtype).removeprefix('torch.')}"
            yield Rate(name, peak / 1e9, "GFLOP/s")
        bandwidth = statistics.median(peak_bandwidth() for _ in range(_ROUNDS))
        yield Rate("memory read", bandwidth / 1e9, "GB/s")
    source = torch.ones(sizes.copied, dtype=torch.uint8, device="cpu")
    target = torch.empty_like(source)
    copied = 2 * sizes.copied / _fastest(partial(target.copy_, source))  # read and written
    yield Rate("memory copy", copied / 1e9, "GB/s")


def headlines(sizes: Sizes) -> Iterator[Headline]:
    """Measure the six ratios, each of times of the same rounds.

    Yields:
        Each when it is measured.
    """
    many, by_module = "× torch's speed", "× the module's speed"
    for name, tasks, unit in (
        ("attention, forward", _forward(sizes), many),
        ("attention, forward and backward", _forward_and_backward(sizes), many),
        (f"one query, {sizes.cached} keys", _one_query(sizes), many),
        (f"generation, {sizes.tokens} tokens by an engine", _generation(sizes), by_module),
        ("top 8, received and image", _read(sizes), "of the forward's time"),
        ("the same, weighted by norm", _weighted(sizes), "of the plain one's time"),
    ):
        one, other = tasks  # the first one's time over the second's
        measured = interleaved(tasks, seconds_of_rounds=sizes.seconds)
        yield Headline(name, measured.ratio(one, other), unit)


Tasks = dict[str, Callable[[], object]]
"""What is compared, by name."""


def one_query(query: Tensor, key: Tensor, value: Tensor) -> Tasks:
    """Return torch's and our attention of one query against a long cache.

    Args:
        query: ``(B, H, 1, D)``.
        key: ``(B, G, S, D)``, as a cache holds it.
        value: likewise.
    """
    grouped = query.shape[1] != key.shape[1]
    theirs = partial(F.scaled_dot_product_attention, query, key, value, enable_gqa=grouped)
    ours = partial(regard.attention, query, key, value, mask=regard.causal())
    return {"torch": torch.no_grad()(theirs), "ours": torch.no_grad()(ours)}


def in_place(pattern: regard.Pattern, made: dict[str, Callable[[], Any]]) -> Tasks:
    """Return tasks that read patterns made anew each time; the last reads the plain one."""

    def read(make: Callable[[], Any]) -> object:
        return make().read(*READOUTS)

    tasks: Tasks = {name: partial(read, make) for name, make in made.items()}
    return tasks | {"the weights": partial(pattern.read, *READOUTS)}


def _tensors(sizes: Sizes) -> tuple[Tensor, ...]:
    shape = (3, 1, sizes.heads, sizes.length, sizes.dim)
    return torch.randn(*shape, device="cpu").unbind()


def _forward(sizes: Sizes) -> Tasks:
    query, key, value = _tensors(sizes)
    return {
        "torch": partial(F.scaled_dot_product_attention, query, key, value, is_causal=True),
        "ours": partial(regard.attention, query, key, value, mask=regard.causal()),
    }


def _forward_and_backward(sizes: Sizes) -> Tasks:
    inputs = [tensor.requires_grad_() for tensor in _tensors(sizes)]

    def trained(forward: Callable[[], Tensor]) -> object:
        context = forward()
        return torch.autograd.grad(context, inputs, torch.ones_like(context))

    query, key, value = inputs
    theirs = partial(F.scaled_dot_product_attention, query, key, value, is_causal=True)
    ours = partial(regard.attention, query, key, value, mask=regard.causal())
    return {"torch": partial(trained, theirs), "ours": partial(trained, ours)}


def _one_query(sizes: Sizes) -> Tasks:
    query = torch.randn(1, sizes.heads, 1, sizes.dim, device="cpu")
    cached = torch.randn(2, 1, sizes.heads, sizes.cached, sizes.dim, device="cpu")
    return one_query(query, *KVCache(sizes.cached).append(*cached.unbind()))


def _generation(sizes: Sizes) -> Tasks:
    """Return the module's own forward, whose products are torch's, and the engine's steps."""
    config = GPTConfig(
        vocab_size=sizes.vocabulary,
        context=8 + sizes.tokens,
        layers=sizes.layers,
        heads=sizes.heads,
        dim=sizes.heads * sizes.dim,
    )
    model = GPT(config).eval()
    ids = torch.zeros(1, 8, dtype=torch.int64, device="cpu")
    greedy = Sampling(temperature=0.0)
    return {
        "module": partial(generate, model, ids, tokens=sizes.tokens, sampling=greedy),
        "engine": partial(generate, Engine(model), ids, tokens=sizes.tokens, sampling=greedy),
    }


def _read(sizes: Sizes) -> Tasks:
    query, key, value = _tensors(sizes)
    _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    return {"read": partial(pattern.read, *READOUTS), "forward": _forward(sizes)["ours"]}


def _weighted(sizes: Sizes) -> Tasks:
    query, key, value = _tensors(sizes)
    _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    norms = value.norm(dim=-1)
    return in_place(pattern, {"weighted by key": lambda: pattern.weighted(key=norms)})


def _fastest(task: Callable[[], object]) -> float:
    """Return the seconds of the quickest of several calls, after one that is not counted."""
    task()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        task()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
