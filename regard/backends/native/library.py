"""The native library: loaded and checked once, at its first use."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

_ENDING = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
_NAME = f"libregard.{_ENDING}"
_ABI = 21  # the expected value of `regard_abi()`
_VARIABLE = "REGARD_INSTRUCTIONS"


def load() -> ctypes.CDLL | None:
    """Return the library, or None without one; `why_missing` says why.

    Raises:
        ValueError: if REGARD_INSTRUCTIONS names an instruction set that can't be used here.
    """
    opened = _open()
    return None if isinstance(opened, str) else opened


def why_missing() -> str | None:
    """Return why there is no library, as a sentence; None if there is one."""
    opened = _open()
    return opened if isinstance(opened, str) else None


# As torch.compiler.assume_constant_result, without importing the compiler.
why_missing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


class Description(NamedTuple):
    """The library as loaded on this machine."""

    path: str
    instructions: str
    """The instruction set in use."""
    built: tuple[str, ...]
    """Instruction sets that were compiled, the best first."""
    supported: tuple[str, ...]
    """Those of them that the processor supports."""
    pool: str
    """File of the OpenMP runtime that runs the threads; empty if they are the library's own."""


def describe() -> Description | None:
    """Return a description of the library, or None without one."""
    library = load()
    if library is None:
        return None

    def text(name: str) -> str:
        return os.fsdecode(getattr(library, f"regard_{name}")())

    built, supported = (tuple(text(name).split(",")) for name in ("built", "supported"))
    return Description(str(_path()), text("instructions"), built, supported, text("pool"))


def call(name: str, *arguments: bytes | int | None) -> None:
    """Call a kernel: structs are bytes, pointers are integers.

    Args:
        name: name of the exported function.
        arguments: its arguments.

    Raises:
        MemoryError: if the kernel could not allocate its scratch memory.
    """
    library = load()
    assert library is not None, "objection() sees to it"
    result = getattr(library, name)(*map(ctypes.c_void_p.from_param, arguments))
    if result != 0:
        raise MemoryError(f"no memory for {name} to work in")


# The parent package has imported torch before, so that the library finds its OpenMP runtime.
@functools.cache
def _open() -> ctypes.CDLL | str:
    """Load the library and choose its instruction set; return why if there is none."""
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
    """Return the path beside this file, or that of an editable install, or None."""
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
    """Declare the functions' types to ctypes if they are not int."""
    library.regard_choose.argtypes = [ctypes.c_char_p]
    library.regard_attend.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 4, ctypes.c_int64]
    for name in ("built", "supported", "instructions", "pool"):
        getattr(library, f"regard_{name}").restype = ctypes.c_char_p


def _choose(library: ctypes.CDLL) -> None:
    """Choose the instruction set named by the environment, or else the best."""
    name = os.environ.get(_VARIABLE) or None
    if library.regard_choose(name.encode() if name else None) != 0:
        supported, built = library.regard_supported().decode(), library.regard_built().decode()
        raise ValueError(
            f"{_VARIABLE} is {name!r}, but must be one of those that this processor can run: "
            f"{supported} (built are {built})"
        )
