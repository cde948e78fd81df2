"""A case as lines of Python: what the check runs is what a failing case shows.

The definition stands in these lines, so that they run where torch alone is installed. It is used
twice: in float64, as what is right, and in the function's own dtype, as what can be fairly asked of
it. Tests hold it against `regard.explain` in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.conformance.cases import Case
from regard.conformance.signatures import Call, Signature

__all__ = ["FACTOR", "Setting", "Trial", "error_of"]

FACTOR = 4
"""How many times the error of the definition in the same dtype a function may have.

flash-attention's own tests take 2. The sums of a fused kernel are in another order, and its errors
others of the same size. Right functions in docs/conformance.md come to at most 0.95 of what 4
allows, wrong ones in tests/conformance to more than 100 times it.
"""


@dataclass(frozen=True)
class Setting:
    """What is checked, and where.

    Args:
        function: the attention function.
        lines: what makes it the name ``attend`` in a failing case.
        signature: how it is called.
        dtype: that of most cases, such as ``float32``.
        device: such as ``cpu``.
    """

    function: Callable[..., Any]
    lines: Sequence[str]
    signature: Signature
    dtype: str
    device: str


@dataclass
class Trial:
    """One case with one function: its lines, and the names that they have defined so far.

    Args:
        case: the case.
        setting: the function.
        dropout: the probability to ask for.
    """

    case: Case
    setting: Setting
    dropout: float = 0.0
    names: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    own: Tensor = field(init=False)
    """The definition in the dtype of the function, or in `fair`."""

    def __post_init__(self) -> None:
        self.names.update(torch=torch, attend=self.setting.function, fair=self.fair)
        call = self.call  # raises, before anything is computed, where it is not offered
        self.run(*self._inputs())
        self.run(*self._definition())
        self.own = self.value("definition(*(t.to(fair) for t in (q, k, v)))")
        self.run(*self.case.hidden, *call.before)

    @cached_property
    def call(self) -> Call:
        """How the function is called.

        Raises:
            NotOfferedError: if it has no parameter for it.
        """
        return self.setting.signature.call(self.case, self.dropout)

    def run(self, *lines: str) -> None:
        """Run some lines, which become part of the failing case."""
        self.lines += lines
        with torch.device(self.setting.device):
            exec("\n".join(lines), self.names)  # noqa: S102  # the lines of this room

    def value(self, expression: str) -> Any:
        """Compute an expression."""
        with torch.device(self.setting.device):
            return eval(expression, self.names)  # noqa: S307  # likewise

    def tensor(self, name: str) -> Tensor:
        """Find one of the tensors that the lines have made."""
        found = self.names[name]
        assert isinstance(found, Tensor)
        return found

    def snippet(self, *ending: str) -> str:
        """Write everything that has run, to paste elsewhere."""
        start = ["import torch", *self.setting.lines]
        if self.setting.device != "cpu":
            start.append(f'torch.set_default_device("{self.setting.device}")')
        return "\n".join([*start, "", *self.lines, *ending])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of query, key and value."""
        found = getattr(torch, self.case.dtype or self.setting.dtype)
        assert isinstance(found, torch.dtype)
        return found

    @property
    def fair(self) -> torch.dtype:
        """The dtype in which the definition's own error is measured.

        In float64 the definition is what it would be compared with: there its error is that in
        float32, times the ratio of their roundings.
        """
        return torch.float32 if self.dtype == torch.float64 else self.dtype

    @cached_property
    def floor(self) -> float:
        """The error that is always allowed: one rounding of the largest number of the result."""
        want = self.tensor("want")
        size = want[want.isfinite()].abs().max() if want.numel() else 0.0
        return torch.finfo(self.dtype).eps * float(size)

    def allowed(self, own: Float[Tensor, "..."], want: Float[Tensor, "..."]) -> float:
        """The error that is allowed where the definition gives `own` in the dtype `fair`."""
        finer = torch.finfo(self.dtype).eps / torch.finfo(self.fair).eps
        return FACTOR * finer * error_of(own, want) + self.floor

    def _inputs(self) -> Iterator[str]:
        case = self.case
        yield "torch.manual_seed(0)"
        batch = f"{case.batch}, " if case.batch else ""
        groups = case.groups or case.heads
        dtype = "" if self.dtype == torch.float32 else f", dtype={self.dtype}"
        for name, heads, length, dim in (
            ("q", case.heads, case.queries, case.dim),
            ("k", groups, case.keys, case.dim),
            ("v", groups, case.keys, case.value_dim or case.dim),
        ):
            yield f"{name} = torch.randn({batch}{heads}, {length}, {dim}{dtype})"
        sizes = {"B": case.batch, "H": case.heads, "L": case.queries, "S": case.keys}
        if see := case.see or self._see():
            yield f"see = {see.format(**sizes)}"
        if case.bias:
            yield f"bias = ({case.bias.format(**sizes)}).to(q)"
        if case.sink:
            yield f"sink = torch.randn({case.heads}).to(q)"
        yield from case.inputs

    def _see(self) -> str:
        case = self.case
        offset = case.keys - case.queries if self.setting.signature.by_last_query else 0
        ones = f"torch.ones({case.queries}, {case.keys}, dtype=torch.bool)"
        if case.ask == "causal":
            return f"{ones}.tril({offset})"
        if case.window is not None:
            back, ahead = case.window
            return f"{ones}.tril({offset + ahead}).triu({offset - back})"
        return ""

    def _definition(self) -> Iterator[str]:
        case = self.case
        yield "def definition(q, k, v):"
        if case.grouped > 1:
            yield f"    k, v = (t.repeat_interleave({case.grouped}, 1) for t in (k, v))"
        scale = f"{case.dim}**-0.5" if case.scale is None else str(case.scale)
        yield f"    scores = q @ k.mT * {scale}"
        if case.softcap is not None:
            yield f"    scores = {case.softcap} * torch.tanh(scores / {case.softcap})"
        if case.bias:
            yield "    scores = scores + bias.to(q)"
        if "see" in self.names:
            yield "    scores = scores.masked_fill(~see, -torch.inf)"
        if case.sink:
            yield "    column = sink.to(q)[:, None, None].expand(*scores.shape[:-1], 1)"
            yield "    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v"
        else:
            yield "    return scores.softmax(-1) @ v"
        yield "want = definition(q.double(), k.double(), v.double())"


def error_of(got: Float[Tensor, "..."], want: Float[Tensor, "..."]) -> float:
    """Find the largest difference; infinity where a number is NaN or infinite."""
    if not got.numel():
        return 0.0
    difference = (got.double() - want).abs()
    return float(difference.nan_to_num(torch.inf).max())
