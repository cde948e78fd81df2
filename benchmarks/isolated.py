"""A part of the benchmark in a process of its own, for libraries that are noisy or end untidily.

``python -m benchmarks.isolated MODULE:FUNCTION FILE`` measures, and writes the counts of targets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.arguments import take
from benchmarks.report import Report


def isolated(report: Report, measure: Callable[[Report], None]) -> None:
    """Run it; its tables appear as they come, what it writes to stderr only where it fails.

    Args:
        report: counts the targets that it met.
        measure: a function of a module, which the process imports.
    """
    with tempfile.TemporaryDirectory() as folder:
        counts, errors = Path(folder) / "counts.json", Path(folder) / "errors.txt"
        name = f"{measure.__module__}:{measure.__name__}"
        sys.stdout.flush()
        with errors.open("wb") as stderr:
            command = [sys.executable, "-m", "benchmarks.isolated", name, str(counts)]
            status = subprocess.run(command, stderr=stderr, check=False).returncode
        if status == 0:
            report.take_over(*json.loads(counts.read_text(encoding="utf-8")))
        else:
            sys.stderr.write(errors.read_text(encoding="utf-8", errors="replace"))
            report.failed(f"{name} ended with status {status}")


def _run(name: str, counts: Path) -> int:
    module, _, function = name.partition(":")
    report = Report()
    torch.manual_seed(0)
    try:
        getattr(import_module(module), function)(report)
    except Exception:  # noqa: BLE001 - this is the end of the process
        traceback.print_exc()
        return 1
    counts.write_text(json.dumps(report.counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    about = "Measure a part of the benchmark, MODULE:FUNCTION, and write the counts of targets."
    status = _run(*take("benchmarks.isolated", about, function=str, file=Path))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what libraries report of what is left at an exit is of no use here
