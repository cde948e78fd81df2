"""Compile the kernels that the page calls to WebAssembly, by the compiler of the package ziglang.

``python tools/wasm.py`` writes regard/page/static/kernels.wasm, and kernels_threads.wasm for pages
whose memory several workers share, unless they are newer than the sources. The same sources and
compiler give the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "native"
STATIC = ROOT / "regard" / "page" / "static"
MOST_MEMORY = 2**31  # bytes that workers may share, of which a browser reserves addresses
MODULES = {
    STATIC / "kernels.wasm": (),
    STATIC / "kernels_threads.wasm": (
        *("-matomics", "-mbulk-memory"),
        *("-Wl,--shared-memory,--import-memory", f"-Wl,--max-memory={MOST_MEMORY}"),
        *("-Wl,--export=__stack_pointer", "-Wl,--export=__wasm_init_tls"),
        *("-Wl,--export=__tls_size", "-Wl,--export=__tls_align"),
    ),
}

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
    """Whether the modules are there and newer than all that they are made of."""
    if not all(module.is_file() for module in MODULES):
        return False
    oldest = min(module.stat().st_mtime for module in MODULES)
    return oldest >= max(one.stat().st_mtime for one in SOURCES.iterdir())


def make_current() -> None:
    """Compile the modules, at once, where one is missing or older than its sources.

    Raises:
        subprocess.CalledProcessError: the compiler refuses the sources, and has said why.
    """
    if is_current():
        return
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for module, options in MODULES.items():
            written = Path(folder) / module.name
            command = [sys.executable, "-m", "ziglang", "c++", *_OPTIONS, *options, *_PARTS]
            command += ["-o", str(written)]
            cache = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
            process = subprocess.Popen(command, cwd=SOURCES, env=os.environ | cache)
            running.append((module, written, process))
        for module, written, process in running:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
            module.write_bytes(written.read_bytes())


if __name__ == "__main__":
    make_current()
