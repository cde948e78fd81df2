"""The changes that a block states.

Axes: B batch, H query heads, L queries, S keys.
"""

from __future__ import annotations

import math
from typing import Any

from regard._arguments import Indices, check_indices, has_negative
from regard.inputs.scoring import check_number
from regard.intervene.changer import ModelChanger
from regard.intervene.changes import Ablate, Change, KnockOut, Patch, Selected, Steer, Temper
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.names import KINDS, Kind


class Intervention:
    """Changes of a model's attention, stated one by one; `intervene` makes it.

    Every method takes the same places: ``layers``, numbers from 0 in the order of their first
    calls; ``heads``, of query heads; ``batch``, of sequences; each an integer, a slice or several
    integers, None for all; and ``kind``, as in a `Recording`: ``self``, ``cross`` or ``encoder``.
    Queries and keys are numbered over the whole text, also where a cache holds the earlier ones,
    negative ones from the end that the text has at the call; of cross-attention the keys are the
    source's. Where a rolling cache was full before the block began, how many keys it has dropped is
    unknown: from the second call on, numbers from the start raise an `Error`.

    Whatever the order of the methods, one call is changed in this one: keys are hidden
    (`knock_out`), numbers added (`steer`), scores multiplied (`temper`); then the softmax; then
    weights are replaced (`patch`), and contexts (`ablate`). Hidden keys stay hidden, numbers add
    up, factors multiply.
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
        kind: Kind = "self",
        by: str | Recording = "zero",
    ) -> None:
        """Replace the context of heads: by 0, or by a mean, which keeps what they always say.

        Args:
            layers: where; see the class.
            heads: likewise.
            batch: likewise.
            kind: likewise.
            by: ``"zero"``; ``"mean"``, the head's mean over the rows of the call that see a key;
                or a recording made with ``mean_contexts=True``, for its mean over that run.

        Raises:
            TypeError: for an argument of another kind.
            ValueError: for numbers that name nothing.

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
        kind: Kind = "self",
    ) -> None:
        """Hide keys from queries before the softmax: the rest of a row shares its weight.

        Attention knockout (Geva et al. 2023, arXiv:2304.14767, section 5). A row whose every key
        is hidden gives context 0.

        Args:
            keys: the keys that are hidden.
            queries: from which queries; None is all.
            layers: where; see the class.
            heads: likewise.
            batch: likewise.
            kind: likewise.

        Raises:
            TypeError: for an argument of another kind.
            ValueError: for numbers that name nothing.
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
        kind: Kind = "self",
    ) -> None:
        """Add a number to the scores of keys, after softcap and bias.

        Their weights grow by its exponential before the row is normalised. Steering towards a span
        (PASTA: Zhang et al. 2023, arXiv:2311.02262, section 3) multiplies the weights outside it by
        α < 1, which is log α added to the scores of the keys outside.

        Args:
            keys: the keys.
            by: the number, above 0 to attract.
            queries: for which queries; None is all.
            layers: where; see the class.
            heads: likewise.
            batch: likewise.
            kind: likewise.

        Raises:
            TypeError: for an argument of another kind.
            ValueError: for numbers that name nothing, and for one that is not finite.
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
        kind: Kind = "self",
    ) -> None:
        """Multiply the scores, biases included: below 1 rows grow even, above 1 they sharpen.

        A sink's logit stays as it is.

        Args:
            by: the factor, 1 / temperature, above 0.
            layers: where; see the class.
            heads: likewise; all of a layer that has a softcap.
            batch: likewise.
            kind: likewise.

        Raises:
            TypeError: for an argument of another kind.
            ValueError: for numbers that name nothing, and for a factor that is not positive.
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
        kind: Kind = "self",
    ) -> None:
        """Put in the weights of another run, which average this run's values.

        Args:
            pattern: the weights ``(B, H, L, S)``, of as many heads as the layer has, or one; and of
                one sequence, or as many as the batch has. Over a generation each call takes the
                rows of its queries; weights on keys that a rolling cache dropped are refused.
            layers: where; see the class.
            heads: likewise.
            batch: likewise.
            kind: likewise.

        Raises:
            TypeError: for an argument of another kind.
            ValueError: for numbers that name nothing.
        """
        if not isinstance(pattern, Pattern):
            raise TypeError(
                f"pattern must be a regard.Pattern, but is {type(pattern).__name__}; take one of a "
                "recording, such as recording[2]"
            )
        self._add(Patch(pattern=pattern, **_places(layers, heads, batch, kind)))

    def _add(self, change: Change) -> None:
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


def _numbers(name: str, numbers: Any) -> Selected:
    checked = check_indices(name, numbers)
    if checked == () or (isinstance(checked, slice) and _is_empty(checked)):
        raise ValueError(f"{name}={numbers!r} names nothing; leave it out to mean all")
    return checked


def _keys(keys: Any) -> Selected:
    if keys is None:
        raise TypeError(
            "keys must be an integer, a slice or integers, but is None; slice(None) is all"
        )
    return _numbers("keys", keys)


def _is_empty(numbers: slice) -> bool:
    """Whether a slice is empty whatever it is taken of."""
    start, stop = numbers.start or 0, numbers.stop
    return stop is not None and (start < 0) == (stop < 0) and stop <= start


def _finite(name: str, number: Any) -> float:
    checked = check_number(name, number)
    if not math.isfinite(checked):
        raise ValueError(f"{name} must be finite, but is {number}; knock_out(...) hides keys")
    return checked
