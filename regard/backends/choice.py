"""Which backend computes a problem: a pure function of the problem that can say why."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from regard_experiments.gpu import flex, hardware, self_check
from regard_experiments.gpu.fused import cudnn, efficient, flash
from regard_experiments.gpu.rules import is_plain
from torch import Tensor

from regard._shapes import Float
from regard._tensors import is_nvidia
from regard.backends import eager, native, torch_sdpa
from regard.inputs import Problem

_ON_GPU = {"flash": flash, "cudnn": cudnn, "efficient": efficient, "flex": flex}
"""Experimental: no GPU has run them in this project's tests."""
_BACKENDS = {"native": native, "torch_sdpa": torch_sdpa, **_ON_GPU, "eager": eager}
NAMES = tuple(_BACKENDS)
# Fewer queries than fill a tile of cuDNN's. It builds a plan for each shape, which a cache that
# grows would ask for at each step, while FlashAttention splits the keys of few queries up.
_FEW = 64


@dataclass(frozen=True)
class Choice:
    """A backend, and what spoke against those that would have been preferred.

    Printing it says so in a line.
    """

    name: str
    objections: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    """Of FlashAttention on CUDA, which can be exchanged: 'FA2', 'FA3' or 'FA4'."""

    @property
    def experimental(self) -> bool:
        """Whether no GPU has run this backend in the project's tests."""
        return self.name in _ON_GPU

    @property
    def label(self) -> str:
        """The backend's name, its version, and whether it is experimental."""
        notes = [note for note in (self.version, "experimental" * self.experimental) if note]
        return f"{self.name} ({', '.join(notes)})" if notes else self.name

    def __str__(self) -> str:
        return "; ".join([self.label, *(f"not {other}: {why}" for other, why in self.objections)])


def choose(
    problem: Problem, backend: str | None = None, refused: Mapping[str, str] | None = None
) -> Choice:
    """Choose the first backend that honours every argument of a problem.

    Args:
        problem: the checked arguments.
        backend: a name from `NAMES`, to have this one or an error.
        refused: backends that are not to be chosen, and why.

    Raises:
        ValueError: for an unknown name, and for a backend that can't honour an argument.
    """
    refused = {} if refused is None else refused
    if backend is not None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend is {backend!r}, but must be None or one of {NAMES}")
        why = refused.get(backend) or _BACKENDS[backend].objection(problem)
        if why is not None:
            raise ValueError(f"backend={backend!r} cannot run this: {why}. Use backend='eager'.")
        return Choice(backend, version=_version(backend))
    objections: list[tuple[str, str]] = []
    for name in _preferred(problem):
        why = refused.get(name) or _BACKENDS[name].objection(problem)
        if why is None:
            return Choice(name, tuple(objections), _version(name))
        objections.append((name, why))
    raise AssertionError("eager objects to nothing")


def choose_checked(problem: Problem, backend: str | None = None) -> Choice:
    """Choose as `choose` does, among the backends that pass their self-check on the device.

    Warns:
        RuntimeWarning: where another backend takes over from one that failed, with the choice.

    Raises:
        ValueError: as `choose`, and where the backend named failed.
    """
    refused: dict[str, str] = {}
    choice = choose(problem, backend)
    while choice.name in _ON_GPU:
        run = _ON_GPU[choice.name].run
        failure = self_check.attention_failure(choice.name, run, problem)
        if failure is None:
            break
        refused[choice.name] = failure
        choice = choose(problem, backend, refused)
    if refused:
        warnings.warn(f"attention is computed by {choice}", RuntimeWarning, stacklevel=3)
    return choice


def _preferred(problem: Problem) -> tuple[str, ...]:
    """Name the backends of a problem's device, the fastest first."""
    device = problem.query.device
    if device.type == "cpu":
        return ("native", "torch_sdpa", "eager")
    if not is_nvidia(device):
        return ("torch_sdpa", "eager")
    # cuDNN's kernels are written for the tensor cores of these GPUs, FlashAttention 2 for those
    # before. Who activates a later FlashAttention wants that one.
    hopper = hardware.capability(device)[0] in {9, 10}
    first_cudnn = hopper and flash.activated() is None and problem.queries >= _FEW
    whole = ("cudnn", "flash") if first_cudnn else ("flash", "cudnn")
    # With intervals FlexAttention leaves out what nobody sees; else it would only have to be
    # compiled, and where a dense mask or bias exists there is nothing to write down.
    rows = problem.rows
    written = is_plain(rows) or not rows.is_interval
    others = ("efficient", "flex") if written else ("flex", "efficient")
    return (*whole, *others, "eager")


def _version(name: str) -> str | None:
    return (flash.activated() or "FA2") if name == "flash" else None


def run(
    problem: Problem, choice: Choice
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp with the backend chosen; None for what it does not tell."""
    return _BACKENDS[choice.name].run(problem)
