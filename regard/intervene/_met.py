"""Which of the things that changes name were there when the model ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from regard._arguments import from_start
from regard.errors import Error
from regard.intervene._place import Place, key_runs
from regard.intervene.changes import Change, KnockOut, Selected, Steer
from regard.record.names import Kind


class Met:
    """What the calls of a block met of the changes that were stated."""

    def __init__(self) -> None:
        self._layers: dict[Change, set[int]] = defaultdict(set)
        self._numbers: dict[tuple[Change, str], set[int]] = defaultdict(set)
        self._largest: dict[tuple[Change, str], int] = {}

    def add(self, change: Change, layer: int, place: Place) -> None:
        """Take note of a call that a change concerns."""
        self._layers[change].add(layer)
        if not isinstance(change, (KnockOut, Steer)):
            return
        for name, numbers, count in (
            ("queries", change.queries, max(place.query_counts)),
            ("keys", change.keys, max(place.key_counts)),
        ):
            self._largest[change, name] = max(count, self._largest.get((change, name), 0))
            self._numbers[change, name].update(_present(name, numbers, count, place))

    def require_all(self, changes: Sequence[Change], layers: dict[Kind, int]) -> None:
        """Refuse changes that name what no call had.

        Args:
            changes: all that were stated.
            layers: how many layers of each kind made calls.

        Raises:
            Error: for the first such change.
        """
        for change in changes:
            met = self._layers[change]
            missing = sorted(set(change.layers) - met) if isinstance(change.layers, tuple) else []
            if missing or not met:
                had = ", ".join(f"{count} of kind {kind!r}" for kind, count in layers.items())
                what = f"layer {missing[0]}" if missing else "a layer that it names"
                raise Error(
                    f"{change!r} was not made: {what} made no call; layers that did: "
                    f"{had or 'none'}"
                )
            for name in ("queries", "keys"):
                self._require_numbers(change, name)

    def _require_numbers(self, change: Change, name: str) -> None:
        numbers: Selected = getattr(change, name, None)
        if numbers is None:
            return
        met = self._numbers[change, name]
        missing = [n for n in numbers if n not in met] if isinstance(numbers, tuple) else []
        if missing or not met:
            what = f"{name} {missing[0]}" if missing else f"any of these {name}"
            raise Error(
                f"{change!r} was not made: no call had {what}; the longest text had "
                f"{self._largest[change, name]} {name}"
            )


def _present(name: str, numbers: Selected, count: int, place: Place) -> set[int]:
    """Those of the numbers that a call has; of a slice any one."""
    if isinstance(numbers, tuple):
        present = set(numbers)
        if name == "keys":
            return {n for n in present if 0 <= from_start(n, count) < count}
        rows = set(place.queries.unique().tolist())
        return {n for n in present if from_start(n, count) in rows}
    if name == "keys":
        return {0} if any(start < stop for start, stop in key_runs(numbers, count)) else set()
    return {0} if bool(torch.any(place.rows(numbers))) else set()
