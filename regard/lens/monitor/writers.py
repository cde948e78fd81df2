"""Writers of a monitor's numbers: functions of an update and its scalars."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from regard._files import replace_file
from regard.lens.monitor.history import UpdateReading


class WriterWarning(UserWarning):
    """A writer of a `Monitor` failed and is no longer called.

    Example:
        >>> import regard, torch, warnings
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> def fail(update, scalars):
        ...     raise OSError("the disk is full")
        >>> monitor = regard.Monitor(layer, every=1, writers=[fail])
        >>> with warnings.catch_warnings(record=True) as shown:
        ...     warnings.simplefilter("always")
        ...     with monitor.update():
        ...         layer(torch.randn(1, 5, 6)).sum().backward()
        >>> shown[0].category.__name__
        'WriterWarning'
    """


@runtime_checkable
class Writer(Protocol):
    """A function of an update and its numbers, which a monitor calls after each reading.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> def show(update, scalars):
        ...     print(update, sorted(scalars)[:2])
        >>> monitor = regard.Monitor(layer, every=100, writers=[show])
        >>> with monitor.update():
        ...     layer(torch.randn(1, 5, 6)).sum().backward()
        0 ['attention/entropy/0.0', 'attention/entropy/0.1']
    """

    def __call__(self, update: int, scalars: Mapping[str, float], /) -> object:
        """Write the numbers of an update, by names such as ``attention/max_logit/3.5``."""


def scalars_of(reading: UpdateReading) -> dict[str, float]:
    """Return the numbers of a reading by name.

    ``attention/QUANTITY/LAYER.HEAD`` of each head, and ``attention/QUANTITY/min``, ``mean`` and
    ``max`` over all of them.
    """
    scalars: dict[str, float] = {}
    for quantity, values in reading.values.items():
        summary = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        scalars |= {f"attention/{quantity}/{name}": float(x) for name, x in summary.items()}
        by_head = reading.by_head(quantity).items()
        scalars |= {f"attention/{quantity}/{head.short}": value for head, value in by_head}
    return scalars


class JSONLinesWriter:
    """Writes a line of JSON for each reading: ``{"update": 100, "attention/max_logit/3.5": …}``.

    NaN and infinity are written as null, since JSON lacks them. At the first update, lines of it
    and of later updates, left by an interrupted training run, are dropped, as are damaged lines.

    Args:
        path: the file; its folder is created if missing.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from regard.lens.monitor import JSONLinesWriter
        >>> path = Path(tempfile.mkdtemp()) / "attention.jsonl"
        >>> write = JSONLinesWriter(path)
        >>> write(100, {"attention/max_logit/3.5": 12.5})
        >>> json.loads(path.read_text())
        {'update': 100, 'attention/max_logit/3.5': 12.5}
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._started = False

    def __call__(self, update: int, scalars: Mapping[str, float], /) -> None:
        """Write a line."""
        if not self._started:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                replace_file(self._path, _lines_before(self._path, update))
            self._started = True
        finite = {name: x if math.isfinite(x) else None for name, x in scalars.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"update": update, **finite}) + "\n")


def _lines_before(path: Path, update: int) -> bytes:
    """Return the intact lines of earlier updates."""
    lines = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            number = json.loads(line)["update"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if line.endswith(b"\n") and type(number) is int and number < update:
            lines.append(line)
    return b"".join(lines)
