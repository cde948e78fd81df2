"""Check the format of the C++ with clang-format, and look for bugs in it with clang-tidy.

``python tools/clang.py``. clang-tidy needs the headers of a compiler; without one, the script says
so, checks the format alone and ends with status 77. It reads the kernels for the most capable
instruction sets, which have almost all of the code.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys

from driver import LEFT_OUT, ROOT, SOURCES, beside_python, configure

_SETS = "avx512;avx512vnni;avx512bf16;amx"


def main() -> int:
    """Check all files; the exit status is 0 where all is well."""
    files = sorted(
        str(file.relative_to(ROOT))
        for folder in (ROOT / "src/native", SOURCES)
        for file in folder.iterdir()
        if file.suffix in {".cpp", ".h"}
    )
    return _run("clang-format", "--dry-run", "--Werror", *files) or _tidy()


def _tidy() -> int:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        print("no compiler here, so no headers: clang-tidy is left out")
        return LEFT_OUT
    folder = configure(
        "tidy",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DONLY={_SETS if platform.machine() == 'x86_64' else 'baseline'}",
    )
    commands = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    # Each once: clang-tidy reads a file that is compiled for two sets with the options of both.
    own = sorted({each["file"] for each in commands})
    return _run("clang-tidy", "--quiet", "-p", str(folder), *own)


def _run(program: str, *arguments: str) -> int:
    command = [beside_python(program), *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.stderr.write(result.stdout + result.stderr)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
