"""The result of a run on a GPU: a JSON with every number, and a Markdown table of each part.

Rows are printed as they come, and both files are written after each, so that a run that is cut off
is a result too. A further run into the same folder replaces the parts that it measures.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

Cell = float | int | str | None


class Result:
    """The tables of a run, part by part.

    Args:
        folder: where ``gpu.json`` and ``gpu.md`` are written.
        device: what is measured.
        seconds: the most that a part may take; what does not fit is left out, by name.
    """

    def __init__(self, folder: Path, device: torch.device, seconds: float) -> None:
        self._folder, self._limit = folder, seconds
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "gpu.json"
        own = facts(device)
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        is_same = before.get("device") == own["device"] and before.get("torch") == own["torch"]
        self._content: dict[str, Any] = {**own, "parts": before["parts"] if is_same else {}}
        self._part: dict[str, Any] = {}
        self._deadline = 0.0

    @property
    def failures(self) -> list[str]:
        """What failed, in all parts of this folder."""
        return [f"{n}: {f}" for n, p in self._content["parts"].items() for f in p["failed"]]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Begin a part; an error in it is written down, and ends it."""
        started = time.monotonic()
        self._deadline = started + self._limit
        self._part = {"tables": [], "failed": [], "left out": [], "missed": []}
        self._content["parts"][name] = self._part
        print(f"\n== {name}", flush=True)
        with self.attempt(name):
            yield
        self._part["seconds"] = round(time.monotonic() - started, 1)
        self._save()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Run a row; an error is printed at once and written down, and the next row follows."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rows are a result
            last = traceback.extract_tb(error.__traceback__)[-1]
            first = (str(error) or "no message").splitlines()[0]
            place = f"{Path(last.filename).name}:{last.lineno}"
            self.failed(f"{what}: {type(error).__name__}: {first} ({place})")

    def failed(self, what: str) -> None:
        """Print and write down what failed."""
        print(f"FAILED {what}", file=sys.stderr, flush=True)
        self._part["failed"].append(what)
        self._save()

    def left_out(self, what: str, why: str) -> None:
        """Print and write down what was not run."""
        print(f"left out {what}: {why}", flush=True)
        self._part["left out"].append(f"{what}: {why}")
        self._save()

    @property
    def is_over(self) -> bool:
        """Whether the part's time is over."""
        return time.monotonic() >= self._deadline

    def has_time(self, what: str) -> bool:
        """Whether the part has time left for a row; where not, the row is left out by name."""
        if not self.is_over:
            return True
        self.left_out(what, f"the {self._limit:.0f} s of this part are over")
        return False

    def table(self, title: str, *columns: str) -> None:
        """Begin a table."""
        self._part["tables"].append({"title": title, "columns": columns, "rows": []})
        print(f"\n{title}\n{' | '.join(columns)}", flush=True)

    def row(self, *cells: Cell) -> None:
        """Add a row to the latest table."""
        self._part["tables"][-1]["rows"].append(cells)
        print(" | ".join(map(text, cells)), flush=True)
        self._save()

    def at_most(self, what: str, value: float, target: float | None) -> str:
        """Write a value that is to be this small; None is for no target."""
        if target is None:
            return f"{value:.2f}"
        if value > target:
            self._part["missed"].append(f"{what}: {value:.2f}, not ≤ {target:g}")
        return f"{value:.2f} ≤ {target:g} {'✓' if value <= target else '✗'}"

    def _save(self) -> None:
        written = json.dumps(self._content, indent=1, ensure_ascii=False)
        (self._folder / "gpu.json").write_text(written + "\n", encoding="utf-8")
        (self._folder / "gpu.md").write_text(markdown(self._content), encoding="utf-8")


def facts(device: torch.device) -> dict[str, str]:
    """What was measured, with what, and when."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "a CPU, to try it out"
    return {
        "device": name,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": sys.version.split()[0],
        "date": datetime.now(UTC).date().isoformat(),
    }


def markdown(content: dict[str, Any]) -> str:
    """Write all parts as tables."""
    lines = [f"# {content['device']}, {content['date']}", "", f"torch {content['torch']}", ""]
    for name, part in content["parts"].items():
        lines += [f"## {name}", ""]
        for table in part["tables"]:
            lines += [table["title"], "", _line(table["columns"])]
            lines += [_line(["---"] + ["---:"] * (len(table["columns"]) - 1))]
            lines += [_line(map(text, row)) for row in table["rows"]] + [""]
        for kind in ("failed", "missed", "left out"):
            lines += [f"- {kind}: {each}" for each in part[kind]]
        lines += [""]
    return "\n".join(lines)


def text(cell: Cell) -> str:
    """Write a cell, numbers with four digits or so."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return str(cell)


def _line(cells: Any) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
