"""Labelled readouts of all layers of a model.

Axes: N layers, B batch, H heads, followed by the axes of the readout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._display import show
from regard._extras import needing
from regard.backends import native
from regard.inputs import Problem
from regard.pattern import Pattern
from regard.pattern.readout import Readout, check_readout
from regard.record.accumulator import Accumulator, allows_rows_together, missing_for_calls
from regard.record.layer import CallPattern, Labels, Layer, Tokens
from regard.record.sites import AttentionKind, choose_kind, kinds_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Reading:
    """One readout of all layers, with named axes.

    Attributes:
        name: the name of the readout.
        axes: the names of the axes, ``layer`` first.
        parts: one tensor per layer, with the other axes.
        labels: for each layer, the indices along some of its axes; other axes count from 0.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> entropy = recording.read(regard.readouts.Entropy())["entropy"]
        >>> entropy.axes, entropy.values.shape
        (('layer', 'batch', 'head', 'query'), torch.Size([1, 1, 2, 5]))
    """

    name: str
    axes: tuple[str, ...]
    parts: tuple[Tensor, ...]
    labels: tuple[Mapping[str, Sequence[int]], ...]

    @property
    def values(self) -> Tensor:
        """All layers stacked in one tensor ``(N, ...)``.

        Raises:
            ValueError: if the layers differ in shape; then take `parts` or `frame`.
        """
        shapes = sorted({tuple(part.shape) for part in self.parts})
        if len(shapes) != 1:
            raise ValueError(
                f"{self.name} differs in shape from layer to layer: {shapes}; take parts or frame()"
            )
        return torch.stack(self.parts)

    def frame(self) -> pd.DataFrame:
        """Convert to a pandas data frame, with a column per axis and one for the value."""
        import pandas as pd

        frames = []
        for part, labels in zip(self.parts, self.labels, strict=True):
            levels = [
                labels.get(axis, range(size))
                for axis, size in zip(self.axes[1:], part.shape, strict=True)
            ]
            index = pd.MultiIndex.from_product([labels["layer"], *levels], names=self.axes)
            frames.append(pd.DataFrame({self.name: part.cpu().numpy().reshape(-1)}, index=index))
        return pd.concat(frames).reset_index()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export `frame` to Arrow: ``pyarrow.table(reading)``, ``polars.DataFrame(reading)``.

        Raises:
            ModuleNotFoundError: without pyarrow, which the extra ``corpus`` installs.
        """
        with needing("corpus"):
            import pyarrow as pa  # noqa: F401 - pandas exports by it
        return self.frame().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        shape = tuple(self.parts[0].shape) if self.parts else ()
        axes = zip(self.axes, (len(self.parts), *shape), strict=False)
        return f"Reading({self.name}: " + " × ".join(f"{a} {n}" for a, n in axes) + ")"


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerReadings:
    """The results of one layer.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> layer = recording.read(regard.readouts.Entropy()).layers[0]
        >>> layer.keys, layer.heads
        (5, (0, 1))
    """

    name: str = ""
    """Path of the attention module."""
    kind: AttentionKind = "self"
    """``self``, ``cross`` or ``encoder``."""
    index: int = 0
    """Index among the model's layers of this kind."""
    call: int = 0
    """Number of earlier calls of the layer."""
    heads: Sequence[int]
    """Indices of the query heads."""
    rows: Sequence[int]
    """Indices of the queries."""
    leading: tuple[int, ...]
    """Leading dimensions of the weights: batch and heads."""
    keys: int
    """Number of keys."""
    results: tuple[Any, ...]
    """One result per readout."""


class Readings(Mapping[str, Reading]):
    """Readouts of all layers by name: ``readings["entropy"]``; made by `read` functions.

    Top-k is two readouts, weights and positions. In a model with an encoder or cross-attention, the
    readouts are those of the decoder's self-attention; `of_kind` selects another kind.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> list(recording.read(regard.readouts.TopK(2), regard.readouts.Received()))
        ['top_weights', 'top_positions', 'received']
    """

    def __init__(
        self,
        readouts: Sequence[Readout[Any, Any]],
        layers: Callable[[], list[LayerReadings]],
        labels: Callable[[], Labels] | None = None,
    ) -> None:
        self._readouts = tuple(readouts)
        self._layers = layers
        self._labels = labels

    def finish(self) -> None:
        """Freeze the results at the end of the block."""
        layers = self._layers()
        self._layers = lambda: layers

    @property
    def layers(self) -> tuple[LayerReadings, ...]:
        """The results of all layers of all kinds, in the order of their first calls.

        A layer whose calls do not continue each other, such as the steps of a diffusion, occurs
        once per call.
        """
        return tuple(self._layers())

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """The kinds of attention present, among ``self``, ``cross`` and ``encoder``."""
        return kinds_of(layer.kind for layer in self.layers)

    def of_kind(self, kind: AttentionKind | None = None) -> Readings:
        """Select the layers of one kind of attention, as `Recording.of_kind` does.

        Raises:
            ValueError: for a kind that was not recorded.
        """
        layers = self._of_kind(kind)
        return Readings(self._readouts, lambda: layers, self._labels)

    def _of_kind(self, kind: AttentionKind | None = None) -> list[LayerReadings]:
        layers = self.layers
        chosen = choose_kind(kind, kinds_of(layer.kind for layer in layers))
        return [layer for layer in layers if layer.kind == chosen]

    def _entries(self) -> dict[str, Reading]:
        return labelled(self._readouts, self._of_kind())

    def __getitem__(self, name: str) -> Reading:
        entries = self._entries()
        try:
            return entries[name]
        except KeyError:
            raise KeyError(f"no readout is named {name!r}; there is {list(entries)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of self-attention, ``[batch][position]``; None if they are not known."""
        return None if self._labels is None else self._labels().target

    @property
    def source_tokens(self) -> Tokens | None:
        """The tokens of the encoder and of cross-attention's keys; None if they are not known."""
        return None if self._labels is None else self._labels().source

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the results and labels known so far."""
        labels = None if self._labels is None else self._labels()
        return _restored, (self._readouts, self._layers(), labels)

    def _repr_html_(self) -> str:
        html: str = show("readings_html", self)
        return html

    def __repr__(self) -> str:
        return "Readings(" + ", ".join(map(repr, self._entries().values())) + ")"


def _restored(
    readouts: Sequence[Readout[Any, Any]], layers: list[LayerReadings], labels: Labels | None
) -> Readings:
    return Readings(readouts, lambda: layers, None if labels is None else lambda: labels)


def read_all(
    layers: Sequence[Layer], readouts: Sequence[Readout[Any, Any]], *, progress: bool | None
) -> list[LayerReadings]:
    """Take the readouts of each layer; see `Recording.read`."""
    for readout in readouts:
        check_readout(readout)
    found = []
    with bar(len(layers), progress=progress) as advance:
        for layer in layers:
            found.append(read_layer(layer, readouts))
            advance(1)
    return found


def read_layer(layer: Layer, readouts: Sequence[Readout[Any, Any]]) -> LayerReadings:
    """Read a layer call by call, or in one pass the readouts that cannot be merged over calls."""
    *leading, _, keys = layer.pattern.shape
    apart = [missing_for_calls(readout) is None for readout in readouts]
    by_call = [readout for readout, own in zip(readouts, apart, strict=True) if own]
    whole = [readout for readout, own in zip(readouts, apart, strict=True) if not own]
    calls = layer.calls
    if len(calls) == 1:
        accumulator = Accumulator(by_call, keys)
        at_once = iter(accumulator.add_pattern(calls[0].pattern, whole))
        of_calls = iter(accumulator.results() if by_call else ())
    else:
        at_once = iter(layer.pattern.read(*whole) if whole else ())
        of_calls = iter(_read_calls(layer.pattern, calls, by_call))
    return LayerReadings(
        name=layer.name,
        kind=layer.kind,
        index=layer.index,
        heads=layer.heads,
        rows=layer.rows,
        leading=tuple(leading),
        keys=keys,
        results=tuple(next(of_calls if own else at_once) for own in apart),
    )


def _read_calls(
    pattern: Pattern, calls: Sequence[CallPattern], readouts: Sequence[Readout[Any, Any]]
) -> list[Any]:
    """Read the calls of one pattern in order, batching steps of a generation where possible.

    The results are bit-equal to reading each call separately if kernels compute the readouts and
    the mask is not a dense matrix; otherwise nothing is batched.
    """
    rows = pattern.problem.rows
    kernels = native.objection_to_reading(pattern.problem) is None
    may = kernels and rows.allowed is None and rows.bias is None
    together = [may and allows_rows_together(readout) for readout in readouts]
    results: dict[bool, Iterator[Any]] = {}
    for some in {*together}:
        own = [r for r, alike in zip(readouts, together, strict=True) if alike == some]
        accumulator = Accumulator(own, pattern.shape[-1])
        for problem, shift, count in _steps(pattern, calls, together=some):
            if count > 1:
                accumulator.add_rows(problem)
            else:
                accumulator.add(problem, shift)
        results[some] = iter(accumulator.results())
    return [next(results[some]) for some in together]


def _steps(
    pattern: Pattern, calls: Sequence[CallPattern], *, together: bool
) -> Iterator[tuple[Problem, int, int]]:
    """Yield each problem to read, the offset of its keys, and the number of calls it covers."""
    first = 0
    is_step = [together and c.shift == 0 and c.pattern.shape[-2] == 1 for c in calls]
    for step, group in groupby(zip(is_step, calls, strict=True), key=itemgetter(0)):
        some = [call for _, call in group]
        if step and len(some) > 1:
            rows = slice(first, first + len(some))
            yield pattern.problem.crop(rows, slice(0, pattern.shape[-1])), 0, len(some)
            first += len(some)
            continue
        for call in some:
            yield call.pattern.problem, call.shift, 1
            first += call.pattern.shape[-2]


def labelled(
    readouts: Sequence[Readout[Any, Any]], layers: Sequence[LayerReadings]
) -> dict[str, Reading]:
    """Collect the results of all layers by readout, and name the axes."""
    names = names_of(readouts)
    columns: dict[str, list[Tensor]] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        for name, readout, result in zip(names, readouts, layer.results, strict=True):
            for column, tensor in named_tensors(name, result).items():
                columns.setdefault(column, []).append(tensor)
                axes[column] = _axes(readout.axes, tensor, layer.leading)
    labels = tuple(_labels(layer) for layer in layers)
    return {
        name: Reading(name, axes[name], tuple(parts), labels) for name, parts in columns.items()
    }


def names_of(readouts: Sequence[Readout[Any, Any]]) -> list[str]:
    """Name readouts by their titles, and number those that share a title."""
    names: list[str] = []
    for readout in readouts:
        name = readout.title
        count = sum(re.fullmatch(rf"{name}(_\d+)?", other) is not None for other in names)
        names.append(f"{name}_{count + 1}" if count else name)
    return names


def named_tensors(name: str, result: Any) -> dict[str, Tensor]:
    """Name the tensors of a result, which is a tensor or a named tuple of tensors.

    Raises:
        TypeError: for any other result.
    """
    if isinstance(result, torch.Tensor):
        return {name: result}
    fields = result._asdict() if hasattr(result, "_asdict") else {}
    if fields and all(isinstance(field, torch.Tensor) for field in fields.values()):
        return {f"{name}_{field}": tensor for field, tensor in fields.items()}
    raise TypeError(
        f"the readout {name} gives {type(result).__name__}, but only tensors can be labelled; call "
        "recording[layer].read(...)"
    )


def weights_of(layers: Sequence[Layer], weights: Sequence[Tensor]) -> Reading:
    """Label all weights of layers; see `Recording.weights`."""
    if not layers:
        raise ValueError("nothing was recorded; run the model inside the block")
    axes = [_axes(("query", "key"), part, tuple(part.shape[:-2])) for part in weights]
    return Reading("weight", axes[0], tuple(weights), tuple(_labels(layer) for layer in layers))


def _axes(names: Sequence[str], tensor: Tensor, leading: tuple[int, ...]) -> tuple[str, ...]:
    count = len(leading)
    own = tuple(f"axis_{i}" for i in range(count))
    if 1 <= count <= 2:  # a readout may be over the query heads that share a key head
        own = ("batch", "head" if tensor.shape[count - 1] == leading[-1] else "key_head")[-count:]
    rest = tensor.ndim - count
    numbered = tuple(f"axis_{count + i}" for i in range(rest))
    return ("layer", *own, *(names if len(names) == rest else numbered))


def _labels(layer: Layer | LayerReadings) -> dict[str, Sequence[int]]:
    return {"layer": [layer.index], "head": layer.heads, "query": layer.rows}


@contextmanager
def bar(
    total: int, *, progress: bool | None, title: str = "reading layers"
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, by default only on a terminal."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda count: None  # noqa: ARG005 - nothing is shown
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
