"""Build a wheel for each platform on one Linux machine, and run the kernels of those that run here.

``python tools/wheels.py FOLDER [TAG …]``. Zig compiles for all platforms. The kernels run random
problems: those of this machine's processor directly, those for 64-bit Arm in qemu-aarch64 (Debian's
packages qemu-user and libc6-arm64-cross), those for Windows in Wine. Where an emulator is missing,
and for macOS, it prints that they did not run. The extra ``wheels`` names the packages needed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import lief
from driver import ROOT, build

PROBLEMS = "40"
MOST_BYTES = 15_000_000
LINUX = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux")
MACOS = ("/usr/lib/libSystem.B.dylib", "@rpath/libregard.dylib")
WINDOWS = ("kernel32.dll", "ntdll.dll", "api-ms-win-crt-")
"""Beginnings of the names of what a library may be linked to: what each system has."""


@dataclass(frozen=True)
class Target:
    """A platform, as pip, zig and CMake name it."""

    tag: str
    zig: str
    system: str
    processor: str
    library: str
    may_need: tuple[str, ...]
    emulator: tuple[str, ...] = ()
    """The command that runs programs of this platform on others."""


TARGETS = (
    Target(
        "manylinux_2_28_x86_64",
        "x86_64-linux-gnu.2.28",
        "Linux",
        "x86_64",
        "libregard.so",
        LINUX,
    ),
    Target(
        "manylinux_2_28_aarch64",
        "aarch64-linux-gnu.2.28",
        "Linux",
        "aarch64",
        "libregard.so",
        LINUX,
        ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
    ),
    Target("macosx_11_0_arm64", "aarch64-macos.11.0", "Darwin", "arm64", "libregard.dylib", MACOS),
    Target("macosx_11_0_x86_64", "x86_64-macos.11.0", "Darwin", "x86_64", "libregard.dylib", MACOS),
    Target(
        "win_amd64",
        "x86_64-windows-gnu",
        "Windows",
        "AMD64",
        "libregard.dll",
        WINDOWS,
        ("wine",),
    ),
)


def main(folder: str, *tags: str) -> int:
    """Build the wheels of these tags, else of all; the exit status is 1 where one has a fault."""
    wheels = Path(folder).absolute()
    wheels.mkdir(parents=True, exist_ok=True)
    lief.logging.disable()  # it reports what it skips in libraries for macOS
    with tempfile.TemporaryDirectory() as scratch:
        pure = _pure_wheel(Path(scratch))
        faults = [
            fault
            for target in TARGETS
            if not tags or target.tag in tags
            for fault in _make(target, pure, wheels)
        ]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _make(target: Target, pure: Path, wheels: Path) -> list[str]:
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
    wheel = _platform_wheel(pure, library, target, wheels)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, ", end="", flush=True)
    faults = [f"{wheel.name}: {fault}" for fault in _objections(wheel, library, target)]
    return faults + _run_problems(program, library, target)


def _pure_wheel(folder: Path) -> Path:
    """Everything but the kernels."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    _run(*command, "-Cwheel.cmake=false", str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _platform_wheel(pure: Path, library: Path, target: Target, wheels: Path) -> Path:
    """The wheel with a library and the platform's tag."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(sys.executable, "-m", "wheel", "unpack", "--dest", scratch, str(pure))
        (folder,) = Path(scratch).iterdir()
        shutil.copy(library, folder / "regard/backends/native" / target.library)
        (description,) = folder.glob("*.dist-info/WHEEL")
        text = description.read_text(encoding="utf-8")
        text = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        description.write_text(text.replace("py3-none-any", f"py3-none-{target.tag}"), "utf-8")
        _run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(wheels), str(folder))
    (wheel,) = wheels.glob(f"*-{target.tag}.whl")
    return wheel


def _objections(wheel: Path, library: Path, target: Target) -> list[str]:
    """What would keep a wheel from being installed or its library from being loaded."""
    binary = lief.parse(str(library))
    assert binary is not None, library
    needed = [name if isinstance(name, str) else name.name for name in binary.libraries]
    objections = [
        f"needs {name}, which {target.system} may lack"
        for name in needed
        if not name.lower().startswith(tuple(each.lower() for each in target.may_need))
    ]
    if wheel.stat().st_size > MOST_BYTES:
        objections.append(f"has {wheel.stat().st_size} bytes, more than {MOST_BYTES}")
    return objections


def _run_problems(program: Path, library: Path, target: Target) -> list[str]:
    """Run random problems with the library, where programs of this platform run."""
    native = (platform.system(), platform.machine()) == (target.system, target.processor)
    if not native and not (target.emulator and shutil.which(target.emulator[0])):
        print("not run: programs of this platform do not run here")
        return []
    if target.system == "Windows":
        program = program.with_suffix(".exe")
        shutil.copy(library, program.parent)  # Windows looks for libraries beside the program
    command = [*(() if native else target.emulator), str(program), PROBLEMS]
    settings = os.environ | {"WINEDEBUG": "-all"}
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    print(ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else "no answer")
    if ended.returncode == 0:
        return []
    return [f"{target.tag}: the driver ended with status {ended.returncode}\n{ended.stderr}"]


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


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{ended.stdout}\n{ended.stderr}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
