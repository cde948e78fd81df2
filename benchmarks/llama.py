"""Generating beside llama.cpp, on the same weights: ``python -m benchmarks.llama``.

A step reads every weight once, so both are bound by the memory's bandwidth, which is measured in
the same rounds in huge pages, as our weights have them; llama.cpp maps its file, in pages of 4 KiB.
Before anything is timed, both must choose the same tokens, but for ties; where each rounds the
weights to eight bits in its own way, they need not.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from benchmarks.arguments import take_none
from benchmarks.gguf_weights import KINDS, as_int8, rounded, write_gguf
from benchmarks.llama_decoder import LlamaDecoder, ends_by_signal
from benchmarks.machine import describe
from benchmarks.report import Report
from regard.backends.native.library import why_missing
from regard.backends.native.peak import peak_bandwidth
from regard.cli.timing import Measured, interleaved
from regard.gpt import GPT, GPTConfig, Sampling, generate

PROMPT, NEW = 32, 128
THREADS = (1, 2)
TARGETS = {1: 1.1, 8: 1.5}
"""Of each batch: how many times llama.cpp's tokens a second ours are to reach."""
PRECISIONS = (("float32",), ("bfloat16", "float16"), ("q8_0",))
"""What is timed in the same rounds."""
OURS = {"q8_0": "int8"}
"""What is ours where it is not the same: a scale a row, not of each 32 numbers, and activations in
float32, which llama.cpp rounds to int8, too. So the tokens are others."""
VARIED = 0.08  # standard deviation of first weights after which the next token is seldom the last
TIES = {"float32": 2**-10, "bfloat16": 2**-5, "float16": 2**-8}
"""How far two logits may be apart, as a share of the largest, for either token to be generated.

The roundings of twelve layers; in float32 those of llama.cpp's GELU, a table in float16."""


@dataclass(frozen=True)
class Weights:
    """A model in a precision.

    Attributes:
        path: of the file for llama.cpp.
        size: bytes that a step of llama.cpp reads.
        model: ours.
        own_size: bytes that a step of ours reads.
        repacked: whether llama.cpp may lay its weights out anew.
    """

    path: Path
    size: int
    model: GPT
    own_size: int
    repacked: bool = True

    @classmethod
    def of(cls, path: Path, size: int, model: GPT, *, repacked: bool = True) -> Self:
        """Count what a step of the model reads."""
        state = {name: t for name, t in model.state_dict().items() if name != "wpe.weight"}
        own_size = sum(t.numel() * t.element_size() for t in state.values())
        return cls(path, size, model, own_size, repacked)


def main() -> None:
    """Print the table, or one line where a part is missing."""
    absent = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
    if absent:
        print(f"llama.cpp is not measured: {' and '.join(absent)} can't be imported here")
        return
    missing = why_missing()
    if missing is not None:
        sys.exit(f"the kernels are what is measured, but {missing}")
    torch.set_num_threads(max(THREADS))
    describe()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        weights = all_weights(Path(folder))
        for names in PRECISIONS:
            for threads in THREADS:
                table(report, f"{', '.join(names)}; {threads} threads")
                for batch in TARGETS:
                    chosen = {name: weights[name] for name in names}
                    with generations(chosen, batch, threads) as tasks:
                        rows(report, chosen, batch, interleaved(tasks, peak_bandwidth))
    report.summary()


def all_weights(folder: Path) -> dict[str, Weights]:
    """Write the model in each precision, after a check that its layout is read aright."""
    torch.manual_seed(0)
    config = GPTConfig.gpt2("small")
    _require_same_tokens(GPT(replace(config, initial_std=VARIED)).eval(), folder / "varied.gguf")
    model = GPT(config).eval()
    weights = {}
    for name in KINDS:
        path = folder / f"{name}.gguf"
        size = write_gguf(model, path, name)
        ours = as_int8(model) if name == "q8_0" else rounded(model, getattr(torch, name))
        weights[name] = Weights.of(path, size, ours, repacked=_can_repack(name, path))
    return weights


def _can_repack(name: str, path: Path) -> bool:
    """Whether llama.cpp runs with weights that it lays out anew, as not on every processor."""
    signal = ends_by_signal(path)
    if signal:
        print(
            f"llama.cpp, {name}: weights as in the file; with those that it lays out anew for this "
            f"processor, signal {signal} ends its process"
        )
    return not signal


def _require_same_tokens(model: GPT, path: Path) -> None:
    size = write_gguf(model, path, "float32")
    with generations({"float32": Weights.of(path, size, model)}, 3, max(THREADS)):
        path.unlink()


@contextmanager
def generations(
    weights: Mapping[str, Weights], batch: int, threads: int
) -> Iterator[dict[str, Callable[[], Tensor]]]:
    """What generates, by library and precision; of equal weights, after both chose the same."""
    torch.set_num_threads(threads)
    config = GPTConfig.gpt2("small")
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(config.vocab_size, (batch, PROMPT), generator=generator)
    tasks: dict[str, Callable[[], Tensor]] = {}
    with ExitStack() as stack:
        for name, one in weights.items():
            decoder = LlamaDecoder(
                one.path,
                sequences=batch,
                tokens=PROMPT + NEW,
                threads=threads,
                half_cache=name != "float32",
                repacked=one.repacked,
            )
            theirs = partial(stack.enter_context(decoder).generate, prompts, NEW)
            greedy = Sampling(temperature=0.0)
            ours = partial(generate, one.model, prompts, tokens=NEW, sampling=greedy)
            if name in TIES:
                _require_same(name, one.model, ours(), theirs())
            tasks[f"regard, {OURS.get(name, name)}"] = ours
            tasks[f"llama.cpp, {name}"] = theirs
        yield tasks


def _require_same(name: str, model: GPT, ours: Tensor, theirs: Tensor) -> None:
    """Raise unless each row's first token that differs, if any, is as likely to our model."""
    for row, other in zip(ours, theirs, strict=True):
        differ = (row != other).nonzero()
        if len(differ) == 0:
            continue
        place = int(differ[0])
        with torch.no_grad():
            logits = model(row[:place])[-1].float()  # (V,)
        apart = (logits[row[place]] - logits[other[place]]).abs() / logits.abs().max()
        if apart > TIES[name]:
            raise RuntimeError(
                f"in {name}, token {place - PROMPT} is {row[place]} and llama.cpp's is "
                f"{other[place]}, whose logits differ by {apart:.1e} of the largest"
            )


def table(report: Report, what: str, model: str = "GPT-2's shape") -> None:
    """Begin a table."""
    report.table(
        f"generation beside llama.cpp, {what}: {model}, prompts of {PROMPT} tokens, {NEW} drawn "
        "greedily",
        *(("model", 34), ("tokens/s", 9), ("of bandwidth", 12), ("× llama.cpp", 18)),
    )


def rows(report: Report, weights: Mapping[str, Weights], batch: int, measured: Measured) -> None:
    """Print the rows of a batch; ours beside the better of llama.cpp's."""
    rates = {name: batch * NEW / taken for name, taken in measured.seconds.items()}
    sizes = {f"llama.cpp, {name}": one.size for name, one in weights.items()}
    best = max(rates[name] for name in sizes)
    sizes |= {f"regard, {OURS.get(name, name)}": one.own_size for name, one in weights.items()}
    fastest = max((name for name in rates if name.startswith("regard")), key=rates.__getitem__)
    for name, rate in rates.items():
        row = f"{name}, {batch} at a time"
        report.row(
            row,
            f"{rate:.1f}",
            f"{rate / batch * sizes[name] / measured.limit:.0%}",
            report.at_least(row, rate / best, TARGETS[batch] if name == fastest else None),
        )
    report.row(f"bandwidth, GB/s read: {measured.limit / 1e9:.1f}")


if __name__ == "__main__":
    take_none("benchmarks.llama", "Measure generation beside llama.cpp, on the same weights.")
    main()
