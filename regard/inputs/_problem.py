"""The class `Problem`: the checked arguments of one attention call, in one layout.

`explain`, `attention` and `Pattern` take the same arguments, which are checked here. Every backend
and readout takes a `Problem`: its leading dimensions are flattened to (B, H), its mask is resolved
to rows, and every number per head has the shape ``(b, h)`` with b in {1, B} and h in {1, H}.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._arguments import check_floating
from regard._contexts import is_concrete
from regard._decorators import cached
from regard._shapes import Float, Int
from regard._tensors import four_axes, is_nvidia, matrix, pad_last, padded_size, per_head
from regard.inputs.dropout import draw_seed
from regard.inputs.scoring import Scoring, check_number
from regard.masks import Mask
from regard.masks.rows import Rows

# Products of two such numbers, summed over a head dimension of up to 2¹⁶, are at most 2¹²⁶, which
# is within the range of float32.
_LARGEST = 2.0**55


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The tensors and options of one attention; made by `check`."""

    leading: tuple[int, ...]
    """The leading dimensions of the query, which `restore` gives back to results."""
    query: Float[Tensor, "B H L D"]
    key: Float[Tensor, "B G S D"]
    value: Float[Tensor, "B _ S Dv"] | None
    """Has G heads like the key, or H heads when a pattern is multiplied by it."""
    rows: Rows
    scale: float
    softcap: float | None = None
    alibi: Float[Tensor, "#b #h"] | None = None
    sink: Float[Tensor, "#b #h"] | None = None
    dropout: float = 0.0
    seed: Int[Tensor, "2"] | None = None
    """Set if dropout is above 0; the seed and a weight's position decide whether it is kept."""
    check_finite: bool = True
    """True if a hidden NaN or infinity must not reach results; on CUDA this synchronizes."""

    @property
    def heads(self) -> tuple[int, int]:
        """(B, H)."""
        return self.query.shape[0], self.query.shape[1]

    @property
    def group(self) -> int | None:
        """Number of query heads that share a key head; None after `select`."""
        if not self.leading or self.leading[-1] != self.heads[1]:
            return None
        return self.heads[1] // max(self.key.shape[1], 1)

    @property
    def queries(self) -> int:
        """L."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """S."""
        return self.key.shape[-2]

    @property
    def exact_dtype(self) -> torch.dtype:
        """Dtype of scores and weights: float64 for float64, else float32."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def differentiable(self) -> bool:
        """True if a gradient may be needed."""
        return torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in self.continuous
        )

    @property
    def continuous(self) -> tuple[Tensor | None, ...]:
        """The tensors that results depend on continuously."""
        return self.query, self.key, self.value, self.rows.bias, self.alibi, self.sink

    @cached
    def is_finite(self) -> bool | None:
        """True if query, key and value contain no NaN and no value that could produce one.

        Infinities become NaN when multiplied by zero weights, and very large numbers, as in
        uninitialised memory, make scores overflow. None if the values are abstract; torch.compile
        breaks the graph to read them.
        """
        tensors = [t for t in (self.query, self.key, self.value) if t is not None]
        if not torch.compiler.is_compiling() and not is_concrete(*tensors):
            return None
        largest = [_largest(t) for t in tensors if t.numel() > 0]
        limit = _LARGEST / max(1.0, abs(self.scale))  # so that scaling does not overflow
        return not largest or bool((torch.stack(largest) <= limit).all())  # one read

    def repeated(self, tensor: Float[Tensor, "B G S d"]) -> Float[Tensor, "B H S d"]:
        """Repeat key or value for the query heads of its group, without copying where possible."""
        batch, heads = self.heads
        groups = tensor.shape[1]
        if groups == heads:
            return tensor
        spread = tensor[:, :, None].expand(-1, -1, heads // groups, -1, -1)
        return spread.reshape(batch, heads, *tensor.shape[2:])

    def restore(self, result: Tensor) -> Tensor:
        """Reshape a result (B, H, ...) to the query's leading dimensions."""
        return result.reshape(*self.leading, *result.shape[2:])

    def at(self, index: Int[Tensor, "l"]) -> Problem:
        """Keep only the queries at the given indices."""
        self._assert_no_dropout()
        return replace(self, query=self.query[..., index, :], rows=self.rows.take(index))

    def crop(self, queries: slice, keys: slice) -> Problem:
        """Keep only a range of queries and a range of keys, as a problem of its own."""
        self._assert_no_dropout()
        return replace(
            self,
            query=self.query[..., queries, :],
            key=self.key[..., keys, :],
            value=None if self.value is None else self.value[..., keys, :],
            rows=self.rows.crop(queries, keys),
        )

    def select(self, pairs: Int[Tensor, "*n"]) -> Problem:
        """Keep only the heads numbered b·H + h; `pairs.shape` becomes the leading dimensions."""
        self._assert_no_dropout()
        batch_size, heads = self.heads
        flat = pairs.flatten().to(self.query.device)
        batch, head = flat // heads, flat % heads

        def pick(tensor: Tensor) -> Tensor:
            head_of = head * tensor.shape[1] // max(heads, 1)
            if flat.numel() == 1:  # a view, which avoids a copy
                return tensor[int(batch)][int(head_of)][None, None]
            return tensor[batch, head_of][:, None]

        def number(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.expand(batch_size, heads)[batch, head][:, None]

        return replace(
            self,
            leading=tuple(pairs.shape),
            query=pick(self.query),
            key=pick(self.key),
            value=None if self.value is None else pick(self.value),
            rows=self.rows.select(batch, head),
            alibi=number(self.alibi),
            sink=number(self.sink),
        )

    def entry(self, index: int) -> Problem:
        """Keep only one entry of the batch."""
        self._assert_no_dropout()

        def pick(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or len(tensor) == 1 else tensor[index : index + 1]

        return replace(
            self,
            leading=(1, self.heads[1]),
            query=self.query[index : index + 1],
            key=self.key[index : index + 1],
            value=None if self.value is None else self.value[index : index + 1],
            rows=self.rows.entry(index),
            alibi=pick(self.alibi),
            sink=pick(self.sink),
        )

    def cast(self, dtype: torch.dtype) -> Problem:
        """Convert query, key and value."""
        value = None if self.value is None else self.value.to(dtype)
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=value)

    def to(self, move: Callable[[Tensor], Tensor]) -> Problem:
        """Move all tensors to another device with a function that moves one tensor."""
        query = move(self.query)
        value, alibi, sink = (
            None if t is None else move(t) for t in (self.value, self.alibi, self.sink)
        )
        rows = self.rows.to(move, query.device)
        key = move(self.key)
        return replace(self, query=query, key=key, value=value, rows=rows, alibi=alibi, sink=sink)

    def padded(self) -> Problem:
        """Pad the head dimension of query and key with zeros; see `padded_size`."""
        width = padded_size(self.query.shape[-1])
        return replace(self, query=pad_last(self.query, width), key=pad_last(self.key, width))

    def detached(self) -> Problem:
        """Drop gradients, value and dropout, which a pattern does not store."""
        bias, alibi, sink = (
            None if t is None else t.detach() for t in (self.rows.bias, self.alibi, self.sink)
        )
        return replace(
            self,
            query=self.query.detach(),
            key=self.key.detach(),
            value=None,
            rows=self.rows if bias is None else replace(self.rows, bias=bias),
            alibi=alibi,
            sink=sink,
            dropout=0.0,
            seed=None,
        )

    def _assert_no_dropout(self) -> None:
        assert self.dropout == 0, "dropout depends on a weight's position in the whole problem"


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    scoring: Scoring | None = None,
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    check_finite: bool = False,
) -> Problem:
    """Check that the arguments of an attention call are consistent, and build a `Problem`.

    Args:
        query: as for `regard.attention`.
        key: likewise.
        value: likewise; None if there is none.
        scoring: the options; None for the defaults.
        dropout: as for `regard.attention`.
        generator: likewise.
        check_finite: keep hidden NaN and infinities out of results on CUDA too; elsewhere it is
            always done.
    """
    scoring = Scoring() if scoring is None else scoring
    tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
    _check_tensors(tensors)
    _check_shapes(query, key, value)
    scoring.check_dtype(query.dtype)
    if not 0 <= check_number("dropout", dropout) <= 1:
        raise ValueError(f"dropout must lie in [0, 1], but is {dropout}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, but is {type(generator).__name__}; "
            "try torch.Generator().manual_seed(seed)"
        )

    leading = tuple(query.shape[:-2])
    queries, keys, dim = query.shape[-2], key.shape[-2], query.shape[-1]
    mask = Mask() if scoring.mask is None else scoring.mask
    rows = mask.resolve(leading, queries, keys, query.device)
    default_scale = 1 / math.sqrt(dim) if dim else 1.0
    return Problem(
        leading=leading,
        query=four_axes(query, leading),
        key=four_axes(key, leading),
        value=None if value is None else four_axes(value, leading),
        rows=rows.with_bias(matrix(scoring.bias, "bias", leading, queries, keys, query.device)),
        scale=default_scale if scoring.scale is None else float(scoring.scale),
        softcap=scoring.softcap,
        alibi=per_head(scoring.alibi, "alibi", leading),
        sink=per_head(scoring.sink, "sink", leading),
        dropout=dropout,
        seed=draw_seed(generator) if dropout > 0 else None,
        check_finite=check_finite or not is_nvidia(query.device),
    )


def _largest(tensor: Tensor) -> Tensor:
    """Find the largest magnitude; NaN if any element is NaN."""
    low, high = tensor.detach().aminmax()
    return torch.maximum(-low, high)


def _check_tensors(tensors: Mapping[str, object]) -> None:
    query = tensors["query"]
    for name, tensor in tensors.items():
        check_floating(tensor, name)
        assert isinstance(tensor, torch.Tensor), "it has just been checked"
        assert isinstance(query, torch.Tensor), "it was the first to be checked"
        if tensor.dtype != query.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} but query is {query.dtype}; convert one: "
                f"{name}.to(query.dtype)"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name} is on {tensor.device} but query on {query.device}; move one: "
                f"{name}.to(query.device)"
            )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    wrong = _misfit(query, key, value)
    if wrong is not None:
        what, cure = wrong
        tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise ValueError(f"{what}: {shapes}{cure}")


def _misfit(query: Tensor, key: Tensor, value: Tensor | None) -> tuple[str, str] | None:
    """Describe the first inconsistency of the shapes, and a cure if there is a short one."""
    if query.ndim < 2:
        return "query needs at least the axes (L, D), but the shapes are", ""
    wrong = _leading_misfit("key", query, key)
    if wrong is not None:
        return wrong
    if key.shape[-1] != query.shape[-1]:
        return "query and key must share their last axis D", ""
    if value is None:
        return None
    wrong = _leading_misfit("value", query, value)
    if wrong is not None:
        return wrong
    if value.shape[-2] != key.shape[-2]:
        return "key and value must hold the same number S of positions", ""
    if value.shape[-3:-2] != key.shape[-3:-2]:
        return "key and value must have the same number G of heads", ""
    return None


def _leading_misfit(name: str, query: Tensor, tensor: Tensor) -> tuple[str, str] | None:
    if tensor.ndim != query.ndim:
        cure = f"; add leading axes with {name}[None]"
        return f"{name} has {tensor.ndim} axes and query {query.ndim}", cure
    for have, want in zip(tensor.shape[:-3], query.shape[:-3], strict=True):
        if have not in (1, want):
            return f"{name}'s batch dimensions differ from the query's", ""
    if query.ndim > 2:
        heads, groups = query.shape[-3], tensor.shape[-3]
        if groups != heads and (groups == 0 or heads % groups):
            return f"the query's heads H={heads} must be a multiple of the {name}'s G={groups}", ""
    return None
