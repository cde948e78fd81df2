"""How this project is built: by scikit-build-core, with a compiler from PyPI if none is here.

The same package compiles the kernels of the page to WebAssembly, unless they are there already, as
in an sdist. PEP 517's functions; those not defined here are scikit-build-core's own.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from scikit_build_core import build
from scikit_build_core.build import (
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

import wasm

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, str | list[str]] | None
Kind = Literal["wheel", "editable"]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What building a wheel needs."""
    return [*build.get_requires_for_build_wheel(config_settings), *_zig("wheel", config_settings)]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What an editable install needs."""
    requires = build.get_requires_for_build_editable(config_settings)
    return [*requires, *_zig("editable", config_settings)]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """What building an sdist needs."""
    return [*build.get_requires_for_build_sdist(config_settings), *_zig()]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel."""
    wasm.make_current()
    _name_compiler("wheel", config_settings)
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the library, and a wheel that leads to it and to the checkout."""
    wasm.make_current()
    _name_compiler("editable", config_settings)
    return build.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build an sdist."""
    wasm.make_current()
    return build.build_sdist(sdist_directory, config_settings)


def _zig(kind: Kind | None = None, config_settings: Settings = None) -> list[str]:
    """The package that brings a compiler, where one is needed; None: for WebAssembly alone."""
    compiles = kind is not None and _compiles(kind, config_settings)
    needed = not wasm.is_current() or (compiles and _compiler() is None)
    return ["ziglang"] if needed else []


def _name_compiler(kind: Kind, config_settings: Settings) -> None:
    """Tell CMake which compiler to use."""
    if _compiles(kind, config_settings):
        os.environ["CXX"] = _compiler() or _zig_compiler()


def _compiles(kind: Kind, config_settings: Settings) -> bool:
    """Whether the library is to be built at all."""
    reader = SettingsReader.from_file("pyproject.toml", config_settings, state=kind)
    return bool(reader.settings.wheel.cmake)


def _compiler() -> str | None:
    """The compiler that the user names, or the first on the PATH that will do."""
    named = os.environ.get("CXX")
    return named or next(filter(_knows_cxx20, ("c++", "g++", "clang++")), None)


def _knows_cxx20(compiler: str) -> bool:
    """Whether a compiler exists, knows C++20 and has a standard library for it."""
    path = shutil.which(compiler)
    if path is None:
        return False
    command = [path, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    trial = subprocess.run(command, input=b"#include <span>", capture_output=True, check=False)
    return trial.returncode == 0


def _zig_compiler() -> str:
    """A command that calls the compiler of the package ziglang, in a folder for it and its cache.

    The cache can't serve a second build: it knows its files by the folder that ziglang lies in.
    """
    folder = Path("build/zig").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = folder / "c++"
    command.write_text(
        "#!/bin/sh\n"
        f"export ZIG_GLOBAL_CACHE_DIR={shlex.quote(str(folder / 'cache'))}\n"
        f'exec {shlex.quote(sys.executable)} -m ziglang c++ -target {_target()} "$@"\n',
        encoding="utf-8",
    )
    command.chmod(0o755)
    return str(command)


def _target() -> str:
    """The machine to compile for; the C library is the oldest that torch's own wheels run on."""
    machine = platform.machine().replace("arm64", "aarch64")
    return f"{machine}-macos" if sys.platform == "darwin" else f"{machine}-linux-gnu.2.28"
