"""Metrics of every update: the timer, the file they are written to, and the console."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from time import perf_counter
from typing import Any, Self
from zlib import crc32

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard._files import replace_file
from regard.gpt.config import GPTConfig
from regard.gpt.model import GPT

_CHECKSUM = "crc32"  # of a line's other content
_STRETCHES = 5  # maximum number of ranges of updates that a warning names


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of a training run after an update.

    Attributes:
        step: updates done.
        steps: total number of updates.
        loss: loss of the last batch, in nats per token, repeated random sequences included.
        gradient_norm: norm of its gradient, before clipping.
        learning_rate: learning rate of that update.
        tokens: tokens trained on so far.
        seconds: time spent so far, including that before interruptions.
        tokens_per_second: speed of the last update.
        seconds_left: estimated time until the last update.
        memory: peak memory of this process, in bytes; on a GPU, of its memory.
        share_of_peak: operations per second of the last update, as a fraction of this machine's
            rate in a large matrix product; None if the training run was too short to measure it.
            With several processes, each is assumed to have a machine as fast as this one.
        validation_loss: in nats per token of held-out text; None if not measured at this step.
        bits_per_byte: the same in bits per byte of that text, comparable between tokenizers.
        checkpoint: the folder of the checkpoint; None if none was written at this step.
        model: the model, in training mode.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     seen = []
        ...     options = dict(console=quiet, callbacks=[seen.append])
        ...     _ = train(folder, texts=["abc " * 200], gpt=gpt, config=config, **options)
        >>> [(metrics.step, metrics.tokens) for metrics in seen]
        [(1, 64), (2, 128)]
    """

    step: int
    steps: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    tokens_per_second: float
    seconds_left: float
    memory: int | None
    share_of_peak: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    checkpoint: Path | None
    model: GPT

    @property
    def perplexity(self) -> float:
        """``exp(loss)``, of the batch."""
        return perplexity(self.loss)

    @property
    def validation_perplexity(self) -> float | None:
        """``exp(validation_loss)``; None if it was not measured at this step."""
        return None if self.validation_loss is None else perplexity(self.validation_loss)

    def numbers(self) -> dict[str, float | int]:
        """Return the numbers measured at this step, by name."""
        numbers = {
            "step": self.step,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "seconds_left": round(self.seconds_left, 1),
            "memory": self.memory,
            "share_of_peak": self.share_of_peak,
            "validation_loss": self.validation_loss,
            "validation_perplexity": self.validation_perplexity,
            "bits_per_byte": self.bits_per_byte,
        }
        return {name: number for name, number in numbers.items() if number is not None}


class MetricsFile:
    """A file with a line of JSON per update, with a checksum, written immediately.

    Args:
        path: the file.
        step: the update that the training run resumes from; lines of later ones, which an
            interrupted training run left, and damaged lines are dropped.

    Warns:
        RuntimeWarning: if an update up to that one has no intact line.
    """

    def __init__(self, path: Path, step: int) -> None:
        lines = read_metrics(path, step, warn="they are left out")
        replace_file(path, b"".join(_line(numbers) for numbers in lines))
        self._file = path.open("ab")

    def __call__(self, metrics: Metrics, /) -> None:
        """Add a line."""
        self._file.write(_line(metrics.numbers()))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the failed write of a line has raised it already
            self._file.close()


def read_metrics(
    path: Path, step: int | None = None, *, warn: str | None = None
) -> list[dict[str, Any]]:
    """Return the intact lines of a file of metrics, in the order of their updates.

    Args:
        path: the file.
        step: the last update to read; None reads all.
        warn: end of a warning about updates whose line is damaged or missing, which says what
            happens to them; None does not warn.

    Warns:
        RuntimeWarning: if an update up to `step` has no intact line, and `warn` is given.
    """
    lines = [line for line in _lines(path) if step is None or 1 <= line["step"] <= step]
    # Lines of earlier versions have no checksum.
    if any(_CHECKSUM in line for line in lines):
        lines = [line for line in lines if line.pop(_CHECKSUM, None) == _checksum(line)]
    by_step = {line["step"]: line for line in lines}
    missing = sorted(set(range(1, (step or 0) + 1)) - by_step.keys())
    if missing and warn is not None:
        warnings.warn(
            f"{path}: the lines of {_updates(missing)} are damaged or missing, and {warn}; put "
            "back a copy of the file if you have one; the model does not depend on it",
            RuntimeWarning,
            stacklevel=3,
        )
    return [by_step[number] for number in sorted(by_step)]


def perplexity(loss: float) -> float:
    """``exp(loss)``, bounded by the largest float."""
    return exp(min(loss, log(sys.float_info.max)))


class Timer:
    """Measures the speed of a training run, and estimates the time left.

    Args:
        gpt: the model's shape.
        parameters: number of the model's parameters that each token is multiplied with.
        device: the device.
        bfloat16: whether products are computed in bfloat16.
        ranks: number of processes, each on its own machine or GPU.
        steps: number of updates of the whole training run.
        step: number of updates made before.
        seconds: the time that they took.
    """

    def __init__(
        self,
        gpt: GPTConfig,
        parameters: int,
        device: torch.device,
        *,
        bfloat16: bool,
        ranks: int,
        steps: int,
        step: int,
        seconds: float,
    ) -> None:
        self._gpt, self._parameters = gpt, parameters
        self._device, self._dtype = device, torch.bfloat16 if bfloat16 else torch.float32
        self._ranks = ranks
        self._steps, self._made, self._seconds = steps, step, seconds
        self._start = self._last = perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return self._seconds + perf_counter() - self._start

    def measure(self, step: int, tokens: int, length: int) -> dict[str, Any]:
        """Return the speed of an update that ends now; see `Metrics`."""
        now = perf_counter()
        spent = max(now - self._last, 1e-9)
        done = step - self._made
        speed = tokens / spent
        total = self._seconds + now - self._start
        # Measuring the peak takes 0.1 s, so shorter training runs skip it.
        known = now - self._start > 1.0
        peak = peak_rate(str(self._device), self._dtype) if known else None
        if known:
            now = perf_counter()
        self._last = now
        return {
            "seconds": total,
            "tokens_per_second": speed,
            "seconds_left": (now - self._start) / done * (self._steps - step),
            "memory": memory(self._device),
            "share_of_peak": None
            if peak is None
            else speed / self._ranks * operations(self._gpt, self._parameters, length) / peak,
        }

    def restart(self) -> None:
        """Restart the clock: time since the last update is not counted."""
        self._last = perf_counter()


def operations(gpt: GPTConfig, parameters: int, length: int) -> float:
    """Return the floating-point operations per token, forward and backward.

    Six per parameter, and those of attention, as in Chowdhery et al., "PaLM" (2022), appendix B,
    with half of its term for attention, since a causal head computes half of its pattern.
    """
    return 6 * parameters + 6 * gpt.layers * gpt.dim * length


@cache
def peak_rate(device: str, dtype: torch.dtype) -> float | None:
    """Measure the operations per second of this machine in a product of two large matrices.

    None if a GPU lacks the memory (0.1 GB in bfloat16), so that training can continue.
    """
    # On a GPU several products are timed, since one takes no longer than its launch.
    size, count = (1024, 1) if device == "cpu" else (4096, 16)
    best = float("inf")
    try:
        one = torch.full((size, size), 0.5, dtype=dtype, device=device)
        for _ in range(4):
            start = perf_counter()
            for _ in range(count):
                product = one @ one
            product[0, 0].item()
            best = min(best, perf_counter() - start)
    except torch.OutOfMemoryError:
        return None
    return 2 * size**3 * count / best


def memory(device: torch.device) -> int | None:
    """Return the peak memory of the process in bytes; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that can be read, with their checksums."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            numbers = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(numbers, dict) and type(numbers.get("step")) is int:
            yield numbers


def _line(numbers: Mapping[str, Any]) -> bytes:
    return (json.dumps({**numbers, _CHECKSUM: _checksum(numbers)}) + "\n").encode()


def _checksum(numbers: Mapping[str, Any]) -> str:
    return f"{crc32(json.dumps(numbers).encode()):08x}"


def _updates(steps: Sequence[int]) -> str:
    """Format update numbers as ranges, the first few of them.

    >>> _updates([3]), _updates([1, 2, 3, 7])
    ('update 3', 'updates 1–3, 7')
    """
    stretches: list[list[int]] = []
    for step in steps:
        if not stretches or step > stretches[-1][1] + 1:
            stretches.append([step, step])
        stretches[-1][1] = step
    words = [str(a) if a == b else f"{a}–{b}" for a, b in stretches[:_STRETCHES]]
    more = " …" if len(stretches) > _STRETCHES else ""
    return f"update{'s' if len(steps) > 1 else ''} {', '.join(words)}{more}"


def print_line(console: Console, line: str) -> None:
    """Print a line without wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def validation_line(metrics: Metrics) -> str:
    """Return the two lines printed after a validation, for a terminal of 80 columns."""
    assert metrics.validation_loss is not None
    peak = "" if metrics.share_of_peak is None else f", {metrics.share_of_peak:.0%} of the peak"
    size = "" if metrics.memory is None else f", {metrics.memory / 1e9:.1f} GB"
    return (
        f"update {metrics.step}: validation loss {metrics.validation_loss:.4f} (perplexity "
        f"{metrics.validation_perplexity:.2f}, {metrics.bits_per_byte:.3f} bits/byte),\n"
        f"  loss {metrics.loss:.4f}, {metrics.tokens_per_second:,.0f} tokens/s{peak}{size}"
    )


class ProgressBar(Progress):
    """A progress bar of updates, with the loss and the speed of the last."""

    def __init__(self, console: Console, steps: int, step: int) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[measured]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self.add_task("training", total=steps, completed=step, measured="")

    def show(self, metrics: Metrics) -> None:
        """Show an update."""
        measured = f"loss {metrics.loss:.3f} {metrics.tokens_per_second:,.0f} tokens/s"
        self.update(self._task, completed=metrics.step, measured=measured)
