"""Extensions: backends for further devices, found by entry points.

A distribution declares entry points of the group ``regard.backends``, one per device type; each is
an object or a module that implements `Extension`. It is imported at the first tensor on that
device, or at the first backend name that is not in regard.

Axes: B batch, H query heads, N = B·H flattened heads, L queries, Dv head dimension of value.
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
"""The distribution with the extension for CUDA."""


@runtime_checkable
class Backend(Protocol):
    """A way to compute attention; a module with these two functions implements it."""

    def objection(self, problem: Problem, /) -> str | None:
        """Return why it can't compute a problem, or None."""

    def run(self, problem: Problem, /) -> tuple[Tensor, Tensor | None]:
        """Compute context ``(B, H, L, Dv)`` and log-sum-exp ``(B, H, L)``, natural logarithm.

        The latter may be None; it is then computed from query and key when it is needed.
        """


@runtime_checkable
class Reader(Protocol):
    """Kernels that compute readouts of a pattern; a module with these functions implements it."""

    def objection_to_reading(self, problem: Problem, /) -> str | None:
        """Return why `read` does not support a problem, or None."""

    def objection_to(self, spec: KernelSpec, problem: Problem, /) -> str | None:
        """Return why `read` can't compute one readout of a supported problem, or None."""

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
            problem: the checked arguments of attention.
            specs: the readouts.
            logsumexp: of each row, ``(N, L)``; None to compute it first.
            columns: a range of keys to restrict the pass to; it requires `logsumexp`. None for all.
        """

    def objection_to_comparing(self, one: Problem, other: Problem, /) -> str | None:
        """Return why `compare` does not support two problems, or None."""

    def compare(
        self,
        one: Problem,
        other: Problem,
        logsumexps: tuple[Tensor, Tensor],
        kind: Divergence,
        /,
    ) -> Tensor:
        """Compute the divergence between corresponding rows of two patterns, ``(N, L)``."""


@runtime_checkable
class DeviceReader(Reader, Protocol):
    """The reader of a device whose attention kernels may return imprecise log-sum-exps."""

    def refine(self, problem: Problem, logsumexp: Tensor, coarse_above: float, /) -> Tensor:
        """Recompute log-sum-exps ``(N, L)`` above a magnitude, without synchronizing the device."""


@runtime_checkable
class Extension(Protocol):
    """The backends and the reader for a device type."""

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The backends that it adds, by name."""

    @property
    def reader(self) -> DeviceReader:
        """The kernels that read patterns on the device."""

    def preferred(self, problem: Problem, /) -> tuple[str, ...]:
        """Return the names of the backends to try for a problem, fastest first, 'eager' last.

        They may be its own or regard's.
        """

    def failure(self, name: str, problem: Problem, /) -> str | None:
        """Return why a backend fails its self-check on the device of a problem, or None."""

    def version(self, name: str, /) -> str | None:
        """Return the version of a backend that has several, else None."""

    def facts(self) -> list[tuple[str, str]]:
        """Describe the device's kernels for `regard doctor`: pairs of a name and a sentence."""


_loaded: dict[str, Extension | None] = {}


def extension_of(device: torch.device) -> Extension | None:
    """Return the extension for a device's type, imported at the first call; None without one."""
    if device.type == "cpu":
        return None
    _load(device.type)  # a compiler may read the dictionary only after this
    return _loaded[device.type]


def extension_with(backend: str) -> Extension | None:
    """Return the extension with a backend of this name, or None."""
    for known in (_loaded.values, extensions):  # first those that are imported already
        for extension in known():
            if extension is not None and backend in extension.backends:
                return extension
    return None


def extensions() -> list[Extension]:
    """Return all installed extensions, imported at the first call."""
    _load()
    return [extension for extension in _loaded.values() if extension is not None]


def _load(kind: str | None = None) -> None:
    """Import the extension for a device type, or all; a no-op if it is loaded."""
    if kind in _loaded:
        return  # reading the entry points of all distributions takes milliseconds
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in found if kind is None else [kind]:
        if name not in _loaded:
            _loaded[name] = found[name].load() if name in found else None


# As torch.compiler.assume_constant_result, without importing the compiler, which then does not
# trace this import.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


def why_no_extension() -> str:
    """Return which distribution has the extension for CUDA, and how to install it."""
    return f"{EXPERIMENTS}, which brings them, is not installed: {_extras.install_experiments()}"


why_no_extension._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
