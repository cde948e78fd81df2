"""Backends of devices that regard does not know itself, found by entry points where installed.

A distribution names them under the group ``regard.backends``, one entry point for each type of
device; each leads to an object or a module that is an `Extension`. It is imported when a tensor of
that device, or the name of a backend that is none of regard's own, is first met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard import _extras
from regard.backends.kernel_spec import Divergence, KernelSpec
from regard.inputs import Problem

GROUP = "regard.backends"
EXPERIMENTS = "regard-experiments"
"""The distribution that brings the extension for CUDA."""


@runtime_checkable
class Backend(Protocol):
    """A way to compute attention; a module with these two functions is one."""

    def objection(self, problem: Problem, /) -> str | None:
        """Say why it can't compute a problem, or None."""

    def run(self, problem: Problem, /) -> tuple[Tensor, Tensor | None]:
        """Compute context ``(B, H, L, Dv)`` and log-sum-exp ``(B, H, L)``, or None for the latter.

        A log-sum-exp of None is computed from query and key where it is needed.
        """


@runtime_checkable
class Reader(Protocol):
    """Kernels that compute readouts of a pattern; a module with these functions is one."""

    def objection_to_reading(self, problem: Problem, /) -> str | None:
        """Say why `read` can't serve a problem, or None."""

    def objection_to(self, spec: KernelSpec, problem: Problem, /) -> str | None:
        """Say why `read` can't compute a readout of a problem that it serves, or None."""

    def read(
        self,
        problem: Problem,
        specs: Sequence[KernelSpec],
        logsumexp: Tensor | None,
        columns: slice | None,
        /,
    ) -> list[tuple[Tensor, ...]]:
        """Compute readouts, a tuple of tensors each.

        Args:
            problem: query, key, mask and the rest.
            specs: the readouts.
            logsumexp: of each row, ``(N, L)``; None to compute it first.
            columns: keys to stay within, for which the log-sum-exp is given; None is all of them.
        """

    def objection_to_comparing(self, one: Problem, other: Problem, /) -> str | None:
        """Say why `compare` can't serve two problems, or None."""

    def compare(
        self,
        one: Problem,
        other: Problem,
        logsumexps: tuple[Tensor, Tensor],
        kind: Divergence,
        /,
    ) -> Tensor:
        """Compute a divergence of each row of one pattern from that of another, ``(N, L)``."""


@runtime_checkable
class DeviceReader(Reader, Protocol):
    """A reader of a device whose attention kernels give log-sum-exps that may be too coarse."""

    def refine(self, problem: Problem, logsumexp: Tensor, coarse_above: float, /) -> Tensor:
        """Compute log-sum-exps ``(N, L)`` above a size anew, without waiting for a number."""


@runtime_checkable
class Extension(Protocol):
    """What computes and reads attention on a type of device."""

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The backends that it adds, by name."""

    @property
    def reader(self) -> DeviceReader:
        """What reads patterns there."""

    def preferred(self, problem: Problem, /) -> tuple[str, ...]:
        """Name the backends to try for a problem, the fastest first; the last one is 'eager'.

        They may be its own or regard's.
        """

    def failure(self, name: str, problem: Problem, /) -> str | None:
        """Say why one of its backends fails its self-check on the device of a problem, or None."""

    def version(self, name: str, /) -> str | None:
        """Name the version of one of its backends, where that can be exchanged."""

    def facts(self) -> list[tuple[str, str]]:
        """Describe the device's kernels, for `regard doctor`: lines of a name and a sentence."""


_loaded: dict[str, Extension | None] = {}


def extension_of(device: torch.device) -> Extension | None:
    """The extension for a device's type, imported at the first call; None where there is none."""
    if device.type == "cpu":
        return None
    _load(device.type)  # a compiler may read the dictionary only after this
    return _loaded[device.type]


def extension_with(backend: str) -> Extension | None:
    """The extension that brings a backend of this name; None where none does."""
    for known in (_loaded.values, extensions):  # none is imported for a name that is known
        for extension in known():
            if extension is not None and backend in extension.backends:
                return extension
    return None


def extensions() -> list[Extension]:
    """All extensions that are installed, imported at the first call."""
    _load()
    return [extension for extension in _loaded.values() if extension is not None]


def _load(kind: str | None = None) -> None:
    """Import the extension for a type of device, or all of them; a no-op for one that is loaded."""
    if kind in _loaded:
        return  # the entry points of all distributions take milliseconds to read
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in found if kind is None else [kind]:
        if name not in _loaded:
            _loaded[name] = found[name].load() if name in found else None


# As torch.compiler.assume_constant_result does, but without loading the compiler: it does not trace
# the import, and reads the dictionary afterwards.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


def why_no_extension() -> str:
    """Say which distribution brings the extension for CUDA, and how to install it."""
    return f"{EXPERIMENTS}, which brings them, is not installed: {_extras.install_experiments()}"


why_no_extension._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
