"""Run the kernels' driver under sanitizers.

``python tools/sanitize.py SANITIZERS SETS SAMPLES [CALLERS]``, sanitizers as compilers call them,
and the instruction sets: ``best`` is the one that serves this processor, ``all`` are those that it
can run. Without a compiler that has the sanitizers, it prints so and ends with status 77.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from driver import LEFT_OUT, build, run


def main(sanitizers: str, sets: str, *arguments: str) -> int:
    """Build and run; the exit status is the driver's."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None or not _has(compiler, sanitizers):
        print(f"no compiler here builds with -fsanitize={sanitizers}: the kernels are not checked")
        return LEFT_OUT
    options = [f"-DSANITIZE={sanitizers}", f"-DCMAKE_CXX_COMPILER={compiler}"]
    options.append(f"-DONLY={';'.join(_sets(sanitizers, sets))}")
    name = sanitizers.replace(",", "-")  # commas mean something to linkers
    program = build(f"sanitize-{name}", *options)
    return run(sanitizers, str(program), *arguments)


def _sets(sanitizers: str, sets: str) -> list[str]:
    """The instruction sets to build: none that this processor cannot run."""
    if sanitizers == "thread":  # which thread touches what is the same for all of them
        return ["baseline"]
    # Here, since `make test` runs the sanitizer of threads before the package is installed.
    from regard.backends.native import library

    described = library.describe()
    if described is None:
        return []  # which CMake takes as all
    able = [name for name in reversed(described.built) if name in described.supported]
    return [described.instructions] if sets == "best" else able


def _has(compiler: str, sanitizers: str) -> bool:
    """Whether a program that is built with them runs."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        command = [compiler, f"-fsanitize={sanitizers}", "-x", "c++", "-", "-o", str(program)]
        built = subprocess.run(command, input=b"int main() {}", capture_output=True, check=False)
        return built.returncode == 0 and subprocess.run([program], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
