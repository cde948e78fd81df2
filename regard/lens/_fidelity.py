"""Fidelity of a compressed cache: the divergence of each head's weights, the largest first.

Axes: N layers, B batch, H query heads, G key/value heads, L queries, S keys of the full cache, s of
the compressed cache, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._arguments import check_integers
from regard._display import show
from regard._shapes import Float, Int
from regard.backends.kernel_spec import Divergence
from regard.errors import RecordError
from regard.record import Recording
from regard.record.layer import Layer, require_one_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Fidelity", "HeadFidelity", "fidelity"]

_LISTED = 12  # heads that are printed


@dataclass(frozen=True, kw_only=True)
class HeadFidelity:
    """The divergence of one head's weights.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record() as full:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> worst = regard.lens.fidelity(full, full)[0]
        >>> worst.mean, worst.kept
        (0.0, 1.0)
    """

    layer: int
    head: int
    mean: float
    """Mean divergence over the rows."""
    largest: float
    """Largest divergence of a row."""
    query: int
    """Index of that row in the recording of the full cache."""
    kept: float
    """Fraction of the full cache's keys that the compressed cache holds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fidelity(Sequence[HeadFidelity]):
    """The divergences of all heads of a model, the largest first; made by `fidelity`.

    Attributes:
        kind: the divergence: ``"js"``, ``"kl"`` or ``"tv"``.
        heads: one entry per head, sorted by mean divergence.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record() as full:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> regard.lens.fidelity(full, full)
         head       js  largest  at query  keys kept
          0.0   0.0000   0.0000         0       100%
          0.1   0.0000   0.0000         0       100%
    """

    kind: Divergence
    heads: tuple[HeadFidelity, ...]

    def __getitem__(self, index: int) -> HeadFidelity:  # type: ignore[override] # no slices
        return self.heads[index]

    def __len__(self) -> int:
        return len(self.heads)

    def frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row per head, the largest divergence first."""
        import pandas as pd

        return pd.DataFrame([vars(head) for head in self.heads])

    def _repr_html_(self) -> str:
        html: str = show("fidelity_html", self)
        return html

    def __repr__(self) -> str:
        lines = [f" head {self.kind:>8}  largest  at query  keys kept"]
        lines += [
            f"{f'{head.layer}.{head.head}':>5} {head.mean:8.4f} {head.largest:8.4f} "
            f"{head.query:9} {head.kept:10.0%}"
            for head in self.heads[:_LISTED]
        ]
        left = len(self) - _LISTED
        return "\n".join(lines + [f"… {left} more: frame()"] * (left > 0))


def fidelity(
    full: Recording,
    compressed: Recording,
    kind: Divergence = "js",
    *,
    keys: Int[Tensor, "..."] | Sequence[Int[Tensor, "..."]] | None = None,
) -> Fidelity:
    """Measure how compressing a cache changed each head: the divergence of its weights.

    Both recordings are of the same model over the same last tokens, one with the full cache and one
    with a compressed cache. The recording of the full cache may have more rows: the last ones
    are compared. The queries of later layers differ too, since earlier layers gave other outputs.

    Args:
        full: the recording with all keys.
        compressed: the recording with fewer keys, or with approximate ones, such as quantised keys.
        kind: as for `Pattern.divergence`, from the full cache's weights to the compressed cache's:
            ``"kl"`` is infinite wherever a key with weight was evicted.
        keys: indices of the compressed cache's keys in the full cache, ``(s,)``, or by batch entry
            and head or key head, ``(B, H, s)`` or ``(B, G, s)``; one tensor for all layers or one
            per layer, in any order. Keys of later tokens may be left out. None matches keys whose
            vectors are equal.

    Returns:
        The heads, the largest divergence first: its mean over rows and batch, and the row where it
        is largest. It prints as a table; `Fidelity.frame` has all heads.

    Raises:
        ValueError: if the recordings differ in layers, heads or rows, and for keys that do not fit.
        RecordError: if the compressed cache has keys that the full cache lacks, or if a recording
            is of several runs.
        TypeError: for keys that are not integers.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 9, 4).unbind()
        >>> kept = torch.tensor([0, 1, 5, 6, 7, 8])
        >>> with regard.record() as full:
        ...     _ = regard.attention(query[..., -1:, :], key, key)
        >>> with regard.record() as compressed:
        ...     _ = regard.attention(query[..., -1:, :], key[..., kept, :], key[..., kept, :])
        >>> worst = regard.lens.fidelity(full, compressed, "tv")[0]
        >>> lost = 1 - float(full[0][0, worst.head, 0][kept].sum())
        >>> torch.testing.assert_close(worst.mean, lost, rtol=0, atol=1e-6)
    """
    pairs = list(zip(full.of_kind().layers, compressed.of_kind().layers, strict=False))
    counts = len(full), len(compressed)
    if counts[0] != counts[1] or any(one.heads != other.heads for one, other in pairs):
        raise ValueError(
            f"full has {counts[0]} layers and compressed {counts[1]}; both must be recorded of the "
            "same layers and heads, in one run each"
        )
    for recording in (full, compressed):
        require_one_run(recording.of_kind().layers, "fidelity")
    by_layer = [keys] * len(pairs) if keys is None or isinstance(keys, Tensor) else list(keys)
    if len(by_layer) != len(pairs):
        raise ValueError(f"keys has {len(by_layer)} entries for {len(pairs)} layers; give one each")
    heads = [
        head
        for (one, other), own in zip(pairs, by_layer, strict=True)
        for head in _of_layer(one, other, kind, own)
    ]
    return Fidelity(kind=kind, heads=tuple(sorted(heads, key=lambda head: -head.mean)))


def _of_layer(
    full: Layer, compressed: Layer, kind: Divergence, keys: Int[Tensor, "..."] | None
) -> list[HeadFidelity]:
    pattern, other = full.pattern, compressed.pattern
    rows, compared = pattern.shape[-2], other.shape[-2]
    if rows < compared:
        raise ValueError(
            f"{_name(full)} has {rows} rows with the full cache and {compared} with the "
            "compressed one; record at least those of the compressed one"
        )
    whole, part = pattern.problem.key, other.problem.key
    places = _match(full, whole, part, compared) if keys is None else _complete(keys, whole, part)
    if places is not None and places.ndim > 1 and places.shape[-2] != other.shape[-3]:
        places = places.repeat_interleave(other.shape[-3] // places.shape[-2], dim=-2)
    pattern = pattern.crop(queries=(rows - compared, rows))
    apart = pattern.divergence(other, kind, keys=places).double().cpu()
    by_head = apart.reshape(-1, *apart.shape[-2:]).movedim(1, 0)  # (H, B, L)
    largest, at = by_head.flatten(1).max(dim=-1)
    return [
        HeadFidelity(
            layer=full.index,
            head=head,
            mean=mean,
            largest=most,
            query=full.rows[rows - compared + place % compared],
            kept=part.shape[-2] / whole.shape[-2],
        )
        for head, mean, most, place in zip(
            full.heads,
            by_head.mean(dim=(1, 2)).tolist(),
            largest.tolist(),
            at.tolist(),
            strict=True,
        )
    ]


def _complete(keys: Int[Tensor, "..."], whole: Tensor, part: Tensor) -> Tensor:
    """Append the last keys of the full cache to the given indices."""
    check_integers(keys, "keys")
    missing = part.shape[-2] - keys.shape[-1]
    if missing <= 0:
        return keys
    last = torch.arange(whole.shape[-2] - missing, whole.shape[-2], device=keys.device)
    return torch.cat((keys, last.expand(*keys.shape[:-1], -1)), dim=-1)


def _match(
    layer: Layer, whole: Float[Tensor, "B G S D"], part: Float[Tensor, "B G s D"], queries: int
) -> Int[Tensor, "B G s"] | None:
    """Match keys with equal vectors, duplicates in order; None matches by position."""
    numbers, own = torch.cat((whole, part.to(whole.device)), dim=-2), whole.shape[-2]
    equal = torch.stack([_number_equal(head) for head in numbers.flatten(0, 1)])
    ours, places = equal[:, :own].sort(dim=-1, stable=True)
    theirs, order = equal[:, own:].contiguous().sort(dim=-1, stable=True)
    rank = torch.arange(theirs.shape[-1], device=ours.device) - torch.searchsorted(theirs, theirs)
    at = (torch.searchsorted(ours, theirs) + rank).clamp(max=own - 1)
    known = torch.zeros_like(theirs, dtype=torch.bool).scatter(
        -1, order, ours.gather(-1, at) == theirs
    )
    keys = torch.zeros_like(order).scatter(-1, order, places.gather(-1, at))
    new = int((~known).sum(dim=-1).max())
    came_last = bool(known[:, : known.shape[-1] - new].all()) and new <= queries
    last = slice(keys.shape[-1] - new, None)
    keys[:, last] = torch.arange(own - new, own, device=keys.device)
    if not came_last or bool((keys.sort(dim=-1).values.diff(dim=-1) == 0).any()):
        if own == part.shape[-2]:
            return None
        raise RecordError(
            f"{_name(layer)} has {part.shape[-2]} keys with the compressed cache, some of which "
            f"are none of the {own} with the full one; say with keys=... which they are"
        )
    return keys.reshape(*part.shape[:2], -1)


def _number_equal(keys: Float[Tensor, "S D"]) -> Int[Tensor, " S"]:
    """Return an integer for each key; equal keys get the same one."""
    return keys.unique(dim=0, return_inverse=True)[1]


def _name(layer: Layer) -> str:
    return layer.name or f"layer {layer.index}"
