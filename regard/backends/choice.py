"""The choice of the backend for a problem: a pure function of it, which gives its reasons."""

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
"""Names of the backends that are part of regard."""
_FUSED = "the fused backends 'flash', 'cudnn', 'efficient' and 'flex'"


@dataclass(frozen=True)
class Choice:
    """A backend, and the objections to the backends of higher preference.

    Its text is one line with all of them.
    """

    name: str
    objections: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    """The version of FlashAttention on CUDA: 'FA2', 'FA3' or 'FA4'."""

    @property
    def experimental(self) -> bool:
        """Whether the backend is from an extension: no GPU runs it in the project's tests."""
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
    """Choose the first backend that supports every argument of a problem.

    Args:
        problem: the checked arguments.
        backend: a name from `NAMES` or of an extension, to require this backend.
        refused: names of backends that are excluded, and the reasons.

    Raises:
        ValueError: for an unknown name, or if the required backend does not support an argument.
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

    Args:
        problem: the checked arguments.
        backend: as for `choose`.

    Warns:
        RuntimeWarning: if a backend failed and another one is the fallback.

    Raises:
        ValueError: as `choose`, or if the required backend failed.
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
    """Return the backends for a problem's device, fastest first, and why others are missing."""
    device = problem.query.device
    if device.type == "cpu":
        return NAMES, []
    extension = extension_of(device)
    if extension is not None:
        return extension.preferred(problem), []
    missing = [(_FUSED, why_no_extension())] if is_nvidia(device) else []
    return ("torch_sdpa", "eager"), missing


def _find(name: str) -> tuple[Backend, Extension | None]:
    """Find a backend by its name, and its extension, if it is from one."""
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
    """Compute context and log-sum-exp, natural logarithm, with the chosen backend.

    Returns:
        The context; and the log-sum-exp, None if the backend does not return it.
    """
    found, _ = _find(choice.name)
    return found.run(problem)


def reader_of(device: torch.device) -> Reader:
    """Return the kernels that read patterns on a device; they may object to every problem."""
    extension = extension_of(device)
    return native if extension is None else extension.reader
