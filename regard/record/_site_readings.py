"""All that is read of one place of a model: its patterns, kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from regard.pattern.readout import Readout, check_readout
from regard.record._call_reader import CallReader
from regard.record._layer_builder import LayerCall
from regard.record._readings_builder import ReadingsBuilder
from regard.record._recorder import Recorder
from regard.record._selection import Selection
from regard.record.accumulator import missing_for_calls
from regard.record.names import Kind
from regard.record.readings import LayerReadings


def check_reading(read: Any, every: Any, *, mean_contexts: bool, offload: Any) -> None:
    """Check the arguments of `record` that go with ``read``.

    Raises:
        TypeError: for anything but readouts, and for those that can't be taken call by call.
        ValueError: for arguments that contradict each other, and for other words.
    """
    if read is None:
        if every is not None:
            raise ValueError(
                f"every={every!r} says how readouts are taken while a model runs; give them too: "
                "record(model, read=[...])"
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
        order: Iterator[int],
    ) -> None:
        self._start: Callable[[LayerCall], ReadingsBuilder] = lambda call: ReadingsBuilder(
            call, kind, selection=selection, readouts=readouts, reader=reader
        )
        self._order = order
        self._ended: list[tuple[int, LayerReadings]] = []
        self._place, self._builder = next(order), self._start(call)

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
            self._ended += self._read()
            self._place, self._builder = next(self._order), self._start(call)
        return True

    def patterns(self) -> list[tuple[int, LayerReadings]]:
        """What was read so far, each with its number in the order of all; layers have no names."""
        return [*self._ended, *self._read()]

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


def readings_of(recorder: Recorder[SiteReadings]) -> list[LayerReadings]:
    """What was read so far, in the order of the patterns' first calls."""
    found = [
        (number, replace(readings, name=place.name, kind=place.kind, index=place.index))
        for place, builder in recorder.builders()
        for number, readings in builder.patterns()
    ]
    return [readings for _, readings in sorted(found, key=lambda pair: pair[0])]
