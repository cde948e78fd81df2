"""What functions handed to `record` keep of a layer's values: numbers or vectors, one a key.

Axes: B batch, H query heads, G key/value heads, s keys that are new in a call, Dv head dimension of
value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float, Shaped
from regard._tensors import upload
from regard.errors import RecordError
from regard.inputs.finite import without_autocast
from regard.record._selection import Selection, key_heads

Keep = Callable[[str, Tensor], Mapping[str, Tensor]]
"""Takes a layer's path and the values of new keys; returns tensors ``(B, H or G, s, ...)``."""


def check_keep(keep: Any) -> tuple[Keep, ...]:
    """Return the functions as a tuple.

    Raises:
        TypeError: for anything but a function or a sequence of functions.
    """
    functions = (keep,) if callable(keep) else keep
    if not isinstance(functions, (tuple, list)) or not all(map(callable, functions)):
        raise TypeError(
            f"keep must be a function or a sequence of functions, but is {keep!r}; see "
            "regard.lens.norms"
        )
    return tuple(functions)


class KeptValues:
    """What is kept of the values of one pattern, call by call.

    Args:
        path: the layer's path.
        selection: the functions, and which heads are kept where.
        heads: indices of the kept query heads.
    """

    def __init__(self, path: str, selection: Selection, heads: tuple[int, ...]) -> None:
        self._path = path
        self._selection = selection
        self._heads = heads
        self._pieces: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def add(self, value: Float[Tensor, "B G s Dv"] | None, heads: int) -> None:
        """Call the functions with the values of new keys.

        Args:
            value: the values; None where the call did not tell them.
            heads: number of query heads H of the call.

        Raises:
            RecordError: if there are no values, or a function returns something else than
                tensors with a row for each key, of the names and sizes of the calls before.
        """
        if value is None:
            raise RecordError(
                f"keep needs the values of {self._path!r}, but its attention call has weights "
                "alone; record it without keep"
            )
        found: dict[str, Tensor] = {}
        with without_autocast(value.device):
            for function in self._selection.keep_of_values:
                made = function(self._path, value)
                self._check(function, made, value, heads)
                for name, tensor in made.items():
                    if name in found:
                        raise RecordError(f"two functions of keep return {name!r}; rename one")
                    found[name] = self._own(tensor, value, heads)
        if self._pieces and found.keys() != self._pieces.keys():
            raise RecordError(
                f"keep returned {sorted(found)} for {self._path!r}, but {sorted(self._pieces)} "
                "for the call before; return the same names for every call"
            )
        for name, tensor in found.items():
            pieces = self._pieces.setdefault(name, [])
            if pieces and _alike(pieces[0]) != _alike(tensor):
                raise RecordError(
                    f"keep returned {name!r} of shape {tuple(tensor.shape)} and {tensor.dtype} for "
                    f"{self._path!r}, which do not follow {tuple(pieces[0].shape)} and "
                    f"{pieces[0].dtype} of the call before; only the number of keys may differ"
                )
            pieces.append(tensor)

    def joined(self, leading: Sequence[int]) -> dict[str, Shaped[Tensor, "*b S ..."]]:
        """Return what is kept of all keys, by name.

        Args:
            leading: the leading dimensions of the pattern; the last one counts its heads.
        """
        for pieces in self._pieces.values():
            if len(pieces) > 1:
                pieces[:] = [torch.cat(pieces, dim=2)]
        return {
            name: one.reshape(*leading[:-1], *one.shape[1 if leading else 2 :])
            for name, (one,) in self._pieces.items()
        }

    def _check(self, function: Keep, made: Any, value: Tensor, heads: int) -> None:
        batch, groups, keys, _ = value.shape
        name = getattr(function, "__qualname__", type(function).__qualname__)
        if not isinstance(made, Mapping):
            raise RecordError(
                f"{name} of keep returned a {type(made).__name__}; expected a mapping of names to "
                'tensors, such as {"norm": value.norm(dim=-1)}'
            )
        for key, tensor in made.items():
            shape = tuple(getattr(tensor, "shape", ()))
            fits = isinstance(tensor, Tensor) and isinstance(key, str) and len(shape) in (3, 4)
            if not fits or shape[0] != batch or shape[1] not in (heads, groups) or shape[2] != keys:
                raise RecordError(
                    f"{name} of keep returned {key!r}: {type(tensor).__name__} of shape {shape} "
                    f"for {self._path!r}; expected a tensor of {keys} keys, "
                    f"({batch}, {heads}, {keys}) or ({batch}, {groups}, {keys}), with or without "
                    "an axis behind"
                )

    def _own(self, tensor: Tensor, value: Tensor, heads: int) -> Tensor:
        """Return the kept heads of a tensor, in memory that the model does not write to."""
        tensor = tensor.detach()
        if len(self._heads) < heads:
            index = key_heads(self._heads, heads, tensor.shape[1])
            chosen = torch.tensor(index, dtype=torch.int64, device="cpu")
            tensor = tensor[:, upload(chosen, tensor.device)]
        if tensor.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        return self._selection.keep(tensor)


def _alike(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape[:2], tensor.shape[3:]
