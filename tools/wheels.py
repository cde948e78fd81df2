"""Build the sdist and a wheel for each platform on one Linux machine, and run the kernels.

``python tools/wheels.py FOLDER [TAG …]``. Zig compiles for all platforms. The kernels run random
problems: those of this machine's processor directly, those for 64-bit Arm in qemu-aarch64 (Debian's
packages qemu-user and libc6-arm64-cross), those for Windows in Wine. Where an emulator is missing,
and for macOS, it prints that they did not run. The group ``wheels`` names the packages needed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lief

from assemble_wheel import add_library, build_pure
from driver import ROOT, build
from targets import TARGETS, Target
from wheel_checks import objections

PROBLEMS = "40"


def main(folder: str, *tags: str) -> int:
    """Build the wheels of these tags, else of all; the exit status is 1 where one has a fault."""
    known = {target.tag for target in TARGETS}
    if unknown := set(tags) - known:
        print(f"no platform has the tag {min(unknown)}; known are {sorted(known)}", file=sys.stderr)
        return 2
    wheels = Path(folder).absolute()
    wheels.mkdir(parents=True, exist_ok=True)
    lief.logging.disable()  # it reports what it skips in libraries for macOS
    with tempfile.TemporaryDirectory() as scratch:
        pure = build_pure(Path(scratch))
        for sdist in Path(scratch).glob("*.tar.gz"):
            shutil.copy(sdist, wheels)
            print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        faults = [
            fault
            for target in TARGETS
            if not tags or target.tag in tags
            for fault in _make(target, pure, wheels)
        ]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _make(target: Target, pure: Path, wheels: Path) -> Iterator[str]:
    """Build one wheel, and list what is wrong with it."""
    program = build(
        f"wheels/{target.tag}",
        f"-DCMAKE_SYSTEM_NAME={target.system}",
        f"-DCMAKE_SYSTEM_PROCESSOR={target.processor}",
        f"-DCMAKE_CXX_COMPILER={_zig('c++', target)}",
        f"-DCMAKE_AR={_zig('ar', target)}",
        f"-DCMAKE_RANLIB={_zig('ranlib', target)}",
        "-DCMAKE_STRIP=",  # zig strips while it links
    )
    library = program.parent / "native" / target.library
    wheel = add_library(pure, library, target.tag, wheels)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, ", end="", flush=True)
    for fault in objections(wheel, library, target):
        yield f"{wheel.name}: {fault}"
    yield from _run_problems(program, library, target)


def _run_problems(program: Path, library: Path, target: Target) -> Iterator[str]:
    """Run random problems with the library, where programs of this platform run."""
    native = (platform.system(), platform.machine()) == (target.system, target.processor)
    if not native and not (target.emulator and shutil.which(target.emulator[0])):
        print("not run: programs of this platform do not run here")
        return
    if target.system == "Windows":
        program = program.with_suffix(".exe")
        shutil.copy(library, program.parent)  # Windows looks for libraries beside the program
    command = [*(() if native else target.emulator), str(program), PROBLEMS]
    settings = os.environ | {"WINEDEBUG": "-all", "WINEPREFIX": str(ROOT / "build/wheels/wine")}
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    print(ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else "no answer")
    if ended.returncode:
        yield f"{target.tag}: the driver ended with status {ended.returncode}\n{ended.stderr}"


def _zig(tool: str, target: Target) -> Path:
    """A program that calls one of zig's tools; compilers are CMake's only by one name."""
    folder = ROOT / "build/wheels/zig" / target.tag
    folder.mkdir(parents=True, exist_ok=True)
    options = f" -target {target.zig} -s" if tool == "c++" else ""
    program = folder / tool
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ziglang {tool}{options} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
