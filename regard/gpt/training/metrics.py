"""What a run reports after every update, and the file that keeps it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from math import exp, log
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from regard._files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from regard.gpt.config import GPTConfig
    from regard.gpt.model import GPT


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where a training run stands after an update.

    Attributes:
        step: updates done.
        steps: updates in all.
        loss: of the last batch, in nats a token, repeated random sequences included.
        gradient_norm: of that batch, before it was clipped.
        learning_rate: of that update.
        tokens: tokens trained on so far.
        seconds: time spent so far, over all parts of a run that was interrupted.
        tokens_per_second: of the last update.
        seconds_left: until the last update, at the rate so far.
        memory: most bytes that this process has had in memory; on a GPU, in its memory.
        share_of_peak: operations a second of the last update, as a share of what this machine
            reaches in a large matrix product; None where the run was too short to measure it. Of
            several processes, as if each had a machine as fast as this one.
        validation_loss: in nats a token of held-out text, where it was measured at this step.
        bits_per_byte: the same in bits a byte of that text, which no tokenizer changes.
        checkpoint: the folder of the checkpoint, where one was written at this step.
        model: the model as it stands, in training mode. Where several processes each have a piece
            of it, it can be run on all of them at once only.
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
        """How many tokens the model wavers between: e to the power of the loss on the batch."""
        return perplexity(self.loss)

    @property
    def validation_perplexity(self) -> float | None:
        """The same on held-out text, where it was measured."""
        return None if self.validation_loss is None else perplexity(self.validation_loss)

    def numbers(self) -> dict[str, float | int]:
        """All there is to plot, by name: what was measured at this step."""
        found = {
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
        return {name: number for name, number in found.items() if number is not None}


class Callback(Protocol):
    """What `train` calls after every update: a function of the report, or an object that is one."""

    def __call__(self, report: Metrics, /) -> object:
        """Look at where the run stands; the model may be looked at too, in `report.model`."""


class MetricsFile:
    """A line of JSON an update, written at once.

    Args:
        path: the file.
        step: the update that the run goes on from; lines of later ones, which a run that was cut
            off left behind, are dropped, and with them what a loss of power made of others.

    Attributes:
        lost: of how many updates up to that one there is no whole line.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = {n["step"]: line for line, n in _lines(path) if 1 <= n["step"] <= step}
        self.lost = step - len(kept)
        replace_file(path, b"".join(kept.values()))
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, report: Metrics, /) -> None:
        """Add a line."""
        self._file.write(json.dumps(report.numbers()) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics that are whole."""
    return [numbers for _, numbers in _lines(path)]


def perplexity(loss: float) -> float:
    """The perplexity of a loss: e to its power, as long as there is a number for it."""
    return exp(min(loss, log(sys.float_info.max)))


class Rates:
    """How fast a run is, and how long it will take.

    Args:
        gpt: the model's shape.
        parameters: numbers in the model that are multiplied with each token.
        device: where it runs.
        bfloat16: whether products are computed in it.
        ranks: how many processes there are, each on a machine or GPU of its own.
        steps: updates of the whole run.
        step: updates done already, which took
        seconds: so long.
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
        self._steps, self._before, self._spent = steps, step, seconds
        self._start = self._last = perf_counter()
        self._idle = 0.0

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return self._spent + perf_counter() - self._start

    def operations(self, length: int) -> float:
        """Floating-point operations that a token takes, forward and backward."""
        return operations(self._gpt, self._parameters, length)

    def measure(self, step: int, tokens: int, length: int) -> dict[str, Any]:
        """The rates of an update that ends now; see `Metrics`."""
        now = perf_counter()
        spent = max(now - self._last, 1e-9)
        done = step - self._before
        speed = tokens / spent
        since = self._spent + now - self._start
        # A second of training has to pass before a probe of a tenth of one is worth its while.
        known = now - self._start > 1.0
        peak = peak_rate(str(self._device), self._dtype) if known else None
        if known:
            now = perf_counter()
        self._last = now
        return {
            "seconds": since,
            "tokens_per_second": speed,
            "seconds_left": (now - self._start) / done * (self._steps - step),
            "memory": memory(self._device),
            "share_of_peak": None
            if peak is None
            else speed / self._ranks * self.operations(length) / peak,
        }

    def pass_over(self) -> None:
        """Leave what was done since the last update out of the next one's time."""
        self._last = perf_counter()


def operations(gpt: GPTConfig, parameters: int, length: int) -> float:
    """Operations a token takes: six for each number that is multiplied with it, and attention's.

    Chowdhery et al., "PaLM" (2022), appendix B, with half of its term for attention, since a causal
    head computes half of its pattern.
    """
    return 6 * parameters + 6 * gpt.layers * gpt.dim * length


@cache
def peak_rate(device: str, dtype: torch.dtype) -> float | None:
    """Operations a second that this machine reaches in a product of two large matrices.

    None where a GPU has no memory left for them, which is a tenth of a GB in bfloat16: a run is not
    to end for a figure.
    """
    # A GPU is given a row of products: a single one takes no longer than asking for it.
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
    """Most bytes that the process has had in memory; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a file that are whole, and their numbers."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            numbers = json.loads(line)
        except ValueError:
            continue
        whole = line.endswith(b"\n") and isinstance(numbers, dict)
        if whole and type(numbers.get("step")) is int:
            yield line, numbers
