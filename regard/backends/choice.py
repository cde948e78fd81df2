"""Which backend computes a problem: a pure function of the problem that can say why."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import is_nvidia
from regard.backends import eager, native, torch_sdpa
from regard.backends.extensions import (
    Backend,
    Extension,
    Reader,
    extension_of,
    extension_with,
    extensions,
    why_no_extension,
)
from regard.inputs import Problem

_BACKENDS: dict[str, Backend] = {"native": native, "torch_sdpa": torch_sdpa, "eager": eager}
NAMES = tuple(_BACKENDS)
"""Of the backends that regard brings itself."""
_FUSED = "the fused backends 'flash', 'cudnn', 'efficient' and 'flex'"


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
        """Whether an extension brings the backend: no GPU has run it in the project's tests."""
        return self.name not in _BACKENDS

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
        backend: a name from `NAMES` or of an extension, to have this one or an error.
        refused: backends that are not to be chosen, and why.

    Raises:
        ValueError: for an unknown name, and for a backend that can't honour an argument.
    """
    refused = {} if refused is None else refused
    if backend is not None:
        found, extension = _find(backend)
        why = refused.get(backend) or found.objection(problem)
        if why is not None:
            raise ValueError(f"backend={backend!r} cannot run this: {why}. Use backend='eager'.")
        return Choice(backend, version=_version(backend, extension))
    names, objections = _preferred(problem)
    for name in names:
        found, extension = _find(name)
        why = refused.get(name) or found.objection(problem)
        if why is None:
            return Choice(name, tuple(objections), _version(name, extension))
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
    while choice.experimental:
        _, extension = _find(choice.name)
        failure = None if extension is None else extension.failure(choice.name, problem)
        if failure is None:
            break
        refused[choice.name] = failure
        choice = choose(problem, backend, refused)
    if refused:
        warnings.warn(f"attention is computed by {choice}", RuntimeWarning, stacklevel=3)
    return choice


def _preferred(problem: Problem) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Name the backends of a problem's device, the fastest first, and why others are not there."""
    device = problem.query.device
    if device.type == "cpu":
        return NAMES, []
    extension = extension_of(device)
    if extension is not None:
        return extension.preferred(problem), []
    missing = [(_FUSED, why_no_extension())] if is_nvidia(device) else []
    return ("torch_sdpa", "eager"), missing


def _find(name: str) -> tuple[Backend, Extension | None]:
    """Find a backend by its name, and the extension that brings it, if one does."""
    if name in _BACKENDS:
        return _BACKENDS[name], None
    extension = extension_with(name)
    if extension is None:
        added = [name for extension in extensions() for name in extension.backends]
        missing = "" if added else f"; {_FUSED}: {why_no_extension()}"
        names = (*NAMES, *added)
        raise ValueError(f"backend is {name!r}, but must be None or one of {names}{missing}")
    return extension.backends[name], extension


def _version(name: str, extension: Extension | None) -> str | None:
    return None if extension is None else extension.version(name)


def run(
    problem: Problem, choice: Choice
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp with the backend chosen; None for what it does not tell."""
    found, _ = _find(choice.name)
    return found.run(problem)


def reader_of(device: torch.device) -> Reader:
    """What reads patterns on a device; it may object to all of them."""
    extension = extension_of(device)
    return native if extension is None else extension.reader
