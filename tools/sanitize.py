"""Build the kernels and their driver with sanitizers, and run it.

``python tools/sanitize.py SANITIZERS SAMPLES [CALLERS]``, sanitizers as compilers call them. Where
there is no compiler that has them, it says so and does nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(sanitizers: str, *arguments: str) -> int:
    """Build and run; the exit status is the driver's."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None or not _has(compiler, sanitizers):
        print(f"no compiler here builds with -fsanitize={sanitizers}: the kernels go unchecked")
        return 0
    build = ROOT / "build" / f"sanitize-{sanitizers}"
    cmake = [
        "cmake",
        *("-G", "Ninja", "-S", str(ROOT / "tests/native/driver"), "-B", str(build)),
        *(f"-DSANITIZE={sanitizers}", f"-DCMAKE_CXX_COMPILER={compiler}"),
    ]
    for command in (cmake, ["ninja", "-C", str(build)]):
        done = subprocess.run(_here(command), capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            return done.returncode
    print(f"{sanitizers}: ", end="", flush=True)
    return subprocess.run([str(build / "driver"), *arguments], check=False).returncode


def _has(compiler: str, sanitizers: str) -> bool:
    """Whether a program that is built with them runs."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        command = [compiler, f"-fsanitize={sanitizers}", "-x", "c++", "-", "-o", str(program)]
        built = subprocess.run(command, input=b"int main() {}", capture_output=True, check=False)
        return built.returncode == 0 and subprocess.run([program], check=False).returncode == 0


def _here(command: list[str]) -> list[str]:
    """Find a program beside Python first: the environment brings its own."""
    beside = Path(sys.executable).with_name(command[0])
    return [str(beside) if beside.exists() else command[0], *command[1:]]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
