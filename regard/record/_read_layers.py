"""`read_layers`: hand each layer to a function while a model runs, and keep the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from torch import nn

from regard._decorators import block
from regard._modules import HasModule
from regard.errors import RecordError
from regard.intercept import Call, observe_calls
from regard.pattern import Pattern
from regard.record._layer_builder import LayerCall
from regard.record._pattern_builder import PatternBuilder
from regard.record._recorder import Recorder, check_model, layers_of, observed
from regard.record._selection import Selection
from regard.record._tokens import Labeller
from regard.record.layer import Layer

T = TypeVar("T")


def read_layers(
    model: nn.Module | HasModule | None, read: Callable[[Layer], T]
) -> AbstractContextManager[list[tuple[Layer, T]]]:
    """Hand each layer to a function at its attention call, and keep what the function returns.

    The layer's queries and keys are released afterwards, so memory does not grow with the number of
    layers. Unlike the readouts of `read_while_running`, the function may ask anything of a pattern,
    but sees one call of a layer at a time: it is for one run over whole sequences.

    Args:
        model: read only the calls of this model; None reads all calls on this thread.
        read: takes a layer, whose pattern it may read until it returns.

    Returns:
        A context manager of a list that grows while the block runs: each layer, with its result.
        The patterns of these layers are gone.

    Raises:
        RecordError: as for `record`, and for the pattern of a layer that was released.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> from regard.record import read_layers
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with read_layers(layer, lambda layer: layer.pattern[0, :, -1]) as results:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> [(layer.index, row.shape) for layer, row in results]
        [(0, torch.Size([2, 5]))]
    """
    return _reading(check_model(model), read)


@block("read_layers(...)")
def _reading(
    model: nn.Module | None, read: Callable[[Layer], T]
) -> Iterator[list[tuple[Layer, T]]]:
    recorder = Recorder(model, _ALL, partial(_OneCall, selection=_ALL))
    results: list[tuple[Layer, T]] = []

    def observe(call: Call) -> None:
        recorder(call)
        builders = recorder.builders()
        if len(builders) > len(results):
            layer = layers_of(recorder)[-1]
            result = read(layer)
            builders[-1][1].release()
            results.append((replace(layer, get_pattern=_gone, get_calls=None), result))

    calls = observe_calls(observe)
    with observed(recorder, model, Labeller(model, None), calls, lambda: None):
        yield results


_ALL = Selection()


class _OneCall(PatternBuilder):
    """The pattern of one call, which can be released."""

    def extend(self, call: LayerCall) -> bool:  # noqa: ARG002 - PatternBuilder's signature
        """Have the layer's next call begin a new pattern."""
        return False

    def release(self) -> None:
        """Release queries and keys."""
        self._pieces.clear()
        self._versions.clear()
        self._pattern = None
        del self._key, self._problem


def _gone() -> Pattern:
    raise RecordError(
        "the queries and keys of this layer were read while the model ran, and not kept; record "
        "the model to keep them"
    )
