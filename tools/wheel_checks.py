"""What would keep a wheel from being installed, or its library from being loaded.

Tools for libraries that extend Python (abi3audit) have nothing to look at here: the library knows
nothing of Python, and this checks that it asks for none of its symbols.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lief

from targets import Target

MOST_BYTES = 15_000_000
_PROCESSORS = {
    "x86_64": {"X86_64"},
    "AMD64": {"AMD64"},
    "aarch64": {"AARCH64"},
    "arm64": {"ARM64"},
}
"""What each format calls a processor."""
_UNAVOIDABLE = ("__Zn", "__Zd", "___dso_handle", "__mh_dylib_header")
"""What zig's linker for macOS always exports: new and delete of C++, as weak definitions, for which
the system's are taken where they are there, and two names of its own."""


def objections(wheel: Path, library: Path, target: Target) -> Iterator[str]:
    """Everything that is wrong with a wheel and its library, in words."""
    if wheel.stat().st_size > MOST_BYTES:
        yield f"has {wheel.stat().st_size} bytes, more than {MOST_BYTES}"
    yield from _complaints("check-wheel-contents", "--no-config", str(wheel))
    yield from _complaints("twine", "check", "--strict", str(wheel))
    binary = lief.parse(str(library))
    assert binary is not None, library
    yield from _links(binary, target)
    yield from _symbols(binary)
    if target.system == "Linux":
        yield from _glibc(wheel, target)
    if target.system == "Darwin":
        yield from _oldest_macos(binary, target)


def _links(binary: lief.Binary, target: Target) -> Iterator[str]:
    """What it is built for, and which libraries it needs."""
    machine = binary.header
    names = (
        getattr(machine, "machine_type", None)
        or getattr(machine, "cpu_type", None)
        or getattr(machine, "machine", None)
    )
    processor = getattr(names, "name", str(names))
    if processor not in _PROCESSORS[target.processor]:
        yield f"is built for {processor}, not for {target.processor}"
    for one in binary.libraries:
        name = one if isinstance(one, str) else one.name
        if not name.lower().startswith(tuple(each.lower() for each in target.may_need)):
            yield f"needs {name}, which {target.system} may lack"


def _symbols(binary: lief.Binary) -> Iterator[str]:
    """What it needs of Python, or exports beside its own functions."""
    needed = {_plain(function.name) for function in binary.imported_functions}
    exported = {_plain(function.name) for function in binary.exported_functions}
    for name in sorted(needed):
        if re.match("_?Py[A-Z_]", name):
            yield f"needs {name} of Python, so it does not serve every version of it"
    if "regard_abi" not in exported:
        yield "does not export regard_abi, by which the package knows it"
    for name in sorted(exported):
        if not name.startswith(("regard_", *_UNAVOIDABLE)):
            yield f"exports {name}, which may be taken for another library's"


def _plain(name: str) -> str:
    """A function's name in C; macOS puts a sign before it."""
    return name.removeprefix("_") if name.startswith("_regard_") else name


def _glibc(wheel: Path, target: Target) -> Iterator[str]:
    """Whether it runs on every Linux that its tag names, as auditwheel sees it."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        yield f"auditwheel: {shown.stderr.strip()}"
        return
    tag = str(json.loads(shown.stdout)["overall_tag"])
    found = [int(number) for number in re.findall(r"manylinux_(\d+)_(\d+)_", tag)[0]]
    allowed = [int(number) for number in re.findall(r"manylinux_(\d+)_(\d+)_", target.tag)[0]]
    if found > allowed:
        yield f"runs on {tag} and later alone, as auditwheel says"


def _oldest_macos(binary: lief.Binary, target: Target) -> Iterator[str]:
    assert isinstance(binary, lief.MachO.Binary), "its format"
    version = binary.build_version or binary.version_min
    oldest = list(getattr(version, "minos", None) or version.version)[:2]
    allowed = [int(number) for number in target.tag.split("_")[1:3]]
    if oldest > allowed:
        yield f"runs on macOS {oldest[0]}.{oldest[1]} and later alone"


def _complaints(program: str, *arguments: str) -> Iterator[str]:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        yield f"{program}: {ended.stdout.strip()} {ended.stderr.strip()}"
