"""A recording: the attention pattern of each layer in a model's run.

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
from regard.record._files import read, write
from regard.record.layer import Labels, Layer, Tokens, describe_repeats
from regard.record.readings import Reading, Readings, read_all, weights_of
from regard.record.sites import AttentionKind, choose_kind, kinds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Recording:
    """The patterns of a run, one per layer; made by `record` or `load`.

    It is a sequence of patterns. In a model with an encoder or cross-attention, indices count the
    layers of the decoder's self-attention; `of_kind` selects another kind.

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
        """Freeze the layers at the end of the block."""
        if self._layers is not None:
            layers = self._layers()
            self._layers = lambda: layers

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers of all kinds, with their metadata, in the order of their first calls.

        Raises:
            RecordError: if the recording or one of its tensors was freed.
        """
        if self._layers is None:
            raise RecordError(
                "this recording was freed; record again, or save(...) it before free()"
            )
        return tuple(self._layers())

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """The kinds of attention present, among ``self``, ``cross`` and ``encoder``."""
        return kinds_of(layer.kind for layer in self.layers)

    def of_kind(self, kind: AttentionKind | None = None) -> Recording:
        """Select the layers of one kind of attention.

        Args:
            kind: ``self``, ``cross`` or ``encoder``; None is self-attention, or the only kind.

        Returns:
            A recording of these layers, which shares its tensors with this one.

        Raises:
            ValueError: for a kind that was not recorded.

        Example:
            >>> import regard, torch
            >>> model = torch.nn.TransformerDecoderLayer(12, 2, batch_first=True).eval()
            >>> with regard.record(model) as recording:
            ...     _ = model(torch.randn(1, 5, 12), torch.randn(1, 7, 12))
            >>> recording[0].shape, recording.of_kind("cross")[0].shape
            (torch.Size([1, 2, 5, 5]), torch.Size([1, 2, 5, 7]))
        """
        layers = self._of_kind(kind)
        return Recording(lambda: layers, self._labels)

    def _of_kind(self, kind: AttentionKind | None = None) -> list[Layer]:
        layers = self.layers
        chosen = choose_kind(kind, kinds_of(layer.kind for layer in layers))
        return [layer for layer in layers if layer.kind == chosen]

    def dense(self, *, limit: int | None = 2**30) -> tuple[Float[Tensor, "B H L S"], ...]:
        """Materialize the weights of all layers, for tools that need tensors.

        Args:
            limit: maximum total size in bytes; None for no limit.

        Raises:
            ValueError: if the weights are larger than the limit.
        """
        patterns = list(self)
        size = sum(p.shape.numel() * p.dtype.itemsize for p in patterns)
        if limit is not None and size > limit:
            raise ValueError(
                f"the weights of these {len(patterns)} layers take {size / 2**30:.1f} GiB, above "
                f"the limit of {limit / 2**30:.1f} GiB; slice recording[layer], call read(...) for "
                "a reduction, or dense(limit=None)"
            )
        return tuple(pattern.dense(limit=None) for pattern in patterns)

    def weights(self, *, limit: int | None = 2**30) -> Reading:
        """Materialize the weights of all layers with named axes, for tables and labelled arrays.

        Args:
            limit: as for `dense`. As a data frame they take eleven times as much.

        Raises:
            ValueError: if nothing was recorded, or the weights are larger than the limit.

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> recording.weights()
            Reading(weight: layer 1 × batch 1 × head 2 × query 5 × key 5)
            >>> recording.weights().frame().columns.tolist()
            ['layer', 'batch', 'head', 'query', 'key', 'weight']
        """
        return weights_of(self._of_kind(), self.dense(limit=limit))

    def __len__(self) -> int:
        return len(self._of_kind())

    def __iter__(self) -> Iterator[Pattern]:
        return (layer.pattern for layer in self._of_kind())

    def __getitem__(self, layer: int | str) -> Pattern:
        """Return a layer's pattern, by its index in call order or by the path of its module."""
        if isinstance(layer, str):
            named = [entry for entry in self.layers if entry.name == layer]
            if not named:
                names = _listed(list(dict.fromkeys(entry.name for entry in self.layers)))
                raise KeyError(f"no layer is named {layer!r}; there is {names}")
            if len(named) > 1:
                raise KeyError(
                    f"{describe_repeats(layer, len(named))}; tell them apart by number, or record "
                    "one run at a time"
                )
            return named[0].pattern
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(
                f"a recording is indexed by a layer's number or name, but got {layer!r}; index the "
                "pattern for heads and weights: recording[layer][b, h, rows, columns]"
            )
        layers = self._of_kind()
        if not -len(layers) <= layer < len(layers):
            raise IndexError(f"layer {layer} was not recorded; there are {len(layers)}")
        return layers[layer].pattern

    def __repr__(self) -> str:
        if self._layers is None:
            return "Recording(freed)"
        counts = [(kind, len(self._of_kind(kind))) for kind in self.kinds]
        if len(counts) == 1:
            return f"Recording({counts[0][1]} layer{'' if counts[0][1] == 1 else 's'})"
        return "Recording(" + ", ".join(f"{count} × {kind}" for kind, count in counts) + ")"

    def _repr_html_(self) -> str:
        html: str = show("recording_html", self)
        return html

    # Tokens

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of self-attention, ``[batch][position]``; None if they are not known.

        Raises:
            RecordError: if their number is not that of the recorded positions.
        """
        return None if self._labels is None else self._labels().target

    @property
    def source_tokens(self) -> Tokens | None:
        """The tokens of the encoder and of cross-attention's keys; None if they are not known."""
        return None if self._labels is None else self._labels().source

    # Readouts

    def read(self, *readouts: Readout[Any, Any], progress: bool | None = None) -> Readings:
        """Take readouts of every layer and head, in one pass over each layer.

        A generation is read step by step, as by `read_while_running`.

        Args:
            readouts: the readouts to take, from `regard.readouts`.
            progress: whether to show a progress bar (needs rich); None shows it on a terminal.

        Returns:
            One labelled array per readout, with axes (layer, batch, head, ...).

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> with regard.record() as recording:
            ...     _ = layer(torch.randn(1, 5, 6))
            >>> recording.read(regard.readouts.Entropy())["entropy"]
            Reading(entropy: layer 1 × batch 1 × head 2 × query 5)
        """
        layers = read_all(self._of_kind(), readouts, progress=progress)
        return Readings(readouts, lambda: layers, self._labels)

    def plot_heads(self, size: int = 64) -> Figure:
        """Draw a thumbnail of each head: a row per layer, a column per head, with the head's role.

        Roles are those of `regard.lens.heads`. Heads that cannot be scored are only numbered, and
        the figure states the reason. Of a batch, the first sequence is drawn.

        Args:
            size: maximum width and height of a thumbnail in pixels.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            ValueError: if nothing was recorded.
            ImportError: without matplotlib, which the extra ``plot`` installs.
        """
        figure: Figure = show("plot_heads", self, size)
        return figure

    # Storage

    def to(self, device: str | torch.device) -> Recording:
        """Copy the patterns to another device, on which all readouts are then computed.

        Args:
            device: such as ``"cpu"`` or ``"cuda"``.

        Returns:
            Another recording; layers already on the device are shared, not copied.

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
        """Write the recording to a folder as safetensors and JSON; `regard.load` reads it.

        The log-sum-exps of all rows are saved as well, and computed here if they are not known
        yet: for one head on 65,536 tokens that takes seconds.

        Args:
            folder: the folder, which is created if it does not exist.
            overwrite: whether to replace a recording in the folder.

        Raises:
            FileExistsError: if the folder holds a recording, or anything else.
        """
        labels = Labels(self.tokens, self.source_tokens)
        write(Path(folder), self.layers, labels, overwrite=overwrite)

    def free(self) -> None:
        """Release all tensors; the recording cannot be used afterwards."""
        self._layers = self._labels = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the layers and labels known so far."""
        freed = self._layers is None
        labels = None if self._labels is None else self._labels()
        return _restored, (None if freed else self.layers, labels)


def load(folder: str | Path, *, device: str | torch.device = "cpu") -> Recording:
    """Load a recording that `Recording.save` wrote; no code in it is executed.

    Checksums are verified. Files of format version 1 have none; in those only unreadable or
    inconsistent data is detected.

    Args:
        folder: the folder.
        device: the device of the tensors.

    Raises:
        RecordError: if the folder holds no recording, or a damaged one.

    Example:
        >>> import regard, tempfile, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record() as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(folder)
        ...     regard.load(folder)
        Recording(1 layer)
    """
    layers, labels = read(Path(folder), device)
    return Recording(lambda: layers, lambda: labels)


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
    kept = {name: move(tensor) for name, tensor in layer.kept.items()}
    return replace(layer, get_pattern=lambda: pattern, get_calls=None, kept=kept)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
