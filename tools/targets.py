"""The platforms that wheels are built for, as pip, zig and CMake name them."""

from __future__ import annotations

from dataclasses import dataclass

_LINUX = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux")
_MACOS = ("/usr/lib/libSystem.B.dylib", "@rpath/libregard.dylib")
_WINDOWS = ("kernel32.dll", "ntdll.dll", "api-ms-win-crt-")


@dataclass(frozen=True)
class Target:
    """A platform.

    Args:
        tag: pip's name.
        zig: zig's name, with the oldest version of the system that the library runs on.
        system: CMake's name of the operating system, which is also Python's.
        processor: Python's name of the processor.
        library: the file of the kernels.
        may_need: beginnings of the names of what a library may be linked to: what each system has.
        emulator: the command that runs programs of this platform on others.
    """

    tag: str
    zig: str
    system: str
    processor: str
    library: str
    may_need: tuple[str, ...]
    emulator: tuple[str, ...] = ()


TARGETS = (
    Target(
        "manylinux_2_28_x86_64",
        "x86_64-linux-gnu.2.28",
        "Linux",
        "x86_64",
        "libregard.so",
        _LINUX,
    ),
    Target(
        "manylinux_2_28_aarch64",
        "aarch64-linux-gnu.2.28",
        "Linux",
        "aarch64",
        "libregard.so",
        _LINUX,
        ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
    ),
    Target(
        "macosx_11_0_arm64",
        "aarch64-macos.11.0",
        "Darwin",
        "arm64",
        "libregard.dylib",
        _MACOS,
    ),
    Target(
        "macosx_11_0_x86_64",
        "x86_64-macos.11.0",
        "Darwin",
        "x86_64",
        "libregard.dylib",
        _MACOS,
    ),
    Target(
        "win_amd64",
        "x86_64-windows-gnu",
        "Windows",
        "AMD64",
        "libregard.dll",
        _WINDOWS,
        ("wine",),
    ),
)
