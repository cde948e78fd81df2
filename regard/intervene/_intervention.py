"""`intervene`: change what a model attends to while it runs.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch import nn

from regard._arguments import Indices, check_indices, has_negative
from regard._decorators import block
from regard._modules import HasModule, module_of, unwrapped
from regard.inputs.scoring import check_number
from regard.intercept import change_calls, replace_attention
from regard.intervene.changer import ModelChanger
from regard.intervene.operations import (
    Ablate,
    CheckedIndices,
    KnockOut,
    Operation,
    Patch,
    Steer,
    Temper,
)
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.sites import KINDS, AttentionKind


class Intervention:
    """Operations on a model's attention; made by `intervene`.

    Every method has the parameters ``layers`` (counted from 0 in the order of their first calls),
    ``heads`` (query heads) and ``batch`` (sequences), each an integer, a slice or several integers,
    None for all; and ``kind``, as in a `Recording`: ``self``, ``cross`` or ``encoder``. Queries and
    keys are positions in the whole text, including cached tokens; negative ones count from the end
    of the text at the time of the call. Keys of cross-attention are positions in the source. If a
    rolling cache was full before the block began, the number of evicted keys is unknown: from the
    second call on, positions counted from the start raise an `Error`.

    Independent of the order in which they are stated, operations are applied in this order: hide
    keys (`knock_out`), add to scores (`steer`), multiply scores (`temper`), softmax, replace
    weights (`patch`), replace contexts (`ablate`). Hidden keys stay hidden, numbers add up, and
    factors multiply.
    """

    def __init__(self, changer: ModelChanger) -> None:
        self._changer = changer

    def __repr__(self) -> str:
        return f"Intervention({', '.join(map(repr, self._changer.changes))})"

    def ablate(
        self,
        *,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
        by: str | Recording = "zero",
    ) -> None:
        """Replace the context of heads by 0, or by a mean, which keeps their constant part.

        Args:
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.
            by: ``"zero"``; ``"mean"``, the head's mean over the rows of the call that see a key;
                or a recording made with ``mean_contexts=True``, for its mean over that run.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection.

        Example:
            >>> import regard, torch
            >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal(), bias=False)
            >>> x = torch.randn(1, 5, 6)
            >>> with regard.intervene(layer) as change:
            ...     change.ablate(heads=[0, 1])
            ...     bool((layer(x) == 0).all())
            True
        """
        if not isinstance(by, Recording) and by not in ("zero", "mean"):
            raise ValueError(f"by must be 'zero', 'mean' or a Recording, but is {by!r}")
        self._add(Ablate(by=by, **_places(layers, heads, batch, kind)))

    def knock_out(
        self,
        *,
        keys: Indices,
        queries: Indices | None = None,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
    ) -> None:
        """Hide keys from queries before the softmax, which redistributes their weight.

        Attention knockout (Geva et al. 2023, arXiv:2304.14767, section 5). A row whose every key
        is hidden gives context 0.

        Args:
            keys: the keys to hide.
            queries: the queries from which they are hidden; None is all.
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection.
        """
        self._add(
            KnockOut(
                keys=_keys(keys),
                queries=_numbers("queries", queries),
                **_places(layers, heads, batch, kind),
            )
        )

    def steer(
        self,
        *,
        keys: Indices,
        by: float,
        queries: Indices | None = None,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
    ) -> None:
        """Add a number to the scores of keys, after softcap and bias.

        This multiplies their weights by its exponential before normalisation. Steering towards a
        span (PASTA: Zhang et al. 2023, arXiv:2311.02262, section 3) multiplies the weights outside
        it by α < 1, which is log α added to the scores of the keys outside.

        Args:
            keys: the keys.
            by: the number; positive values increase the weights.
            queries: the queries; None is all.
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection, and for a number that is not finite.
        """
        self._add(
            Steer(
                keys=_keys(keys),
                queries=_numbers("queries", queries),
                by=_finite("by", by),
                **_places(layers, heads, batch, kind),
            )
        )

    def temper(
        self,
        *,
        by: float,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
    ) -> None:
        """Multiply the scores, including biases; below 1 rows become flatter, above 1 sharper.

        A sink logit is unchanged.

        Args:
            by: the factor, 1 / temperature, above 0.
            layers: the layers; see the class.
            heads: the query heads; all of them in a layer with a softcap.
            batch: the sequences.
            kind: the kind of attention.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection, and for a factor that is not positive.
        """
        factor = _finite("by", by)
        if factor <= 0:
            raise ValueError(f"by must be above 0, but is {by}; ablate(...) switches heads off")
        self._add(Temper(by=factor, **_places(layers, heads, batch, kind)))

    def patch(
        self,
        *,
        pattern: Pattern,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
    ) -> None:
        """Use the weights of another run to average this run's values.

        Args:
            pattern: the weights ``(B, H, L, S)``, of as many heads as the layer has, or one; and of
                one sequence, or as many as the batch has. In a generation each call uses the
                rows of its queries; weights on keys that a rolling cache evicted are refused.
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection.
        """
        if not isinstance(pattern, Pattern):
            raise TypeError(
                f"pattern must be a regard.Pattern, but is {type(pattern).__name__}; take one of a "
                "recording, such as recording[2]"
            )
        self._add(Patch(pattern=pattern, **_places(layers, heads, batch, kind)))

    def _add(self, change: Operation) -> None:
        self._changer.add(change)


def _places(layers: Any, heads: Any, batch: Any, kind: Any) -> dict[str, Any]:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, but is {kind!r}")
    places = {
        "layers": _numbers("layers", layers),
        "heads": _numbers("heads", heads),
        "batch": _numbers("batch", batch),
    }
    if has_negative(places["layers"]):
        raise ValueError(
            f"layers={layers!r} counts from the end, which is not known while a model runs; count "
            "from 0"
        )
    return {**places, "kind": kind}


def _numbers(name: str, numbers: Any) -> CheckedIndices:
    checked = check_indices(name, numbers)
    if checked == () or (isinstance(checked, slice) and _is_empty(checked)):
        raise ValueError(f"{name}={numbers!r} names nothing; leave it out to mean all")
    return checked


def _keys(keys: Any) -> CheckedIndices:
    if keys is None:
        raise TypeError(
            "keys must be an integer, a slice or integers, but is None; slice(None) is all"
        )
    return _numbers("keys", keys)


def _is_empty(numbers: slice) -> bool:
    """Return whether a slice is empty for a sequence of any length."""
    start, stop = numbers.start or 0, numbers.stop
    return stop is not None and (start < 0) == (stop < 0) and stop <= start


def _finite(name: str, number: Any) -> float:
    checked = check_number(name, number)
    if not math.isfinite(checked):
        raise ValueError(f"{name} must be finite, but is {number}; knock_out(...) hides keys")
    return checked


@block("intervene(...)")
def intervene(model: nn.Module | HasModule) -> Iterator[Intervention]:
    """Change the attention of a model inside the ``with`` block, on this thread.

    All calls that `record` sees can be changed. A compiled model runs eagerly inside the block.
    Other tasks of an event loop are unaffected unless they are started inside the block; plain
    generators stepped on the same thread are affected, since they have no context of their own.

    Unaffected calls are computed by the model's own kernel; a model of `transformers` whose
    attention never calls SDPA computes all calls with `regard.attention`, as under `record`. A
    recording made inside or around the block holds the changed attention. Gradients flow through;
    a backward pass that recomputes changed calls (`torch.utils.checkpoint`) belongs inside the
    block. In nested blocks, the outer block's operations are applied first.

    Args:
        model: the model to change, a module or a `regard.models.LanguageModel`; other models are
            unaffected.

    Yields:
        The `Intervention`, whose methods add operations, which apply to all later calls.

    Raises:
        Error: for contradictory operations, and for operations that name a head, layer or position
            that no call has.
        RecordError: for a model that cannot be recorded either, and in a backward pass after the
            block that recomputes changed calls, or inside it if these may be another thread's.
        TypeError: for anything but a module.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.intervene(layer) as change, regard.record(layer) as recording:
        ...     change.knock_out(queries=-1, keys=slice(1, 3), heads=0)
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> recording[0][0, 0, -1, 1:3]
        tensor([0., 0.])
    """
    model = module_of(model)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but is {type(model).__name__}; of a pipeline, give "
            "the module inside, such as pipeline.model"
        )
    model = unwrapped(model)
    changer = ModelChanger(model)
    with ExitStack() as stack:
        stack.enter_context(replace_attention(model))
        stack.enter_context(change_calls(changer))
        stack.callback(changer.end)
        yield Intervention(changer)
    changer.require_all_used()
