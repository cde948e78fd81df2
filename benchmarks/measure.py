"""Memory that a task takes, in a process of its own; times are `regard.cli.timing`'s."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path


def extra_memory(module: str, *arguments: str) -> int:
    """Run a module in a process of its own and read the bytes it prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1])


def high_water() -> int:
    """Most memory this process has held so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # where getrusage may give the parent's
        match = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), flags=re.MULTILINE)
        assert match is not None, "Linux has this line"
        return 1024 * int(match[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
