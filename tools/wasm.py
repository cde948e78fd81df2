"""Compile the kernels that the page calls to WebAssembly, by the compiler of the package ziglang.

``python tools/wasm.py`` writes regard/page/static/kernels.wasm, unless it is newer than the
sources. The same sources and compiler give the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "native"
MODULE = ROOT / "regard" / "page" / "static" / "kernels.wasm"

_PARTS = ("kernels_wasm.cpp", "system_wasm.cpp")
_OPTIONS = (
    *("-target", "wasm32-wasi", "-msimd128"),  # the instructions that every browser has
    *("-std=c++20", "-Os", "-DNDEBUG", "-DREGARD_SET=wasm", "-fno-exceptions"),
    # As in src/native/CMakeLists.txt, but -Os: as fast here, and a quarter smaller.
    *("-fno-math-errno", "-fno-signed-zeros", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-Wall", "-Wextra", "-Wno-bitwise-conditional-parentheses"),
    *("-mexec-model=reactor", "-Wl,-z,stack-size=1048576", "-s"),  # a library, not a program
)


def is_current() -> bool:
    """Whether the module is there and newer than all that it is made of."""
    if not MODULE.is_file():
        return False
    return MODULE.stat().st_mtime >= max(one.stat().st_mtime for one in SOURCES.iterdir())


def make_current() -> None:
    """Compile the module where it is missing or older than its sources.

    Raises:
        subprocess.CalledProcessError: the compiler refuses the sources, and has said why.
    """
    if is_current():
        return
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / MODULE.name
        command = [sys.executable, "-m", "ziglang", "c++", *_OPTIONS, *_PARTS, "-o", str(written)]
        cache = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        subprocess.run(command, cwd=SOURCES, env=os.environ | cache, check=True)
        MODULE.write_bytes(written.read_bytes())


if __name__ == "__main__":
    make_current()
