"""The stages of the reader's file up to many heads: pages 1 to 7.

The definitions here have a switch for each mistake. Axes: B batch, L queries, S keys, T positions,
D, Dv head dimensions, E channels, H heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard_course._stage import (
    Names,
    Stage,
    StageError,
    parameters_of,
    require_equal,
    require_gradients,
    require_past,
    takes,
)

__all__ = ["STAGES", "attended", "heads_attended"]

_KEYS = "softmax over queries, not keys: dim=-1, so that each row sums to 1"
_ONE_OFF = "the mask is one off: position 3 sees position 4"
_D_NOT_ROOT = "divides by D instead of √D"


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    dim: int = -1,
    shift: int = 0,
    corner: bool = False,
    hidden: float = -torch.inf,
    late: bool = False,
    turned: bool = False,
) -> Tensor:
    """Attention by its definition, (…, L, D), (…, S, D), (…, S, Dv) to (…, L, Dv).

    Args:
        query: queries.
        key: keys.
        value: values.
        scale: what scores are multiplied by; None is 1/√D.
        causal: whether a query sees its own position and those before it alone.
        dim: the axis of softmax. From here on all is a mistake.
        shift: by how many positions the mask is off.
        corner: whether the first query sits at the first key, rather than the last at the last.
        hidden: what is put in place of a score that may not be seen.
        late: whether weights are masked rather than scores.
        turned: whether the other triangle is hidden.
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    length, count = scores.shape[-2:]
    start = 0 if corner else count - length
    visible = torch.ones(length, count, dtype=torch.bool, device=scores.device).tril(start + shift)
    visible = visible.mT if turned else visible
    if causal and not late:
        scores = scores.masked_fill(~visible, hidden)
    weights = torch.softmax(scores, dim=dim)
    return (weights * visible if causal and late else weights) @ value


def heads_attended(
    x: Tensor,
    of: Mapping[str, Tensor],
    heads: int,
    *,
    path: str = "",
    split: str = "",
    merge: str = "",
    order: tuple[int, int, int] = (0, 1, 2),
    project: bool = True,
    **attention: Any,
) -> Tensor:
    """The layer of several heads by its definition, (B, T, E) to the same.

    Args:
        x: what it reads.
        of: its parameters.
        heads: H.
        path: what their names begin with.
        split: empty, or a mistake: "reshape", "interleaved" or "by head".
        merge: empty, or "reshape".
        order: which thirds of c_attn are query, key and value.
        project: whether c_proj follows.
        attention: for `attended`.
    """
    batch, length, width = x.shape
    inner = x @ of[f"{path}c_attn.weight"].mT + of[f"{path}c_attn.bias"]
    if split == "by head":
        thirds = inner.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4).unbind()
    else:
        cut: dict[str, Callable[[Tensor], Tensor]] = {
            "": lambda part: part.unflatten(-1, (heads, -1)).transpose(1, 2),
            "reshape": lambda part: part.reshape(batch, heads, length, -1),
            "interleaved": lambda part: part.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2),
        }
        thirds = tuple(cut[split](part) for part in inner.chunk(3, dim=-1))
    query, key, value = (thirds[at] for at in order)
    context = attended(query, key, value, **{"causal": True, **attention})
    merged = context.reshape(batch, length, width) if merge else context.transpose(1, 2).flatten(2)
    if not project:
        return merged
    return merged @ of[f"{path}c_proj.weight"].mT + of[f"{path}c_proj.bias"]


def _averages(names: Names) -> None:
    average = names["causal_averages"]
    x = torch.randn(2, 5, 3)
    ones = torch.ones(5, 5)
    zeros = torch.zeros(5, 5)

    def by_softmax(dim: int, shown: Tensor) -> Callable[[], Tensor]:
        return lambda: zeros.masked_fill(~shown.bool(), -torch.inf).softmax(dim) @ x

    mistakes = {
        "no mask, or one of 0 in place of −∞: each row takes in all five": by_softmax(-1, ones),
        "the other triangle: rows take in what comes after them": by_softmax(-1, ones.triu()),
        "a row leaves itself out, and row 0 is the mean of nothing": by_softmax(-1, ones.tril(-1)),
        _ONE_OFF: by_softmax(-1, ones.tril(1)),
        _KEYS: by_softmax(-2, ones.tril()),
        "sums, not means: weights of a row sum to 1": lambda: ones.tril() @ x,
    }
    expected = torch.stack([x[:, : t + 1].mean(dim=1) for t in range(5)], dim=1)
    require_equal("causal_averages(x)", average(x), expected, mistakes)
    require_equal("causal_averages(x[0])", average(x[0]), expected[0])


def _mix(names: Names) -> None:
    """Without causality: that queries meet keys, and weights values; page 8's case among them."""

    def summed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return 0.7 * query @ key.mT @ value

    attend = names["attend"]
    if not takes(attend, "scale"):
        raise StageError("attend takes no scale", "def attend(query, key, value, scale=1.0)")
    for length, count, width in ((5, 5, 3), (3, 7, 2)):
        query, key = torch.randn(2, length, 3), torch.randn(2, count, 3)
        value = torch.randn(2, count, width)
        right = partial(attended, query, key, value)
        mistakes: dict[str, Callable[[], Tensor]] = {
            _KEYS: partial(right, scale=0.7, dim=-2),
            "the scale is not used": partial(right, scale=1.0),
            "scores are divided by the scale": partial(right, scale=1 / 0.7),
            "scores are multiplied by 1/√D besides": partial(right, scale=0.7 * 3**-0.5),
            "no softmax: scores are summed": partial(summed, query, key, value),
            "query and key have changed places": partial(attended, key, query, value, scale=0.7),
            "keys are summed, not values": partial(attended, query, key, key, scale=0.7),
            "a mask, which is not asked for": partial(right, scale=0.7, causal=True),
        }
        what = f"attend(query {length} × 3, key {count} × 3, value {count} × {width}, scale=0.7)"
        require_equal(what, attend(query, key, value, scale=0.7), right(scale=0.7), mistakes)


def _scale(names: Names) -> None:
    query, key, value = torch.randn(2, 6, 5), torch.randn(2, 7, 5), torch.randn(2, 7, 3)
    right = partial(attended, query, key, value)
    mistakes = {
        _D_NOT_ROOT: partial(right, scale=1 / 5),
        "no scale: None stands for 1/√D": partial(right, scale=1.0),
        "multiplies by √D": partial(right, scale=5**0.5),
        "the root of the number of keys, not of their channels": partial(right, scale=7**-0.5),
        "the root of the number of queries, not of channels": partial(right, scale=6**-0.5),
        "the root of the value's channels, not the query's": partial(right, scale=3**-0.5),
    }
    require_equal(
        "attend(query, key, value)", names["attend"](query, key, value), right(), mistakes
    )


def _causal(names: Names) -> None:
    attend = names["attend"]
    for length, count in ((6, 6), (2, 6)):
        query, key = torch.randn(2, length, 5), torch.randn(2, count, 5)
        value = torch.randn(2, count, 3)
        right = partial(attended, query, key, value, causal=True)
        mistakes = {
            _ONE_OFF: partial(right, shift=1),
            "itself is hidden: query i may see key i": partial(right, shift=-1),
            "no mask": partial(right, causal=False),
            "the mask counts from the upper left corner; the last query sits at the last key, so "
            "the diagonal is S − L": partial(right, corner=True),
            "0 in place of −∞: its exponential is 1": partial(right, hidden=0.0),
            "the mask comes after softmax: rows no longer sum to 1": partial(right, late=True),
            "the other triangle is hidden": partial(right, turned=True),
            _KEYS: partial(right, dim=-2),
        }
        what = f"attend(query {length} × 5, key {count} × 5, value, causal=True)"
        came = attend(query, key, value, causal=True)
        require_equal(what, came, right(), mistakes)
    x, other = torch.randn(2, 1, 6, 5).unbind()
    require_past("attend", lambda x: attend(x, x, x, causal=True), x, other)


def _dropout(names: Names) -> None:
    attend = names["attend"]
    p = 0.2
    draws = 500
    query, key = torch.randn(3, 4).expand(draws, 3, 4), torch.randn(5, 4)
    value = torch.eye(5)
    weights = attended(query[0], key, value)
    require_equal("attend(…, dropout=0.0)", attend(query[0], key, value, dropout=0.0), weights)
    dropped = attend(query, key.expand(draws, 5, 4), value.expand(draws, 5, 5), dropout=p)
    what = f"attend(…, dropout={p})"
    ratio = dropped / weights
    kept = ratio.abs() > 1e-6
    if torch.allclose(ratio, torch.ones(()), atol=1e-3):
        raise StageError(f"{what} drops nothing", "dropout never acts")
    if torch.allclose(dropped.sum(dim=-1), torch.ones(()), atol=1e-3):
        raise StageError(f"rows of {what} still sum to 1", "scores are dropped, not weights")
    share, grown = kept.float().mean().item(), ratio[kept].mean().item()
    if abs(share - p) < 0.05:
        raise StageError(
            f"{what} keeps {share:.2f} of the weights", "p is the share that is dropped"
        )
    if abs(grown - 1.0) < 0.02:
        raise StageError(
            f"after {what} what is kept is as before", "survivors are not multiplied by 1/(1 − p)"
        )
    if abs(share - (1 - p)) > 0.05 or abs(grown - 1 / (1 - p)) > 0.02:
        raise StageError(f"{what} keeps {share:.2f} of the weights, times {grown:.2f}")
    sums = attend(query, key.expand(draws, 5, 4), torch.ones(draws, 5, 1), dropout=p)
    if (sums == 0).float().mean() > 0.1:
        raise StageError(
            f"rows of {what} are zero as a whole", "the context is dropped, not weights"
        )


def _head(names: Names) -> None:
    torch.manual_seed(3)
    # By the reader's own attend, whose mistakes are its own stages' matter.
    own: Any = names.get("attend")
    attend = partial(own if takes(own, "scale") else attended, scale=3**-0.5)
    head = names["Head"](5, 3)
    named = ("query", "key", "value")
    of = parameters_of("Head(5, 3)", head, {f"{name}.weight": (3, 5) for name in named})
    x = torch.randn(2, 6, 5)
    query, key, value = (x @ of[f"{name}.weight"].mT for name in named)
    right = partial(attend, query, key, value)
    mistakes = {
        "divides by D instead of √D": partial(right, scale=1 / 3),
        "no scale": partial(right, scale=1.0),
        "√E for √D": partial(right, scale=5**-0.5),
        "query and key have changed places": partial(attend, key, query, value),
        "keys are summed, not values": partial(attend, query, key, key),
    }
    require_equal("Head(5, 3)(x)", head.eval()(x), right(), mistakes)
    require_equal("Head(5, 3)(x[0])", head(x[0]), right()[0])
    require_gradients("Head", head, head(x))


def _require_modes(what: str, module: Any, x: Tensor, expected: Tensor) -> None:
    """Dropout in training alone."""
    module.eval()
    if not torch.equal(module(x), module(x)):
        raise StageError(f"{what}.eval() differs from call to call", "dropout is active in eval")
    require_equal(f"{what}.eval()", module(x), expected)
    module.train()
    if torch.equal(module(x), module(x)):
        raise StageError(
            f"{what}.train() is the same in two calls", "dropout never acts in training"
        )


def _many_heads(names: Names) -> None:
    torch.manual_seed(7)
    layer = names["MultiHead"](12, 3)
    shapes = {"c_attn.weight": (36, 12), "c_attn.bias": (36,)}
    shapes |= {"c_proj.weight": (12, 12), "c_proj.bias": (12,)}
    of = parameters_of("MultiHead(12, 3)", layer, shapes)
    x = torch.randn(2, 5, 12)
    right = partial(heads_attended, x, of, 3)
    mistakes = {
        "√E for √D: a head's dot products have D terms": partial(right, scale=12**-0.5),
        _D_NOT_ROOT: partial(right, scale=1 / 4),
        "no scale": partial(right, scale=1.0),
        "no mask: causal=True": partial(right, causal=False),
        "heads cut wrongly, view before transpose: first (B, T, H, D), then H before T": partial(
            right, split="reshape"
        ),
        "… and merged likewise": partial(right, split="reshape", merge="reshape"),
        "heads interleaved wrongly: a head's channels lie side by side, (H, D) and not (D, H)": (
            partial(right, split="interleaved")
        ),
        "heads merged wrongly: bring T before H again, then join": partial(right, merge="reshape"),
        "c_attn gives first all queries, then all keys, then all values": partial(
            right, split="by head"
        ),
        "query and key have changed places": partial(right, order=(1, 0, 2)),
        "key and value have changed places": partial(right, order=(0, 2, 1)),
        "c_proj is left out": partial(right, project=False),
        "one head: each has its own softmax": partial(heads_attended, x, of, 1),
    }
    require_equal("MultiHead(12, 3)(x)", layer.eval()(x), right(), mistakes)
    require_past("MultiHead", layer, x, torch.randn(2, 5, 12))
    require_gradients("MultiHead", layer, layer(x))
    dropped = names["MultiHead"](12, 3, dropout=0.5)
    dropped.load_state_dict(layer.state_dict())
    _require_modes("MultiHead(12, 3, dropout=0.5)", dropped, x, right())


def _has(name: str, *parameters: str) -> Callable[[Names], bool]:
    return lambda names: takes(names.get(name), *parameters)


def _has_scale(names: Names) -> bool:
    attend: Any = names.get("attend")
    return takes(attend, "scale") and inspect.signature(attend).parameters["scale"].default is None


STAGES = (
    Stage("1", "causal_averages(x)", _has("causal_averages"), _averages),
    Stage("2", "attend(query, key, value, scale)", _has("attend"), _mix),
    Stage("3", "Head(E, D)", _has("Head"), _head),
    Stage("4", "attend(…, scale=None)", _has_scale, _scale),
    Stage("5", "attend(…, causal=False)", _has("attend", "causal"), _causal),
    Stage("6", "attend(…, dropout=0.0)", _has("attend", "dropout"), _dropout),
    Stage("7", "MultiHead(E, H, dropout)", _has("MultiHead"), _many_heads),
)
