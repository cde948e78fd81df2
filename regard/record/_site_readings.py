"""All that is read of one place of a model: its patterns, kept apart or reduced to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import RecordError
from regard.pattern.readout import Readout, check_readout
from regard.record._call_reader import CallReader
from regard.record._layer_builder import LayerCall
from regard.record._readings_builder import ReadingsBuilder
from regard.record._recorder import Recorder
from regard.record._selection import Selection
from regard.record.accumulator import mapped, missing_for_calls, tensors_in
from regard.record.names import Kind
from regard.record.readings import LayerReadings

Reduction = Literal["sum", "mean", "max"]
REDUCTIONS: tuple[Reduction, ...] = ("sum", "mean", "max")


def check_reading(read: Any, every: Any, reduce: Any, *, mean_contexts: bool, offload: Any) -> None:
    """Check the arguments of `record` that go with ``read``.

    Raises:
        TypeError: for anything but readouts, and for those that can't be taken call by call.
        ValueError: for arguments that contradict each other, and for other words.
    """
    if read is None:
        if every is not None or reduce is not None:
            raise ValueError(
                f"every={every!r} and reduce={reduce!r} say how readouts are taken while a model "
                "runs; give them too: record(model, read=[...])"
            )
        return
    if isinstance(read, Readout) or not isinstance(read, Sequence) or not read:
        raise TypeError(f"read must be a list of readouts, such as [Received()], but is {read!r}")
    for readout in read:
        check_readout(readout)
        missing = missing_for_calls(readout)
        if missing is not None:
            raise TypeError(
                f"{readout!r} can't be read while a model runs: it {missing}; record without read, "
                "and read the recording afterwards"
            )
    if reduce is not None and reduce not in REDUCTIONS:
        raise ValueError(
            f"reduce must be one of {', '.join(map(repr, REDUCTIONS))} or None, but is {reduce!r}"
        )
    if mean_contexts or offload is not None:
        raise ValueError(
            f"mean_contexts={mean_contexts!r} and offload={offload!r} say what a recording keeps, "
            "but with read there is none; leave them out, or leave read out"
        )


class SiteReadings:
    """Reads the calls of one place; those that do not go on from each other are patterns apart.

    Args:
        call, kind: as for `ReadingsBuilder`.
        selection: the part that is read.
        readouts: what to read.
        reader: takes them.
        reduce: how patterns become one; None keeps each.
        order: numbers the patterns of all places.
    """

    def __init__(
        self,
        call: LayerCall,
        kind: Kind,
        *,
        selection: Selection,
        readouts: Sequence[Readout[Any, Any]],
        reader: CallReader,
        reduce: Reduction | None,
        order: Iterator[int],
    ) -> None:
        self._start: Callable[[LayerCall], ReadingsBuilder] = lambda call: ReadingsBuilder(
            call, kind, selection=selection, readouts=readouts, reader=reader
        )
        self._readouts = readouts
        self._order = order
        self._reduce: Reduction | None = reduce
        self._ended: list[tuple[int, LayerReadings]] = []
        self._reduced: _Reduced | None = None
        self._place, self._builder = next(order), self._start(call)
        if reduce is not None:
            for _, readings in self._read():
                _require_numbers(readings, readouts, reduce)  # before more is computed

    @property
    def goes_on(self) -> bool:
        """Whether the latest call went on from the one before."""
        return self._builder.goes_on

    @property
    def queries(self) -> int:
        """How many queries the current text has had so far."""
        return self._builder.queries

    def extend(self, call: LayerCall) -> bool:
        """Read another call, which may begin another pattern."""
        if not self._builder.extend(call):
            for place, readings in self._read():
                if self._reduce is None:
                    self._ended.append((place, readings))
                else:
                    self._reduced = self._joined(self._reduced, readings, self._reduce)
            self._place, self._builder = next(self._order), self._start(call)
        return True

    def patterns(self) -> list[tuple[int, LayerReadings]]:
        """What was read so far, each with its number in the order of all; layers have no names."""
        last = self._read()
        if self._reduce is None:
            return [*self._ended, *last]
        reduced, place = self._reduced, self._place
        for _, readings in last:
            reduced = self._joined(reduced, readings, self._reduce)
        return [] if reduced is None else [(place, reduced.finish(self._reduce))]

    def _joined(self, before: _Reduced | None, readings: LayerReadings, how: Reduction) -> _Reduced:
        if before is None:  # the first call may have had none of the rows that are read
            _require_numbers(readings, self._readouts, how)
        return _reduced(before, readings, how)

    def _read(self) -> list[tuple[int, LayerReadings]]:
        """What was read of the current pattern; nothing where all its calls were left out."""
        builder = self._builder
        if not builder.rows:
            return []
        readings = LayerReadings(
            call=builder.number,
            heads=builder.heads,
            rows=builder.rows,
            leading=builder.leading,
            keys=builder.keys,
            results=builder.results(),
        )
        return [(self._place, readings)]


@dataclass(frozen=True, eq=False)
class _Reduced:
    """Patterns that became one; sums are kept in float64."""

    first: LayerReadings
    totals: tuple[Any, ...]
    count: int

    def finish(self, how: Reduction) -> LayerReadings:
        """Give the result, in the dtypes of the patterns' own."""
        divisor = self.count if how == "mean" else 1
        pairs = zip(self.totals, self.first.results, strict=True)
        results = (mapped(lambda t, own: (t / divisor).to(own.dtype), *pair) for pair in pairs)
        return replace(self.first, results=tuple(results))


def _reduced(before: _Reduced | None, readings: LayerReadings, how: Reduction) -> _Reduced:
    """Take one more pattern in."""
    if before is None:
        totals = tuple(mapped(torch.Tensor.double, result) for result in readings.results)
        return _Reduced(readings, totals, 1)

    def join(old: Tensor, new: Tensor) -> Tensor:
        _require_alike(old, new, how)
        return torch.maximum(old, new.double()) if how == "max" else old + new

    pairs = zip(before.totals, readings.results, strict=True)
    totals = tuple(mapped(join, *pair) for pair in pairs)
    return _Reduced(before.first, totals, before.count + 1)


def _require_alike(old: Tensor, new: Tensor, how: Reduction) -> None:
    if old.shape != new.shape:
        raise RecordError(
            f"reduce={how!r} needs calls of one shape, but what was read of one call has the shape "
            f"{tuple(old.shape)} and of a later one {tuple(new.shape)}; leave reduce out, which "
            "keeps them apart in run.calls"
        )


def _require_numbers(
    readings: LayerReadings, readouts: Sequence[Readout[Any, Any]], how: Reduction
) -> None:
    """Refuse readouts of positions, which have no mean."""
    for readout, result in zip(readouts, readings.results, strict=True):
        if not all(tensor.is_floating_point() for tensor in tensors_in(result)):
            raise TypeError(
                f"reduce={how!r} can't reduce {readout!r}, which gives positions; leave reduce "
                "out, which keeps calls apart in run.calls, or read it in a block of its own"
            )


def readings_of(recorder: Recorder[SiteReadings]) -> list[LayerReadings]:
    """What was read so far, in the order of the patterns' first calls."""
    found = [
        (number, replace(readings, name=place.name, kind=place.kind, index=place.index))
        for place, builder in recorder.builders()
        for number, readings in builder.patterns()
    ]
    return [readings for _, readings in sorted(found, key=lambda pair: pair[0])]
