"""The cases: what each area asks of an attention function, in sizes of a few numbers.

A case is data: `trial` makes the lines that run from it, and `judging` says what it is graded by.
Sizes are unequal, so that no axis passes for another one; D and Dv are 16 where a case is not about
them, since some kernels take multiples of 8 only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["AREAS", "Case", "cases"]

Ask = Literal["", "causal", "mask", "bias", "window"]
"""How the function is asked to hide keys: by which of its parameters."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call, and by what it is judged.

    Args:
        area: the area that it belongs to.
        name: what is special about it.
        judge: the name of a judge in `judging`.
        batch: sequences; 0 for tensors without that axis.
        heads: query heads.
        groups: key and value heads; None for as many as query heads.
        queries: L.
        keys: S.
        dim: D.
        value_dim: Dv; None for D.
        ask: how the function is asked to hide keys.
        see: Python for the boolean mask, ``{B}``, ``{H}``, ``{L}`` and ``{S}`` being the sizes;
            made from `window` and `ask` where these say it.
        bias: likewise, what is added to the scaled scores.
        window: visible positions before and after a query's own; −1 for all.
        scale: None for 1/√D; the function is then called without a scale.
        softcap: cap·tanh(score/cap) after scaling.
        sink: whether each head has a logit that joins the softmax and has no value.
        dtype: None for the one that the whole check has.
        inputs: lines that change ``q``, ``k`` and ``v`` before the definition.
        hidden: lines that change them after it; what they change is hidden.
    """

    area: str
    name: str
    judge: str = "result"
    batch: int = 2
    heads: int = 3
    groups: int | None = None
    queries: int = 11
    keys: int = 17
    dim: int = 16
    value_dim: int | None = None
    ask: Ask = ""
    see: str = ""
    bias: str = ""
    window: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: bool = False
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def grouped(self) -> int:
        """Query heads that share a key head."""
        return self.heads // (self.groups or self.heads)


_SOME = "torch.rand({L}, {S}).argsort(-1) < 9"  # 9 keys for each query, whichever
_SQUARE: dict[str, Any] = {"queries": 17, "keys": 17}
_TILES: dict[str, Any] = {
    "queries": 129,
    "keys": 129,
}  # one more than two tiles of 64, or one of 128


def cases() -> Iterator[Case]:
    """Yield every case, the simplest area first.

    Rows without visible keys have an area of their own: elsewhere every query sees some key.
    """
    for make in (_values, _masks, _options, _open, _tensors, _behaviour):
        yield from make()


def _values() -> Iterator[Case]:
    plain = Case(area="plain", name="fewer queries than keys")
    yield plain
    yield replace(plain, name="as many", **_SQUARE)

    shapes: dict[str, dict[str, Any]] = {
        "one query": {"queries": 1},
        "one key": {"keys": 1},
        "more queries than keys": {"queries": 19, "keys": 7},
        "D = 1": {"dim": 1},
        "D = 7": {"dim": 7},
        "D = 160": {"dim": 160},
        "Dv smaller than D": {"value_dim": 8},
        "Dv larger than D": {"value_dim": 24},
        "no batch axis": {"batch": 0},
    }
    for name, sizes in shapes.items():
        yield replace(plain, area="shapes", name=name, **sizes)

    # Kernels go through keys by tiles; what is left over behind the last one is a path of its own.
    for keys in (31, 33, 63, 64, 65, 127, 129, 257, 1031):
        yield replace(plain, area="lengths", name=f"{keys} keys", queries=5, keys=keys)
    yield replace(plain, area="lengths", name="129 queries", **_TILES)

    # 0 is a scale like others, though `scale or 1/√D` does not think so.
    for scale in (0.5, 2.0, 0.0):
        yield replace(plain, area="scale", name=f"scale {scale}", scale=scale)

    for dtype in ("bfloat16", "float16", "float64"):
        yield replace(plain, area="precisions", name=dtype, dtype=dtype)

    for name, lines in {
        "scores of ±1000": ("q *= 1000",),
        "all near −3000": ("q[...] = 750.0 + q", "k[...] = -1.0 + k / 1000"),
        "all near +3000": ("q[...] = 750.0 + q", "k[...] = 1.0 + k / 1000"),
        "one key far above": ("k[..., 5, :] *= 100",),
    }.items():
        yield replace(plain, area="large scores", name=name, inputs=lines)


def _masks() -> Iterator[Case]:
    causal = Case(area="causal", name="as many queries as keys", ask="causal", **_SQUARE)
    yield causal
    yield replace(causal, name="fewer queries than keys", queries=11)
    yield replace(causal, name="129 queries and keys", **_TILES)
    yield replace(causal, name="one query and key", queries=1, keys=1)

    mask = Case(area="boolean masks", name="(L, S)", ask="mask", see=_SOME)
    yield mask
    for name, see in {
        "(B, H, L, S)": "torch.rand({B}, {H}, {L}, {S}).argsort(-1) < 9",
        "(B, 1, 1, S), padding": "(torch.arange({S}) < torch.tensor([[9], [14]]))[:, None, None]",
        "(1, H, 1, S)": "torch.rand(1, {H}, 1, {S}).argsort(-1) < 9",
        "(L, S), transposed in memory": "(torch.rand({S}, {L}).argsort(0) < 9).mT",
    }.items():
        yield replace(mask, name=name, see=see)
    yield replace(mask, name="129 queries and keys", **_TILES)

    bias = Case(area="additive masks", name="(L, S)", ask="bias", bias="torch.randn({L}, {S})")
    yield bias
    yield replace(bias, name="(B, H, L, S)", bias="torch.randn({B}, {H}, {L}, {S})")
    hiding = f"torch.zeros({{L}}, {{S}}).to(q).masked_fill({_SOME}, -torch.inf)"
    yield replace(bias, name="−inf", bias=hiding)
    lowest = "torch.finfo(q.dtype).min"
    yield replace(bias, name="lowest number", bias=hiding.replace("-torch.inf", lowest))
    yield replace(bias, name="129 queries and keys", **_TILES)

    window = Case(area="windows", name="4 back", ask="window", window=(4, 0), **_SQUARE)
    yield window
    yield replace(window, name="3 back, 2 ahead", window=(3, 2))
    yield replace(window, name="the query's own alone", window=(0, 0))
    yield replace(window, name="4 back, fewer queries than keys", queries=11)
    yield replace(window, name="longer than the text", window=(40, 0))
    yield replace(window, name="70 back, 129 queries and keys", window=(70, 0), **_TILES)


def _options() -> Iterator[Case]:
    grouped = Case(area="grouped heads", name="6 on 2", heads=6, groups=2)
    yield grouped
    yield replace(grouped, name="5 on 1", heads=5, groups=1)
    yield replace(grouped, name="6 on 2, causal", ask="causal", **_SQUARE)

    sink = Case(area="sinks", name="one logit a head", sink=True)
    yield sink
    yield replace(sink, name="causal", ask="causal", **_SQUARE)
    yield replace(sink, name="all scores near −3000", inputs=_far_below())

    cap = Case(area="softcap", name="cap 2", softcap=2.0)
    yield cap
    yield replace(cap, name="cap 2, scores of ±1000", inputs=("q *= 1000",))
    yield replace(cap, name="cap 2, causal", ask="causal", **_SQUARE)


def _far_below() -> tuple[str, ...]:
    return ("q[...] = 750.0 + q", "k[...] = -1.0 + k / 1000")


def _open() -> Iterator[Case]:
    """Where the definition leaves a choice, and what a function does is written down."""
    empty = Case(
        area="fully masked rows",
        name="boolean mask",
        judge="empty_rows",
        ask="mask",
        see="(torch.arange({L}) != 3)[:, None].expand({L}, {S})",
    )
    yield empty
    nothing = "torch.zeros({L}, {S}).index_fill(0, torch.tensor([3]), -torch.inf)"
    yield replace(empty, name="additive mask", ask="bias", see="", bias=nothing)
    yield replace(empty, name="causal, more queries than keys", ask="causal", see="", queries=19)
    yield replace(empty, name="gradients", judge="empty_rows_gradients")

    # Keys from 13 on are hidden from all queries by the boolean mask, from 13 by the causal one.
    padding = "(torch.arange({S}) < 13).expand({L}, {S})"
    masks: tuple[tuple[str, Ask, str], ...]
    masks = ("boolean", "mask", padding), ("causal", "causal", "")
    for area, ask, see in masks:
        for tensor, what in (("k", "key"), ("v", "value")):
            for number, said in (("nan", "NaN"), ("inf", "∞")):
                yield Case(
                    area="NaN and ∞",
                    name=f"{said} in a {what} behind the mask, {area}",
                    judge="hidden_numbers",
                    ask=ask,
                    see=see,
                    hidden=(f"{tensor}[..., 13:, :] = torch.{number}",),
                    **_SQUARE,
                )
    for tensor, what in (("k", "key"), ("v", "value")):
        yield Case(
            area="NaN and ∞",
            name=f"NaN in a {what} that is seen",
            judge="visible_numbers",
            hidden=(f"{tensor}[..., 13, :] = torch.nan",),
        )


def _tensors() -> Iterator[Case]:
    views = Case(area="strides", name="(B, L, H, D) in memory", **_SQUARE)
    every = "q, k, v = ({} for t in (q, k, v))"
    yield replace(views, inputs=(every.format("t.transpose(1, 2).contiguous().transpose(1, 2)"),))
    for name, view in {
        "every second number": "torch.stack([t, t + 1], -1)[..., 0]",
        "cut from the middle": "torch.nn.functional.pad(t, (3, 2, 1, 1))[..., 1:-1, 3:-2]",
        "one sequence for all": "t[:1].expand(t.shape)",
        "one head for all": "t[:, :1].expand(t.shape)",
    }.items():
        yield replace(views, name=name, inputs=(every.format(view),))
    packed = "q, k, v = torch.cat([q, k, v], -1).split(16, -1)"
    yield replace(views, name="packed in one tensor", inputs=(packed,))

    plain = Case(area="gradients", name="plain", judge="gradients")
    yield plain
    yield replace(plain, name="causal", ask="causal", **_SQUARE)
    yield replace(plain, name="causal, 129 queries and keys", ask="causal", **_TILES)
    yield replace(plain, name="boolean mask", ask="mask", see=_SOME)
    yield replace(plain, name="additive mask", ask="bias", bias="torch.randn({L}, {S})")
    yield replace(plain, name="grouped heads", heads=6, groups=2)
    yield replace(plain, name="scale 0.5", scale=0.5)
    yield replace(plain, name="softcap", softcap=2.0)
    yield replace(plain, name="window", ask="window", window=(4, 0), **_SQUARE)
    yield replace(plain, name="of a sum, whose gradient has no memory", judge="gradients_of_sum")


def _behaviour() -> Iterator[Case]:
    # The value is the identity, so that the result shows the weights.
    identity = ("v[...] = torch.eye(32)",)
    dropout = Case(
        area="dropout",
        name="mean and size of the weights kept",
        judge="dropout",
        heads=7,
        queries=32,
        keys=32,
        dim=32,
        inputs=identity,
    )
    yield dropout
    yield replace(dropout, name="the same seed", judge="dropout_seed")

    mask = Case(area="inputs unchanged", name="forward", judge="unchanged", ask="mask", see=_SOME)
    yield mask
    yield replace(mask, name="additive mask", ask="bias", see="", bias="torch.randn({L}, {S})")
    yield replace(mask, name="causal", ask="causal", see="", **_SQUARE)
    yield replace(mask, name="forward and backward", judge="unchanged_backward")

    long = Case(area="determinism", name="two calls", judge="twice", **_TILES)
    yield long
    yield replace(long, name="two backward passes", judge="twice_backward")
    batch = replace(long, area="batch independence")
    yield replace(batch, name="a sequence alone and among 2", judge="alone")
    yield replace(batch, name="NaN in the other sequence", judge="other_sequence")

    compiled = Case(area="compile", name="plain", judge="compiled")
    yield compiled
    yield replace(compiled, name="another length", judge="compiled_lengths")


AREAS = tuple(dict.fromkeys(case.area for case in cases()))
"""Names of the areas, in the order in which they are graded."""
