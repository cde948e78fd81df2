"""A recording: a pattern for each attention layer of a model's run.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._display import show
from regard._shapes import Float
from regard._tensors import Mover
from regard.errors import RecordError
from regard.pattern import Pattern
from regard.pattern.readouts import Readout
from regard.record.layer import Labels, Layer, Tokens
from regard.record.names import Kind, choose_kind, kinds_of
from regard.record.one_run import attended
from regard.record.readings import Readings, read_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Recording:
    """The patterns of a run, layer by layer; made by `record` or `load`.

    It is a sequence of the model's own layers: of the self-attention where a model also has an
    encoder and cross-attention, which `patterns` gives by name.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record() as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> recording
        Recording(1 layer)
        >>> recording[0].shape
        torch.Size([1, 2, 5, 5])
    """

    def __init__(
        self, layers: Callable[[], list[Layer]], labels: Callable[[], Labels] | None = None
    ) -> None:
        self._layers: Callable[[], list[Layer]] | None = layers
        self._labels = labels

    def finish(self) -> None:
        """Fix the layers: nothing more is going to be recorded."""
        if self._layers is not None:
            layers = self._layers()
            self._layers = lambda: layers

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers with what is known of them, in the order of their first calls.

        Raises:
            RecordError: if the recording, or a tensor that it stands on, was freed.
        """
        if self._layers is None:
            raise RecordError(
                "this recording was freed; record again, or save(...) it before free()"
            )
        return tuple(self._layers())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention there are, of ``self``, ``cross`` and ``encoder``."""
        return kinds_of(layer.kind for layer in self.layers)

    def of_kind(self, kind: Kind | None = None) -> tuple[Layer, ...]:
        """The layers of a kind; None is self-attention, or what there is if there is none.

        Raises:
            ValueError: for a kind that was not recorded.
        """
        chosen = choose_kind(kind, self.kinds)
        return tuple(layer for layer in self.layers if layer.kind == chosen)

    def patterns(self, kind: Kind | None = None) -> tuple[Pattern, ...]:
        """The patterns of a kind of attention, or all of them in the order of their calls."""
        if kind is None:
            return tuple(layer.pattern for layer in self.layers)
        return tuple(layer.pattern for layer in self.of_kind(kind))

    @property
    def attentions(self) -> tuple[Pattern, ...]:
        """What `transformers` calls ``outputs.attentions``, lazily.

        ``attentions[layer][b, h, rows, columns]`` are exact weights; for tensors of all weights
        call `dense`.
        """
        return tuple(layer.pattern for layer in self.of_kind())

    def dense(
        self, kind: Kind | None = None, *, limit: int | None = 2**30
    ) -> tuple[Float[Tensor, "B H L S"], ...]:
        """Write the weights of all layers down, for tools that need tensors.

        Args:
            kind: ``self``, ``cross`` or ``encoder``; None as for indexing.
            limit: refuse above so many bytes for all layers together; None for no limit.

        Raises:
            ValueError: if the weights take more than that.
        """
        patterns = [layer.pattern for layer in self.of_kind(kind)]
        size = sum(p.shape.numel() * p.dtype.itemsize for p in patterns)
        if limit is not None and size > limit:
            raise ValueError(
                f"the weights of these {len(patterns)} layers take {size / 2**30:.1f} GiB, above "
                f"the limit of {limit / 2**30:.1f} GiB; take slices of recording.attentions, "
                "read(...) a reduction, or dense(limit=None)"
            )
        return tuple(pattern.dense(limit=None) for pattern in patterns)

    def __len__(self) -> int:
        return len(self.of_kind())

    def __iter__(self) -> Iterator[Pattern]:
        return (layer.pattern for layer in self.of_kind())

    def __getitem__(self, layer: int | str) -> Pattern:
        """Take a layer's pattern, by its place in the order of calls or by its module's path."""
        if isinstance(layer, str):
            named = [entry for entry in self.layers if entry.name == layer]
            if not named:
                names = _listed(list(dict.fromkeys(entry.name for entry in self.layers)))
                raise KeyError(f"no layer is named {layer!r}; there is {names}")
            if len(named) > 1:
                raise KeyError(
                    f"{attended(layer, len(named))}; tell them apart by number, or record one run "
                    "at a time"
                )
            return named[0].pattern
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(
                f"a recording is indexed by a layer's number or name, but got {layer!r}; index the "
                "pattern for heads and weights: recording[layer][b, h, rows, columns]"
            )
        layers = self.of_kind()
        if not -len(layers) <= layer < len(layers):
            raise IndexError(f"layer {layer} was not recorded; there are {len(layers)}")
        return layers[layer].pattern

    def __repr__(self) -> str:
        if self._layers is None:
            return "Recording(freed)"
        counts = [(kind, len(self.of_kind(kind))) for kind in self.kinds]
        if len(counts) == 1:
            return f"Recording({counts[0][1]} layer{'' if counts[0][1] == 1 else 's'})"
        return "Recording(" + ", ".join(f"{count} × {kind}" for kind, count in counts) + ")"

    def _repr_html_(self) -> str:
        html: str = show("recording_html", self)
        return html

    # What the positions are

    @property
    def tokens(self) -> Tokens | None:
        """The tokens that self-attention goes over, ``[batch][position]``; None if not known.

        Raises:
            RecordError: if they do not fit the positions that were recorded.
        """
        return None if self._labels is None else self._labels().target

    @property
    def source_tokens(self) -> Tokens | None:
        """The tokens that a decoder's cross-attention and an encoder go over; None if not known."""
        return None if self._labels is None else self._labels().source

    # What is read over all layers

    def read(
        self, *readouts: Readout[Any, Any], kind: Kind | None = None, progress: bool | None = None
    ) -> Readings:
        """Take readouts of every layer and head, one pass over each layer.

        A generation is read step by step, as ``record(model, read=[...])`` reads it.

        Args:
            readouts: what to take, from `regard.pattern.readouts`.
            kind: ``self``, ``cross`` or ``encoder``; None as for indexing.
            progress: show a bar on the terminal (needs rich); None shows it where there is one.

        Returns:
            One labelled array a readout, with axes (layer, batch, head, ...).

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> recording.read(regard.readouts.Entropy())["entropy"]
            Reading(entropy: layer 1 × batch 1 × head 2 × query 5)
        """
        return read_all(self.of_kind(kind), readouts, progress=progress)

    def plot_heads(self, kind: Kind | None = None, size: int = 64) -> Figure:
        """Draw all heads: a thumbnail each, layers down, heads across, and what each does.

        Names are those of `heads`; where heads can't be scored they have their numbers alone, and
        the figure says why. Of several sequences the first is drawn.

        Args:
            kind: ``self``, ``cross`` or ``encoder``; None as for indexing.
            size: most pixels of a thumbnail's side.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ValueError: for a kind that was not recorded, or if nothing was.
            ImportError: without matplotlib, which the extra ``plot`` brings.
        """
        figure: Figure = show("plot_heads", self, kind, size)
        return figure

    # Keeping it

    def to(self, device: str | torch.device) -> Recording:
        """Move the patterns to another device, with which all readouts then are there.

        A recording of a model on a GPU stays there unless `record` offloads it. What is
        moved are copies: this recording keeps its own until it is freed.

        Args:
            device: such as ``"cpu"`` or ``"cuda"``.

        Returns:
            Another recording. Layers that are there already are those of this one.

        Raises:
            RecordError: as for `layers`.

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> recording.to("cpu")[0].device
            device(type='cpu')
        """
        move = Mover(device)
        layers = [_moved(layer, move) for layer in self.layers]
        return Recording(lambda: layers, self._labels)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the recording to a folder: safetensors and JSON; read it by `regard.load`.

        With it go the log-sum-exps of all rows, so that what is read of it later needs no pass over
        the whole pattern first. Where they are not known yet, that pass is made here: of a head on
        65,536 tokens it takes seconds.

        Args:
            folder: where to; made if need be.
            overwrite: replace a recording that is there.

        Raises:
            FileExistsError: if there is one, or anything else in the folder.
        """
        from regard.record._files import write

        write(folder, self, overwrite=overwrite)

    def free(self) -> None:
        """Free all tensors; the recording can't be used after that."""
        self._layers = self._labels = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the layers and labels so far, in place of what makes them."""
        freed = self._layers is None
        labels = None if self._labels is None else self._labels()
        return _restored, (None if freed else self.layers, labels)


def _restored(layers: Sequence[Layer] | None, labels: Labels | None) -> Recording:
    recording = Recording(lambda: list(layers or ()), None if labels is None else lambda: labels)
    if layers is None:
        recording.free()
    return recording


def _moved(layer: Layer, move: Mover) -> Layer:
    before = layer.pattern
    pattern = before.moved(move)
    if pattern is before:
        return layer
    return replace(layer, get_pattern=lambda: pattern, get_calls=None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
