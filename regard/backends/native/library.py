"""The native library: loaded and checked once, at its first use."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import struct
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

_ENDING = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
_NAME = f"libregard.{_ENDING}"
_ABI = 15  # what this package expects of `regard_abi()`
_VARIABLE = "REGARD_INSTRUCTIONS"


def load() -> ctypes.CDLL | None:
    """The library, or None where there is none; `why_missing` says why.

    Raises:
        ValueError: if REGARD_INSTRUCTIONS names an instruction set that can't be used here.
    """
    opened = _open()
    return None if isinstance(opened, str) else opened


def why_missing() -> str | None:
    """Why there is no library, in plain words; None where there is one."""
    opened = _open()
    return opened if isinstance(opened, str) else None


# As torch.compiler.assume_constant_result does, but without loading the compiler.
why_missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


class Description(NamedTuple):
    """What the library is and does on this machine."""

    path: str
    instructions: str
    """The set in use; below those built and those the processor can run, the best first."""
    built: tuple[str, ...]
    supported: tuple[str, ...]
    pool: str
    """File of the OpenMP runtime whose threads do the work; empty where they are its own."""


def describe() -> Description | None:
    """Describe the library, or None where there is none."""
    library = load()
    if library is None:
        return None

    def text(name: str) -> str:
        return os.fsdecode(getattr(library, f"regard_{name}")())

    built, supported = (tuple(text(name).split(",")) for name in ("built", "supported"))
    return Description(str(_path()), text("instructions"), built, supported, text("pool"))


def call(name: str, *arguments: bytes | tuple[int, ...] | int | None) -> None:
    """Call a computation of the library: structs as bytes or integers, pointers as integers.

    Raises:
        MemoryError: if there is none left for the kernels to work in.
    """
    library = load()
    assert library is not None, "objection() sees to it"
    result = getattr(library, name)(*map(_argument, arguments))
    if result != 0:
        raise MemoryError(f"no memory for {name} to work in")


def _argument(value: bytes | tuple[int, ...] | int | None) -> bytes | ctypes.c_void_p:
    if isinstance(value, tuple):
        return struct.pack(f"{len(value)}q", *value)
    return value if isinstance(value, bytes) else ctypes.c_void_p(value)


# Torch is loaded before: the package that this module lies in imports it.
@functools.cache
def _open() -> ctypes.CDLL | str:
    """The library with its instruction set chosen, or why there is none."""
    path = _path()
    if path is None:
        return (
            "this install has no native library; on Linux and macOS, installing regard again "
            "without wheel.cmake=false builds it"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native library can't be loaded: {error}"
    abi = library.regard_abi()
    if abi != _ABI:
        why = f"the native library has ABI {abi}, but this regard needs {_ABI}; install it again"
        warnings.warn(f"{why}. Until then torch computes, which takes longer", stacklevel=2)
        return why
    _declare(library)
    _choose(library)
    return library


def _path() -> Path | None:
    """Next to this file; or where an editable install put it, since this file is then elsewhere."""
    beside = Path(__file__).with_name(_NAME)
    if beside.exists():
        return beside
    try:
        files = importlib.metadata.files("regard") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = (Path(file.locate()) for file in files if file.name == _NAME)
    return next(filter(Path.exists, installed), None)


def _declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the functions' types where they are not int."""
    library.regard_choose.argtypes = [ctypes.c_char_p]
    library.regard_attend.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 4, ctypes.c_int64]
    for name in ("built", "supported", "instructions", "pool"):
        getattr(library, f"regard_{name}").restype = ctypes.c_char_p


def _choose(library: ctypes.CDLL) -> None:
    """Use the instruction set that the environment names, or else the best."""
    name = os.environ.get(_VARIABLE) or None
    if library.regard_choose(name.encode() if name else None) != 0:
        supported, built = library.regard_supported().decode(), library.regard_built().decode()
        raise ValueError(
            f"{_VARIABLE} is {name!r}, but must be one of those that this processor can run: "
            f"{supported} (built are {built})"
        )
