"""`intervene`: change what a model attends to while it runs.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from regard._arguments import Indices, check_choice, check_floating, check_indices, has_negative
from regard._decorators import block
from regard._modules import HasModule, module_of, unwrapped
from regard._shapes import Float
from regard.inputs.scoring import check_number
from regard.intercept import change_calls, replace_attention
from regard.intervene.changer import ModelChanger
from regard.intervene.operations import (
    Ablate,
    CheckedIndices,
    KnockOut,
    Operation,
    PatchContext,
    PatchPattern,
    PatchValue,
    Steer,
    Temper,
)
from regard.pattern import Pattern
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
    weights and values (`patch`), replace contexts (`ablate`, `patch`). Hidden keys stay hidden,
    numbers add up, and factors multiply.
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
        by: str = "zero",
    ) -> None:
        """Replace the context of heads by 0, or by its mean, which keeps their constant part.

        By the mean of other texts, or by another text's context: ``patch(context=…)``.

        Args:
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.
            by: ``"zero"``, or ``"mean"``, the head's mean over the rows of the call that see a key.

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
        if not isinstance(by, str):
            raise TypeError(
                f"by must be 'zero' or 'mean', but is {type(by).__name__}; patch(context=...) puts "
                "contexts of another run in place of a head's"
            )
        check_choice("by", by, ("zero", "mean"))
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
        pattern: Pattern | None = None,
        context: Float[Tensor, "*B #H #L Dv"] | None = None,
        value: Float[Tensor, "*B #G #S Dv"] | None = None,
        queries: Indices | None = None,
        keys: Indices | None = None,
        layers: Indices | None = None,
        heads: Indices | None = None,
        batch: Indices | None = None,
        kind: AttentionKind = "self",
    ) -> None:
        """Put a pattern, contexts or values of another run in place of this run's.

        Activation patching (Vig et al. 2020, arXiv:2004.12265; Heimersheim and Nanda 2024,
        arXiv:2404.15255). A context is what a head hands to the output projection: patched, it
        carries the whole of what the head found in the other run. A pattern carries only where it
        looked there, a value only what it finds at a key. `regard.lens.contexts` runs a model for
        its contexts, `regard.lens.patch` patches each head or position in turn.

        Positions are those of the text, in a generation with a cache too: each call uses the rows
        of its queries, and the values of its keys. What is given must hold the positions that are
        replaced; a context or a value of one position stands for all of them, as a mean does.

        Args:
            pattern: the weights ``(B, H, L, S)``, of as many heads as the layer has, or one; and of
                one sequence, or as many as the batch has. Weights on keys that a rolling cache
                evicted are refused.
            context: the contexts ``(H, L, Dv)`` or ``(B, H, L, Dv)``, of as many heads and
                sequences, or one.
            value: the values ``(G, S, Dv)`` or ``(B, G, S, Dv)``, of as many heads as the layer has
                key heads, or query heads, or one; and of as many sequences, or one.
            queries: of a pattern or contexts, the queries whose rows are replaced; None is all.
            keys: of values, the keys that they are replaced at; None is all.
            layers: the layers; see the class.
            heads: the query heads.
            batch: the sequences.
            kind: the kind of attention.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for an empty selection, and for anything but one of the three.

        Example:
            >>> import regard, torch
            >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal(), bias=False)
            >>> x, context = torch.randn(1, 5, 6), torch.randn(2, 5, 3)
            >>> with torch.no_grad(), regard.intervene(layer) as change:
            ...     change.patch(context=context, queries=slice(1, None))
            ...     patched = layer(x)
            >>> by_hand = layer.output(context.transpose(0, 1).flatten(1))
            >>> torch.testing.assert_close(patched[0, 1:], by_hand[1:])
        """
        given = {
            name: thing
            for name, thing in (("pattern", pattern), ("context", context), ("value", value))
            if thing is not None
        }
        if len(given) != 1:
            raise ValueError(
                "patch takes one of pattern=, context= and value=, but was given "
                f"{' and '.join(given) or 'none'}; state several patches one after another"
            )
        (name,) = given
        for axis, numbers, fits in (
            ("queries", queries, name != "value"),
            ("keys", keys, name == "value"),
        ):
            if numbers is not None and not fits:
                raise ValueError(
                    f"{axis}={numbers!r} is for patch({'value=' if axis == 'keys' else 'context='}"
                    f"...), but {name} was given: a value is at a key, a row is of a query"
                )
        places = _places(layers, heads, batch, kind)
        if context is not None:
            rows = _numbers("queries", queries)
            self._add(PatchContext(context=_laid_out("context", context), queries=rows, **places))
        elif value is not None:
            columns = _numbers("keys", keys)
            self._add(PatchValue(value=_laid_out("value", value), keys=columns, **places))
        elif not isinstance(pattern, Pattern):
            raise TypeError(
                f"pattern must be a regard.Pattern, but is {type(pattern).__name__}; take one of a "
                "recording, such as recording[2]"
            )
        else:
            rows = _numbers("queries", queries)
            self._add(PatchPattern(pattern=pattern, queries=rows, **places))

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


def _laid_out(name: str, tensor: Any) -> Tensor:
    """Check contexts or values, and give them all four axes.

    Raises:
        TypeError: for anything but a floating-point tensor.
        ValueError: for another number of axes, or none of something.
    """
    check_floating(tensor, name)
    if tensor.ndim not in (3, 4) or not tensor.numel():
        heads, positions = ("H", "L") if name == "context" else ("G", "S")
        raise ValueError(
            f"{name} must have the axes ({heads}, {positions}, Dv) or (B, {heads}, {positions}, "
            f"Dv), but has shape {tuple(tensor.shape)}"
        )
    checked: Tensor = tensor if tensor.ndim == 4 else tensor[None]
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
