"""A recording under the names of TransformerLens' cache of activations.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor

from regard._shapes import Float
from regard.pattern.index import require_room
from regard.record import Layer, Recording
from regard.record.layer import require_one_run
from regard.steps import written_out

__all__ = ["CacheNames"]


class CacheNames(Mapping[str, Tensor]):
    """A recording's tensors by TransformerLens' names, for code that was written for its cache.

    The layers are those of self-attention, ``blocks.0.attn.hook_pattern`` and so on; short names
    work as there: ``names["pattern", 0]``. Each tensor is computed when it is asked for, and is not
    kept:

    * ``hook_q`` ``(B, L, H, D)`` and ``hook_k`` ``(B, S, G, D)``; of a model with rotary positions
      ``hook_rot_q`` and ``hook_rot_k``, since a recording has them after the rotation,
    * ``hook_attn_scores`` ``(B, H, L, S)``, scaled, −inf where a key is hidden,
    * ``hook_pattern`` ``(B, H, L, S)``, the weights,
    * ``hook_v`` ``(B, S, G, D)`` and ``hook_z`` ``(B, L, H, D)``, if the values were kept:
      ``record(model, keep=regard.lens.values())``.

    Args:
        recording: the recording of one run, with an axis of batch.
        rotary: whether the model rotates queries and keys before it compares them.

    Raises:
        KeyError: for a name that is not among these.
        ValueError: for scores or weights of more than 1 GiB.

    Example:
        >>> import regard, torch
        >>> from regard.integrations.transformer_lens import CacheNames
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer, keep=regard.lens.values()) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> cache = CacheNames(recording, rotary=False)
        >>> for name in cache:
        ...     print(name, tuple(cache[name].shape))
        blocks.0.attn.hook_q (1, 5, 2, 3)
        blocks.0.attn.hook_k (1, 5, 2, 3)
        blocks.0.attn.hook_attn_scores (1, 2, 5, 5)
        blocks.0.attn.hook_pattern (1, 2, 5, 5)
        blocks.0.attn.hook_v (1, 5, 2, 3)
        blocks.0.attn.hook_z (1, 5, 2, 3)
        >>> torch.equal(cache["pattern", 0], recording[0].dense())
        True
    """

    def __init__(self, recording: Recording, *, rotary: bool) -> None:
        q, k = ("rot_q", "rot_k") if rotary else ("q", "k")
        self._get: dict[str, Callable[[], Tensor]] = {}
        for layer in require_one_run(recording.of_kind().layers, "a cache's names"):
            hooks = {q: _query, k: _key, "attn_scores": _scores, "pattern": _weights}
            if "value" in layer.kept:
                hooks |= {"v": _value, "z": _context}
            for name, get in hooks.items():
                self._get[f"blocks.{layer.index}.attn.hook_{name}"] = partial(get, layer)

    def __getitem__(self, name: str | tuple[str, int]) -> Float[Tensor, "B ..."]:
        full = _full(name)
        if full not in self._get:
            raise KeyError(f"{full!r} is not in the recording, which has {[*self._get]}")
        return self._get[full]()

    def __contains__(self, name: object) -> bool:
        return _full(name) in self._get  # without the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._get)

    def __len__(self) -> int:
        return len(self._get)


def _full(name: object) -> object:
    """Return a name as TransformerLens' cache writes it; of two parts, hook and layer."""
    if isinstance(name, tuple) and len(name) == 2:
        return f"blocks.{name[1]}.attn.hook_{name[0]}"
    return name


def _query(layer: Layer) -> Float[Tensor, "B L H D"]:
    return layer.pattern.problem.query.transpose(1, 2)


def _key(layer: Layer) -> Float[Tensor, "B S G D"]:
    return layer.pattern.problem.key.transpose(1, 2)


def _scores(layer: Layer) -> Float[Tensor, "B H L S"]:
    pattern = layer.pattern
    require_room(pattern.shape.numel() * pattern.dtype.itemsize, 2**30)
    return dict(written_out(pattern.problem))["masked"]


def _weights(layer: Layer) -> Float[Tensor, "B H L S"]:
    return layer.pattern.dense()


def _value(layer: Layer) -> Float[Tensor, "B S G D"]:
    return layer.kept["value"].transpose(1, 2)


def _context(layer: Layer) -> Float[Tensor, "B L H D"]:
    value = layer.pattern.problem.repeated(layer.kept["value"])
    return (layer.pattern @ value).transpose(1, 2)
