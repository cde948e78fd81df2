"""`read_while_running`: take readouts at each attention call, without keeping queries and keys.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from regard._arguments import Indices
from regard._decorators import block
from regard._modules import HasModule
from regard._shapes import Float, Int
from regard.inputs import Problem
from regard.intercept import Call, PendingContext, observe_calls
from regard.pattern.reading import take
from regard.pattern.readout import Readout, Sizes, check_readout
from regard.record._layer_builder import LayerBuilder, LayerCall
from regard.record._recorder import Recorder, check_model, observed
from regard.record._selection import Selection, selection_of
from regard.record._tokens import Labeller
from regard.record._waiting import WaitingSteps
from regard.record.accumulator import Accumulator, allows_rows_together, missing_for_calls
from regard.record.readings import LayerReadings, Readings, names_of
from regard.record.sites import AttentionKind

# Number of trailing keys compared by checksum; reordered sequences differ in their last tokens.
_COMPARED = 16

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by item size in bytes."""


def read_while_running(
    model: nn.Module | HasModule | None,
    *readouts: Readout[Any, Any],
    tokens: Any = None,
    layers: Indices | None = None,
    heads: Indices | None = None,
    rows: Indices | None = None,
    every: int = 1,
) -> AbstractContextManager[Readings]:
    """Take readouts at each attention call in the ``with`` block, and keep only their results.

    Queries and keys are released after each call, so memory does not grow with the number of
    layers. Only up to 32 steps of a generation wait, to be read in one pass, with the keys of the
    latest: at most 4 MiB a layer, which the model's cache mostly holds itself. Over the steps of a
    generation, results per row are appended and sums over queries are accumulated.

    On a CPU, without gradients, calls of `regard.attention` and of torch's SDPA with 64 queries or
    more are computed in the pass that reads them, by this package's kernels: outputs of SDPA are
    the same up to rounding. The results of a call are bit-equal to those of `Recording.read`.

    Args:
        model: read only the calls of this model; None reads all calls on this thread.
        readouts: the readouts to take, from `regard.readouts`.
        tokens: labels of the positions, as for `record`.
        layers: indices of the layers to read, in the order of their first calls.
        heads: indices of the query heads to read.
        rows: indices of the queries to read, as for `record`.
        every: read one of so many calls of each layer, starting with the first.

    Returns:
        A context manager of the `Readings`, which can also be used between calls.

    Warns:
        RuntimeWarning: as for `record`, and if a readout names keys that never occurred.

    Raises:
        RecordError: as for `record`, and if keys of steps that wait were written to.
        TypeError: for readouts that cannot be taken of a growing pattern: `Image`, keys counted
            from the end, and classes without ``merge``.
        ValueError: as for `record`, and for ``every`` below 1.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> from regard.readouts import Max, Received
        >>> from regard.record import read_while_running
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with read_while_running(layer, Received(), Max()) as readings:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> readings["received"]
        Reading(received: layer 1 × batch 1 × head 2 × key 5)
    """
    module = check_model(model)
    _check_readouts(readouts)
    selection = selection_of(layers, heads, rows, every=every)
    return _reading(module, selection, Labeller(module, tokens), readouts)


def _check_readouts(readouts: Sequence[Any]) -> None:
    """Check that readouts can be taken call by call.

    Raises:
        TypeError: if there is none, for other objects, and for readouts that need the whole text.
    """
    if not readouts:
        raise TypeError(
            "read_while_running needs at least one readout, such as "
            "read_while_running(model, Received())"
        )
    for readout in readouts:
        check_readout(readout)
        missing = missing_for_calls(readout)
        if missing is not None:
            raise TypeError(
                f"{readout!r} can't be read while a model runs: it {missing}; use "
                "regard.record(model), and read the recording afterwards"
            )


@block("read_while_running(...)")
def _reading(
    model: nn.Module | None,
    selection: Selection,
    labeller: Labeller,
    readouts: tuple[Readout[Any, Any], ...],
) -> Iterator[Readings]:
    reader = _CallReader()
    recorder: Recorder[_SiteReadings] = Recorder(
        model,
        selection,
        partial(
            _SiteReadings,
            selection=selection,
            readouts=readouts,
            reader=reader,
            order=count(),
        ),
    )
    readings = Readings(readouts, partial(_results_of, recorder), labeller.labels)
    calls = observe_calls(reader.observing(recorder), reads=True)
    with observed(recorder, model, labeller, calls, readings.finish):
        yield readings
    _warn_of_missing_keys(readouts, readings)
    labeller.check(
        lambda: ((layer.name, layer.leading, layer.keys) for layer in readings.of_kind().layers),
        several=recorder.has_several_calls,
    )


def _warn_of_missing_keys(readouts: tuple[Readout[Any, Any], ...], readings: Readings) -> None:
    """Warn if a readout numbers or labels keys that never occurred."""
    shortest = min(readings.layers, key=lambda layer: layer.keys, default=None)
    if shortest is None:
        return
    where = repr(shortest.name) if shortest.name else f"layer {shortest.index}"
    for name, readout in zip(names_of(readouts), readouts, strict=True):
        if readout.within(shortest.keys) is not readout:
            warnings.warn(
                f"{name} names or labels keys that never came: {where} had only {shortest.keys} "
                "keys, and weight on others is read as 0; leave out all keys from "
                f"{shortest.keys} on",
                RuntimeWarning,
                stacklevel=4,
            )


class _CallReader:
    """Takes readouts of the observed call, together with its context if that is pending."""

    def __init__(self) -> None:
        self._pending: PendingContext | None = None

    def observing(self, observer: Callable[[Call], None]) -> Callable[[Call], None]:
        """Wrap an observer so that `take` can use the pending context of its call."""

        def observe(call: Call) -> None:
            self._pending = call.pending
            try:
                observer(call)
            finally:
                self._pending = None

        return observe

    def take(
        self, readouts: Sequence[Readout[Any, Any]], problem: Problem, sizes: Sizes
    ) -> tuple[Any, ...]:
        """Take readouts of a call, or of some of its rows or heads."""
        if self._pending is not None and self._pending.is_of(problem):
            return self._pending.take(readouts)
        return take(readouts, problem, sizes)


class _SiteReadings:
    """Reads the calls of one site; a call that does not continue the last one begins a new pattern.

    Args:
        call: the first call.
        kind: what the layer attends to.
        selection: the layers, heads and rows to read.
        readouts: the readouts to take.
        reader: takes the readouts of a call.
        order: numbers the patterns of all sites.
    """

    def __init__(
        self,
        call: LayerCall,
        kind: AttentionKind,
        *,
        selection: Selection,
        readouts: Sequence[Readout[Any, Any]],
        reader: _CallReader,
        order: Iterator[int],
    ) -> None:
        self._start: Callable[[LayerCall], _ReadingsBuilder] = lambda call: _ReadingsBuilder(
            call, kind, selection=selection, readouts=readouts, reader=reader
        )
        self._order = order
        self._finished: list[tuple[int, LayerReadings]] = []
        self._number, self._builder = next(order), self._start(call)

    @property
    def continued(self) -> bool:
        """Whether the latest call continued the previous one."""
        return self._builder.continued

    @property
    def queries(self) -> int:
        """Number of queries of the current text so far."""
        return self._builder.queries

    def extend(self, call: LayerCall) -> bool:
        """Read another call, which may begin a new pattern."""
        if not self._builder.extend(call):
            self._finished += self._read()
            self._number, self._builder = next(self._order), self._start(call)
        return True

    def patterns(self) -> list[tuple[int, LayerReadings]]:
        """Return the results so far, each with its index in call order and without a layer name."""
        return [*self._finished, *self._read()]

    def _read(self) -> list[tuple[int, LayerReadings]]:
        """Return the results of the current pattern; none if all its calls were skipped."""
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
        return [(self._number, readings)]


def _results_of(recorder: Recorder[_SiteReadings]) -> list[LayerReadings]:
    """Return the results so far, in the order of the patterns' first calls."""
    found = [
        (number, replace(readings, name=layer.name, kind=layer.kind, index=layer.index))
        for layer, builder in recorder.builders()
        for number, readings in builder.patterns()
    ]
    return [readings for _, readings in sorted(found, key=lambda pair: pair[0])]


class _ReadingsBuilder(LayerBuilder):
    """Reads the calls of one pattern, keeping checksums of its last keys.

    Args:
        call: the first call, as for every `LayerBuilder`.
        kind: likewise.
        selection: likewise.
        readouts: the readouts to take of each call.
        reader: takes them.
    """

    def __init__(
        self,
        call: LayerCall,
        kind: AttentionKind,
        *,
        selection: Selection,
        readouts: Sequence[Readout[Any, Any]],
        reader: _CallReader,
    ) -> None:
        self.number = call.number
        self.leading: tuple[int, ...] = ()
        self._checksums: deque[int] = deque(maxlen=_COMPARED)
        self._accumulator = Accumulator(readouts, take=reader.take)
        self._waiting = WaitingSteps() if all(map(allows_rows_together, readouts)) else None
        super().__init__(call, kind, selection=selection)

    @property
    def keys(self) -> int:
        """Number of keys so far."""
        return self._keys

    def results(self) -> tuple[Any, ...]:
        """Return the results so far; at least one row must have been read."""
        self._read_waiting()
        return self._accumulator.results(self._keys)

    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        self._first = _checksums(key[..., :1, :])
        self._append(key)

    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        self._checksums.extend(_checksums(key))

    def _begins_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        return _checksums(key) == self._first

    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        """Return whether the keys have the checksums of this pattern's last keys."""
        return self._are_last(_checksums(key))

    def _extend_keys(self, key: Float[Tensor, "B G s D"], past: int) -> bool:
        further = key.shape[-2] - past
        if past + further <= 0 or further > _COMPARED:
            return super()._extend_keys(key, past)
        # One computation serves the comparison and the new keys in a generation step.
        sums = _checksums(key, _COMPARED + further)
        if not self._are_last(sums[: len(sums) - further]):
            return False
        self._checksums.extend(sums[len(sums) - further :])
        return True

    def _are_last(self, sums: list[int]) -> bool:
        count = min(len(sums), len(self._checksums))
        return sums[len(sums) - count :] == list(self._checksums)[len(self._checksums) - count :]

    def _take(self, problem: Problem, shift: int, width: int) -> None:
        if problem.queries == 0:
            return
        if width < problem.keys:
            problem = problem.crop(slice(0, problem.queries), slice(0, width))
        self.leading = self.leading or problem.leading
        if self._waiting is not None and shift == 0 and self._waiting.add(problem):
            if self._waiting.is_full:
                self._read_waiting()
            return
        self._read_waiting()
        self._accumulator.add(problem, shift)

    def _read_waiting(self) -> None:
        problem = None if self._waiting is None else self._waiting.pop()
        if problem is not None:
            self._accumulator.add_rows(problem)


def _checksums(key: Float[Tensor, "B G s D"], count: int = _COMPARED) -> list[int]:
    """Compute an integer checksum of each of the last keys over all sequences and heads."""
    bits = key[..., -count:, :].view(_INTEGERS[key.itemsize])
    batch, groups, _, dim = key.shape
    sums: list[int] = (bits * _factors((batch, groups, 1, dim), key.device)).sum((0, 1, 3)).tolist()
    return sums


@lru_cache(maxsize=4)
def _factors(shape: tuple[int, ...], device: torch.device) -> Int[Tensor, "B G 1 D"]:
    """Hash consecutive integers to odd factors (the finalizer of splitmix64)."""
    numbers = torch.arange(1, prod(shape) + 1, device=device).reshape(shape)
    numbers = numbers * -7046029254386353131
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    return (numbers ^ (numbers >> 27)) | 1
