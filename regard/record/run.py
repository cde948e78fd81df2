"""What was read of a model while it ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.pattern.readout import Readout
from regard.record.layer import Labels, Tokens
from regard.record.names import Kind, choose_kind, kinds_of
from regard.record.readings import LayerReadings, Readings, labelled


class Run:
    """The readouts of a run, taken at each call; made by ``record(model, read=[...])``.

    No queries and no keys are kept, so that nothing else can be read of it afterwards.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer, read=[regard.readouts.Received(), regard.readouts.Max()]) as run:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> run
        Run(1 layer: received, max)
        >>> run.readings["received"]
        Reading(received: layer 1 × batch 1 × head 2 × key 5)
    """

    def __init__(
        self,
        readouts: Sequence[Readout[Any, Any]],
        layers: Callable[[], list[LayerReadings]],
        labels: Callable[[], Labels],
    ) -> None:
        self._readouts = tuple(readouts)
        self._layers = layers
        self._labels = labels

    def finish(self) -> None:
        """Fix the results: nothing more is going to be read."""
        layers = self._layers()
        self._layers = lambda: layers

    @property
    def layers(self) -> tuple[LayerReadings, ...]:
        """What was read of each layer, in the order of their first calls."""
        return tuple(self._layers())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention there are, of ``self``, ``cross`` and ``encoder``."""
        return kinds_of(layer.kind for layer in self.layers)

    def of_kind(self, kind: Kind | None = None) -> tuple[LayerReadings, ...]:
        """What was read of the layers of a kind; None is the model's own, as in a `Recording`.

        Raises:
            ValueError: for a kind that was not recorded.
        """
        chosen = choose_kind(kind, self.kinds)
        return tuple(layer for layer in self.layers if layer.kind == chosen)

    @property
    def readings(self) -> Readings:
        """All readouts by name, labelled (layer, batch, head, ...), as `Recording.read` gives them.

        They can be taken between calls as well, for the calls so far. A layer whose calls do not
        go on from each other, such as the steps of a diffusion, is there once for each of them,
        in the order of `of_kind`, whose ``call`` is the number of each.
        """
        return self.readings_of(None)

    def readings_of(self, kind: Kind | None) -> Readings:
        """The readouts of one kind of attention.

        Args:
            kind: ``self``, ``cross`` or ``encoder``; None is the model's own, as in a `Recording`.

        Raises:
            ValueError: for a kind that was not recorded.
        """
        return labelled(self._readouts, self.of_kind(kind))

    @property
    def tokens(self) -> Tokens | None:
        """The tokens that self-attention goes over, ``[batch][position]``; None if not known."""
        return self._labels().target

    @property
    def source_tokens(self) -> Tokens | None:
        """The tokens that a decoder's cross-attention and an encoder go over; None if not known."""
        return self._labels().source

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what was read so far, in place of what reads it."""
        return _restored, (self._readouts, self._layers(), self._labels())

    def __repr__(self) -> str:
        layers = len({(layer.kind, layer.index) for layer in self.layers})
        names = ", ".join(readout.title for readout in self._readouts)
        return f"Run({layers} layer{'' if layers == 1 else 's'}: {names})"


def _restored(
    readouts: Sequence[Readout[Any, Any]],
    layers: list[LayerReadings],
    labels: Labels,
) -> Run:
    return Run(readouts, lambda: layers, lambda: labels)
