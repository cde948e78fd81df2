"""Cross-compile the kernels for NEON and run their driver in an emulator.

``python tools/neon.py SAMPLES``. It needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian's packages
g++-aarch64-linux-gnu and qemu-user); where they are missing, it prints so and ends with status 77.
"""

from __future__ import annotations

import shutil
import sys

from driver import LEFT_OUT, build, run


def main(*arguments: str) -> int:
    """Build and run; the exit status is the driver's."""
    needed = "aarch64-linux-gnu-g++", "qemu-aarch64"
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        print(f"{' and '.join(missing)} not found: the NEON kernels are not tested")
        return LEFT_OUT
    program = build(
        "neon",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={needed[0]}",
    )
    return run("NEON", needed[1], "-L", "/usr/aarch64-linux-gnu", str(program), *arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
