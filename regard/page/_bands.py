"""Reads a head's pattern in bands of rows, between which the request can be cancelled.

Axes: L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.naming.tallies import Read
from regard.page._work import require_wanted
from regard.pattern import MeanPattern, Pattern
from regard.pattern.reading import are_streamed
from regard.pattern.readout import Sizes
from regard.pattern.readouts import Blocks, Distance, Entropy, Mass, Readout, Received
from regard.pattern.stream import WeightBlock
from regard.pattern.weighted import WeightedPattern

# Weights of a band, some 140 ms on 2 cores; a band of a mean may have more, since it has at least
# `_ROWS` rows per thread.
_BAND = 2**27
_ROWS = 64  # rows of a task of the kernels
_THREADS = 8  # maximum number of threads that a band of a mean has rows for
_KEPT = 4  # cancelled heads whose partial results are kept, at most 64 MiB each
_PATIENCE = 0.1  # seconds between a waiting thread's checks for cancellation


AnyPattern = Pattern | WeightedPattern | MeanPattern
"""A head in any view, or a mean of heads."""


def _is_weighted(pattern: AnyPattern) -> bool:
    one = pattern.patterns[0] if isinstance(pattern, MeanPattern) else pattern
    return isinstance(one, WeightedPattern)


@overload
def rows(pattern: Pattern, first: int, stop: int) -> Pattern: ...
@overload
def rows(pattern: AnyPattern, first: int, stop: int) -> AnyPattern: ...
def rows(pattern: AnyPattern, first: int, stop: int) -> AnyPattern:
    """Restrict a head or a mean of heads to a range of rows, ``(stop − first, S)``."""
    return pattern.crop((first, stop))


def fewest_rows() -> int:
    """Return the minimum number of rows of a mean's band, so that each thread has a task."""
    return _ROWS * min(torch.get_num_threads(), _THREADS)


class _Along:
    """Accumulates the readouts along the text over bands of rows."""

    READOUTS = Entropy(), Distance(), Mass(0), Received()

    def __init__(self, pattern: AnyPattern) -> None:
        self._dtype = pattern.dtype
        self._of_rows: list[Tensor] = []
        self._received = torch.zeros(pattern.shape[-1], dtype=torch.float64, device=pattern.device)

    def add(self, entropy: Tensor, distance: Tensor, first: Tensor, received: Tensor) -> None:
        self._of_rows.append(torch.stack([entropy, distance, first]))
        self._received += received

    def read(self, band: AnyPattern) -> None:
        """Read a band; entropy and distance are NaN where entries do not add up to 1."""
        if not _is_weighted(band):
            return self.add(*band.read(*self.READOUTS))
        first, received = band.read(*self.READOUTS[2:])
        none = torch.full_like(first, torch.nan)
        return self.add(none, none, first, received)

    def result(self) -> Float[Tensor, "4 l"]:
        received = self._received.to(self._dtype)
        return torch.cat([torch.cat(self._of_rows, dim=-1), received[None]])


class KnownHead(NamedTuple):
    """A head with its log-sum-exps, and other results of the pass that computed them."""

    pattern: Pattern | WeightedPattern
    cells: Float[Tensor, "rows columns"] | None
    """Down-sampled map, if requested when the pass started."""
    along: Float[Tensor, "4 l"] | None
    """The readouts of `readouts_along`, if requested when the pass started."""


class PendingHead:
    """A head whose log-sum-exps are being computed; after cancellation the next call continues."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._parts: list[Tensor] = []
        self._cells: list[Tensor] = []
        self._block: int | None = None
        self._along: _Along | None = None
        self._next = 0
        self._lock = Lock()

    def finish(
        self, cancelled: Event | None, block: int | None = None, *, along: bool = False
    ) -> KnownHead:
        """Compute the bands that are missing; one thread does so while others wait.

        The first call decides which other results the pass computes.

        Args:
            cancelled: ends it early.
            block: side of the cells of a down-sampled map; None for no map.
            along: whether to take the readouts along the text.
        """
        while not self._lock.acquire(timeout=_PATIENCE):
            require_wanted(cancelled)
        try:
            if self._next == 0:
                self._block = block
                self._along = _Along(self._pattern) if along else None
            for first, stop in bands(self._pattern, _BAND, self._next, self._block or 1):
                require_wanted(cancelled)
                self._read(rows(self._pattern, first, stop))
                self._next = stop
            cells = torch.cat(self._cells) if block is not None and block == self._block else None
            logsumexp = torch.cat(self._parts, dim=-1)
            of_rows = None if self._along is None else self._along.result()
        finally:
            self._lock.release()
        return KnownHead(Pattern.of(self._pattern.problem, logsumexp), cells, of_rows)

    def drop_readings(self) -> None:
        """Drop all results but the log-sum-exps, which are small; a no-op during a pass."""
        if self._lock.acquire(blocking=False):
            try:
                if self._next > 0:
                    self._block = self._along = None
                    self._cells.clear()
            finally:
                self._lock.release()

    def _read(self, band: Pattern) -> None:
        blocks = () if self._block is None else (Blocks(self._block, self._block),)
        along = () if self._along is None else self._along.READOUTS
        results = band.read(*blocks, *along)
        self._cells += results[: len(blocks)]
        if self._along is not None:
            self._along.add(*results[len(blocks) :])
        self._parts.append(band.logsumexp)


class PendingHeads:
    """The heads of a run whose log-sum-exps are incomplete: being computed, or cancelled."""

    def __init__(self) -> None:
        self._heads: dict[tuple[int, int], PendingHead] = {}
        self._lock = Lock()

    def of(self, place: tuple[int, int], pattern: Pattern) -> PendingHead:
        """Return the pending head of a layer and head; only the last few keep partial results."""
        with self._lock:
            pending = self._heads.pop(place, None) or PendingHead(pattern)
            self._heads[place] = pending
            for older in list(self._heads.values())[:-_KEPT]:
                older.drop_readings()
        return pending

    def discard(self, place: tuple[int, int]) -> None:
        """Remove a head that is complete."""
        with self._lock:
            self._heads.pop(place, None)


def fits_band(pattern: Pattern | WeightedPattern) -> bool:
    """Whether a head is a single band."""
    queries, keys = pattern.shape
    return queries * keys <= _BAND


def thumbnail(pattern: Pattern | WeightedPattern, size: int, cancelled: Event | None) -> Tensor:
    """Down-sample a head as `Pattern.image` does, ``(min(size, L), min(size, S))``."""
    queries, keys = pattern.shape
    height = min(size, queries)
    if fits_band(pattern) or height == queries:
        require_wanted(cancelled)
        return pattern.image(size, size)
    sums = torch.zeros(height, min(size, keys), dtype=torch.float64, device=pattern.device)
    for pixel in range(height):
        require_wanted(cancelled)
        first, stop = -(-pixel * queries // height), (pixel + 1) * queries // height
        if first < stop:
            inner = rows(pattern, first, stop).image(1, size)[0]
            sums[pixel] = inner.double() * (stop - first)
    # A row that an edge of pixels divides contributes to the pixels above and below it.
    cut = [pixel for pixel in range(1, height) if pixel * queries % height]
    if cut:
        index = torch.tensor([pixel * queries // height for pixel in cut], device="cpu")
        divided = pattern.at(index).image(len(cut), size).double()
        below = torch.tensor(cut, device=pattern.device)
        shares = (below * queries % height / height)[:, None].double()
        sums.index_add_(0, below - 1, divided * shares)
        sums.index_add_(0, below, divided * (1 - shares))
    return (sums * height / queries).to(pattern.dtype)


def readouts_along(
    pattern: AnyPattern,
    cancelled: Event | None,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Read entropy, distance, weight on the first key and weight received, ``(4, L)``.

    Args:
        pattern: a head, or a mean of heads.
        cancelled: ends it early.
        progress: called after each band with the number of rows that are done.
    """
    along = _Along(pattern)
    for first, stop in bands(pattern, _BAND):
        require_wanted(cancelled)
        along.read(rows(pattern, first, stop))
        if progress is not None:
            progress(stop)
    return along.result()


class CancelCheck(Readout[None, None]):
    """A readout without a result that raises `ReplacedError` in a pass that was cancelled.

    It is checked between streamed blocks only, not during a kernel.
    """

    def __init__(self, cancelled: Event | None) -> None:
        self._off = cancelled

    def begin(self, sizes: Sizes) -> None:  # noqa: ARG002 - Readout's signature
        """Check before anything is computed."""
        require_wanted(self._off)

    def add(self, state: None, block: WeightBlock) -> None:  # noqa: ARG002 - Readout's signature
        """Check between blocks."""
        require_wanted(self._off)

    def finish(self, state: None, sizes: Sizes) -> None:
        """Return nothing."""


def cancellable_reader(cancelled: Event | None) -> Read:
    """Return a function like `Pattern.read` that can be cancelled; see `CancelCheck`."""

    def read(pattern: Pattern, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        require_wanted(cancelled)
        if are_streamed(readouts, pattern.problem):
            return pattern.read(*readouts, CancelCheck(cancelled))[:-1]
        return pattern.read(*readouts)

    return read


def bands(
    pattern: AnyPattern, weights: int, first: int = 0, block: int = 1
) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of a head or a mean, of about `weights` weights and whole blocks."""
    queries, keys = pattern.shape
    heads = len(pattern.patterns) if isinstance(pattern, MeanPattern) else 1
    least = fewest_rows() if heads > 1 else 1
    height = max(least, weights // max(keys * heads, 1)) // block * block or block
    for start in range(first, queries, height):
        yield start, min(start + height, queries)
