"""Problems for several ranks, which the ranks and the test that judges them make alike.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

import regard
from regard.masks.hiding import add_to_scores
from support import oracle
from support.own_readout import SquaredWeights

B, H, G, L, D, DV = 2, 6, 3, 23, 5, 7


@dataclass(frozen=True)
class Problem:
    """One attention over a whole sequence."""

    mask: object = None
    dtype: torch.dtype = torch.float32
    heads: tuple = (B, H)
    queries: int = L
    keys: int | None = None
    options: dict = field(default_factory=dict)
    sink: bool = False
    alibi: bool = False
    stray: tuple = ()
    """Keys of sequence 0 that hold NaN, and infinity as their values."""

    def tensors(self) -> dict:
        """Draw query, key, value, the gradient of the context, and numbers of each head."""
        generator = torch.Generator().manual_seed(0)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.dtype)

        batch = self.heads[:-1]
        groups = (self.heads[-1] // 2,) if self.heads else ()
        keys = self.queries if self.keys is None else self.keys
        drawn = {
            "query": draw(*self.heads, self.queries, D),
            "key": draw(*batch, *groups, keys, D),
            "value": draw(*batch, *groups, keys, DV),
            "gradient": draw(*self.heads, self.queries, DV),
        }
        for place in self.stray:
            drawn["key"][0, ..., place, :] = torch.nan
            drawn["value"][0, ..., place, :] = torch.inf
        if self.alibi:
            drawn["alibi"] = draw(H).abs() / 7
        if self.sink:
            drawn["sink"] = draw(H)
        return drawn


IDS = torch.tensor([[0] * 5 + [1] * 11 + [2] * 7, [4] * 2 + [3] * 19 + [9] * 2])
LEFT = torch.arange(L) >= torch.tensor([[3], [11]])
NOTHING_OF_ONE = (torch.arange(L) < 13) & torch.tensor([[True], [False]])
STARTS = (torch.arange(L) * 7) % 17
CAUSAL = regard.causal()
SHIFT = 0.7

# Of one rounding: sums are of some ten numbers near 1. A half precision rounds each partial
# context, and in the backward pass each block's part of a gradient.
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-8}

PROBLEMS = {
    "everything seen": Problem(),
    "causal": Problem(CAUSAL),
    "causal float64": Problem(CAUSAL, torch.float64),
    "causal bfloat16": Problem(CAUSAL, torch.bfloat16),
    "window ahead": Problem(regard.window(4, ahead=3)),
    "documents": Problem(CAUSAL & regard.documents(IDS)),
    "padding and prefix": Problem(regard.padding(LEFT) & regard.masks.prefix(torch.tensor([7, 2]))),
    "intervals": Problem(regard.masks.intervals(STARTS, STARTS + 9), torch.float64),
    "everything at once": Problem(
        CAUSAL & regard.window(9) & regard.documents(IDS),
        options={"scale": 0.7, "softcap": 1.3},
        sink=True,
        alibi=True,
    ),
    "at once in float64": Problem(
        CAUSAL & regard.padding(LEFT),
        torch.float64,
        options={"scale": 0.7, "softcap": 1.3},
        sink=True,
        alibi=True,
    ),
    "hidden spans": Problem(
        CAUSAL
        & regard.masks.hide(slice(3, 9), queries=slice(5, None))
        & regard.masks.hide(slice(7, 19, 2), queries=[11, 14, 20, 22], heads=[0, 3, 5])
        & regard.masks.hide(slice(None), queries=17),
        sink=True,
        alibi=True,
    ),
    "shifted spans": Problem(
        CAUSAL & regard.masks.hide(6) & add_to_scores(SHIFT, slice(2, 12)), torch.float64
    ),
    "a sequence that sees nothing": Problem(regard.padding(NOTHING_OF_ONE), sink=True),
    "NaN that nobody sees": Problem(
        CAUSAL & regard.padding(NOTHING_OF_ONE), stray=(13, 14, 22), sink=True
    ),
    "more keys than queries": Problem(CAUSAL, keys=31, alibi=True),
    "an earlier offset": Problem(regard.causal(offset=-2)),
    "one sequence, no heads": Problem(CAUSAL, heads=()),
    "fewer positions than ranks": Problem(CAUSAL, queries=1),
    "few positions": Problem(CAUSAL, torch.float64, queries=2),
}

MARKED = (0, 5, 20)
SOME = slice(5, -1)  # queries


def labels(keys):
    """The span of each key, none for some."""
    return [j * 5 % 7 - 3 for j in range(keys)]


def evicted(keys):
    """Positions of keys of which every second one is left, and of the queries after them."""
    return 2 * torch.arange(keys), 2 * torch.arange(L) + 1


def readouts(keys):
    """What is read of a pattern of so many keys."""
    return {
        "TopK": regard.readouts.TopK(4),
        "Max": regard.readouts.Max(),
        "MaxScore": regard.readouts.MaxScore(),
        "MaxScore of heads": regard.readouts.MaxScore("head"),
        "Entropy": regard.readouts.Entropy(),
        "Distance": regard.readouts.Distance(),
        "Mass": regard.readouts.Mass(MARKED),
        "Received": regard.readouts.Received(),
        "Received of some": regard.readouts.Received(queries=SOME),
        "mean Received": regard.readouts.Received("mean", SOME),
        "most Received": regard.readouts.Received("max"),
        "Spans": regard.readouts.Spans(labels(keys), 4),
        "Lag": regard.readouts.Lag(2),
        "Lag of evicted": regard.readouts.Lag(3, *evicted(keys)),
        "Blocks": regard.readouts.Blocks(3, 5, "sum"),
        "most of Blocks": regard.readouts.Blocks(5, 3, "max"),
        "Offsets": regard.readouts.Offsets(9),
        "Image": regard.readouts.Image(7, 11),
        "SquaredWeights": SquaredWeights(),
    }


# In which every readout has its keys, and nothing is drowned in rounding.
READ = (
    "everything seen",
    "causal",
    "causal float64",
    "window ahead",
    "everything at once",
    "at once in float64",
    "hidden spans",
    "shifted spans",
    "a sequence that sees nothing",
    "more keys than queries",
)


@functools.cache
def exact(name):
    """A problem by the definition, in Python's own floats, with leading dimensions (B, H)."""
    problem = PROBLEMS[name]
    drawn = {key: tensor.double() for key, tensor in problem.tensors().items()}
    query, key, value = (
        t.reshape(*(1,) * (4 - t.ndim), *t.shape)
        for t in (drawn["query"], drawn["key"], drawn["value"])
    )
    mask = regard.Mask() if problem.mask is None else problem.mask
    first = key.shape[-2] - query.shape[-2] if mask.offset is None else mask.offset
    positions = (first + torch.arange(query.shape[-2])).expand(len(query), -1)
    visible = mask.visible(query.shape[-2], key.shape[-2], problem.heads)
    visible = visible.reshape(*query.shape[:3], -1)
    numbers = {name: drawn.get(name) for name in ("alibi", "sink")}
    shift = torch.zeros(visible.shape, dtype=torch.float64)
    shift[..., 2:12] = SHIFT * (name == "shifted spans")
    actual = oracle.attend(
        query,
        key,
        value,
        visible=visible,
        positions=positions,
        bias=shift,
        **numbers,
        **problem.options,
    )
    return SimpleNamespace(
        query=query,
        key=key,
        options=problem.options,
        exact=actual,
        visible=visible,
        positions=positions,
    )
