"""Attention problems for tests, drawn by hypothesis: sizes, dtypes, strides, masks and the rest.

A `Case` holds the arguments as `regard` takes them, and beside each mask what it means, entry by
entry, in plain Python: the oracle never asks `regard` what a query may see. Masks are made when
their first use, since hypothesis forbids strategies the random numbers that beartype's
checks draw.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

import regard
from regard.masks.hiding import add_to_scores
from support import oracle

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALF)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention problem with all leading dimensions, and its meaning."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    make_mask: Callable[[], regard.Mask]
    others: dict
    """scale, softcap, bias, alibi and sink, those that the case has."""
    visible: torch.Tensor
    """(B, H, L, S)"""
    positions: torch.Tensor
    """(B, L)"""
    shift: torch.Tensor | float = 0.0
    """What the mask adds to scores, (B, H, L, S)."""

    @functools.cached_property
    def options(self) -> dict:
        return {"mask": self.make_mask(), **self.others}

    @property
    def dtype(self):
        return self.query.dtype

    @property
    def fully_masked(self):
        """Rows that see nothing, (B, H, L)."""
        return ~self.visible.any(-1)

    @functools.cached_property
    def exact(self) -> oracle.Exact:
        bias = torch.as_tensor(self.options.get("bias", 0.0)) + self.shift
        return oracle.attend(
            *(t.double() for t in (self.query, self.key, self.value)),
            visible=self.visible,
            positions=self.positions,
            bias=bias.expand(self.visible.shape),
            **{n: self.options.get(n) for n in ("scale", "softcap", "alibi", "sink")},
        )

    @property
    def rounding(self) -> float:
        """What rounding its products can do to a score: their size times the precision.

        In problems of a few numbers torch may avoid that by luck, so that twice its error is
        nothing.
        """
        products = self.query.double().abs() @ self.spread()[0].double().abs().mT
        scale = abs(self.options.get("scale", self.query.shape[-1] ** -0.5))
        return torch.finfo(self.exact_dtype).eps * (1 + scale * float(products.max()))

    @property
    def exact_dtype(self):
        """Dtype that scores and weights are computed in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def torchs_own(self) -> torch.Tensor:
        """The same by torch alone, in the same dtype; rows that see nothing are left undefined.

        It has no softcap: there the formula is written out in the dtype at hand. A sink is a key of
        zeros with a value of zeros, its logit a bias.
        """
        query, (key, value) = self.query, self.spread()
        bias = self.added().to(self.dtype)
        if "softcap" in self.options:
            cap, scale = self.options["softcap"], self.options.get("scale", query.shape[-1] ** -0.5)
            scores = cap * torch.tanh(query @ key.mT * scale / cap) + bias
            if "sink" in self.options:
                scores = torch.cat([scores, self.sinks(scores)], -1)
            return torch.softmax(scores, -1)[..., : key.shape[-2]] @ value
        if "sink" in self.options:
            bias = torch.cat([bias, self.sinks(bias)], -1)
            key, value = (F.pad(t, (0, 0, 0, 1)) for t in (key, value))
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=self.options.get("scale")
        )

    def plain_logits(self) -> torch.Tensor:
        """What goes into the softmax, by torch, in the dtype that weights are computed in."""
        query, key = self.query.to(self.exact_dtype), self.spread()[0].to(self.exact_dtype)
        scores = query @ key.mT * self.options.get("scale", query.shape[-1] ** -0.5)
        if "softcap" in self.options:
            scores = self.options["softcap"] * torch.tanh(scores / self.options["softcap"])
        scores = scores + self.added().to(self.exact_dtype)
        if "sink" in self.options:
            scores = torch.cat([scores, self.sinks(scores)], -1)
        return scores

    def plain_weights(self) -> torch.Tensor:
        return torch.softmax(self.plain_logits(), -1)[..., : self.key.shape[-2]]

    def spread(self):
        """Key and value, one for each query head."""
        repeats = self.query.shape[1] // self.key.shape[1]
        return tuple(t.repeat_interleave(repeats, 1) for t in (self.key, self.value))

    def added(self) -> torch.Tensor:
        """All that is added to the scaled scores, −∞ where a key is hidden; float64."""
        total = torch.zeros(self.visible.shape, dtype=torch.float64) + self.shift
        if "bias" in self.options:
            total = total + self.options["bias"]
        if "alibi" in self.options:
            distance = (self.positions[:, None, :, None] - torch.arange(self.key.shape[-2])).abs()
            total = total - self.options["alibi"].double()[:, None, None] * distance
        return total.masked_fill(~self.visible, -torch.inf)

    def sinks(self, like):
        return self.options["sink"].to(like)[:, None, None].expand(*like.shape[:-1], 1)


def error(result, exact, fully_masked=None) -> float:
    """The largest absolute error, rows that see nothing left out."""
    difference = (result.double() - exact).abs()
    if fully_masked is not None:
        difference = difference[~fully_masked]
    return float(difference.max()) if difference.numel() else 0.0


def close(result, exact, reference, fully_masked, floor) -> None:
    """Assert an error of at most twice the reference's, or of a floor that the caller explains."""
    ours, theirs = error(result, exact, fully_masked), error(reference, exact, fully_masked)
    assert ours <= 2 * theirs + floor, f"error {ours:.3g}, torch's own {theirs:.3g}"


@dataclass(frozen=True)
class Term:
    """A mask, and what it means for the key at j and a query at position p of entry b, head h."""

    make: Callable[[], regard.Mask]
    sees: Callable[[int, int, int, int, int], bool]
    """Of b, h, the query's index i, its position p, and j."""


@st.composite
def terms(draw, batch, heads, queries, keys, kinds):
    kind = draw(st.sampled_from(kinds))
    per_sequence = draw(st.booleans())
    if kind == "causal":
        return Term(regard.causal, lambda b, h, i, p, j: j <= p)
    if kind == "window":
        size, ahead = draw(st.integers(1, keys + 2)), draw(st.integers(0, 3))
        return Term(
            lambda: regard.window(size, ahead=ahead),
            lambda b, h, i, p, j: p - size < j <= p + ahead,
        )
    if kind == "prefix":
        lengths = draw(st.lists(st.integers(0, keys + 1), min_size=batch, max_size=batch))
        if not per_sequence:
            lengths = lengths[:1] * batch
        length = torch.tensor(lengths) if per_sequence else lengths[0]
        return Term(
            lambda: regard.masks.prefix(length), lambda b, h, i, p, j: j < lengths[b] or j <= p
        )
    if kind == "documents":
        edges = draw(tables(batch, keys, st.booleans(), per_sequence=per_sequence))
        ids = [list(itertools.accumulate(row, initial=7))[:keys] for row in edges]
        numbers = torch.tensor(ids if per_sequence else ids[0])
        return Term(
            lambda: regard.documents(numbers),
            lambda b, h, i, p, j: 0 <= p < keys and ids[b][p] == ids[b][j],
        )
    if kind == "padding":
        cuts = draw(tables(batch, 2, st.integers(0, keys), per_sequence=per_sequence))
        keep = [[min(cut) <= j < max(cut) for j in range(keys)] for cut in cuts]
        kept = torch.tensor(keep if per_sequence else keep[0])
        kept = kept.long() if draw(st.booleans()) else kept
        return Term(lambda: regard.padding(kept), lambda b, h, i, p, j: keep[b][j])
    if kind == "hide":
        make, _, touches = draw(spans(heads, keys, st.just(-math.inf)))
        return Term(make, lambda b, h, i, p, j: not touches(h, p, j))
    assert kind == "dense"
    per_head = [(heads, 1, keys), (batch, heads, queries, keys)]
    shape = draw(st.sampled_from([(queries, keys), (1, keys), (queries, 1), *per_head]))
    allowed = torch.rand(shape, generator=draw(generators)) < 0.6
    full = allowed.expand(batch, heads, queries, keys)
    return Term(lambda: regard.dense(allowed), lambda b, h, i, p, j: bool(full[b, h, i, j]))


@st.composite
def spans(draw, heads, keys, numbers):
    """A mask that adds to scores, the number, and whether it does in head h, position p, key j.

    An index is an integer, a slice or integers; those of positions may lie where no query sits.
    """
    key, head = draw(indices(keys, beyond=0)), draw(st.none() | indices(heads, beyond=0))
    query = draw(st.none() | indices(keys, beyond=3))
    by = draw(numbers)
    chosen_keys, chosen_heads = ({*_chosen(i, size)} for i, size in ((key, keys), (head, heads)))

    def at(position):
        if not isinstance(query, slice):
            return query is None or position in {q + keys if q < 0 else q for q in _listed(query)}
        start, stop = (
            end if end is None or end >= 0 else max(end + keys, 0)
            for end in (query.start, query.stop)
        )
        early, late = start is not None and position < start, stop is not None and position >= stop
        return not early and not late and (position - (start or 0)) % (query.step or 1) == 0

    def make():
        return add_to_scores(by, key, query, head)

    return make, by, lambda h, p, j: h in chosen_heads and j in chosen_keys and at(p)


def indices(size, beyond):
    number = st.integers(-size, size - 1 + beyond)
    ends = st.none() | st.integers(-size - 1, size + 1)
    return (
        number
        | st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, 3]))
        | st.lists(number, max_size=3)
    )


def _listed(index):
    return [index] if isinstance(index, int) else index


def _chosen(index, size):
    every = range(size)
    if index is None or isinstance(index, slice):
        return every if index is None else every[index]
    return [every[number] for number in _listed(index)]


@st.composite
def tables(draw, batch, width, entries, *, per_sequence):
    row = st.lists(entries, min_size=width, max_size=width)
    rows = draw(st.lists(row, min_size=batch, max_size=batch))
    return rows if per_sequence else rows[:1] * batch


KINDS = ("causal", "window", "prefix", "documents", "padding", "dense", "hide")
generators = st.integers(0, 2**32).map(lambda seed: torch.Generator().manual_seed(seed))


@st.composite
def masks(draw, batch, heads, queries, keys, kinds=KINDS):
    """A mask of up to three terms, to be made; its matrix (B, H, L, S); the positions (B, L)."""
    chosen = draw(st.lists(terms(batch, heads, queries, keys, kinds), max_size=3))
    offset = draw(
        st.none()
        | st.integers(-3, keys)
        | st.lists(st.integers(-3, keys), min_size=batch, max_size=batch)
    )
    first = offset if isinstance(offset, list) else [offset] * batch
    first = [keys - queries if start is None else start for start in first]

    def make():
        start = regard.Mask(offset=torch.tensor(offset) if isinstance(offset, list) else offset)
        return functools.reduce(lambda one, other: one & other, (t.make() for t in chosen), start)

    positions = torch.tensor([[start + i for i in range(queries)] for start in first])
    positions = positions.reshape(batch, queries)
    visible = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    p = first[b] + i
                    visible[b, h, i, j] = all(term.sees(b, h, i, p, j) for term in chosen)
    return make, visible, positions


@st.composite
def shifts(draw, visible, positions):
    """A mask that adds to scores, to be made, and what it adds, (B, H, L, S)."""
    _, heads, _, keys = visible.shape
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    chosen = draw(st.lists(spans(heads, keys, quarters), max_size=2))
    total = torch.zeros(visible.shape, dtype=torch.float64)
    for _, by, touches in chosen:
        for b, h, i, j in itertools.product(*map(range, visible.shape)):
            total[b, h, i, j] += by * touches(h, int(positions[b, i]), j)
    makers = [make for make, _, _ in chosen]
    return lambda: functools.reduce(operator.and_, (m() for m in makers), regard.Mask()), total


def strided(tensor, how):
    """The same numbers, laid out in memory another way."""
    if how == "transposed":  # (B, L, H, D), as a projection leaves them
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "columns":
        return tensor.mT.contiguous().mT
    if how == "gaps":
        wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), math.nan)
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    if how == "expanded":  # one entry for the whole batch
        return tensor[:1].expand(tensor.shape)
    return tensor


@st.composite
def cases(draw, *, dtypes=DTYPES, kinds=KINDS, softcap=True, lengths=(1, 2, 5, 7, 11)):
    dtype = draw(st.sampled_from(dtypes))
    batch = draw(st.sampled_from([1, 2, 3]))
    heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2), (5, 5)]))
    queries, keys = draw(st.sampled_from(lengths)), draw(st.sampled_from([1, 3, 7, 13]))
    dim, dim_value = draw(st.sampled_from([1, 3, 8, 17])), draw(st.sampled_from([1, 3, 5, 19]))
    source, size = draw(generators), draw(st.sampled_from([0.1, 1.0, 6.0]))

    def numbers(*shape):
        tensor = (size * torch.randn(*shape, generator=source)).to(dtype)
        how = draw(st.sampled_from(["plain", "transposed", "columns", "gaps", "expanded"]))
        return strided(tensor, how)

    def quarters(*shape):  # exact in every dtype: torch takes a bias in the query's only
        return torch.randint(-8, 9, shape, generator=source) / 4

    make_hidden, visible, positions = draw(masks(batch, heads, queries, keys, kinds))
    make_shifts, shift = draw(shifts(visible, positions))
    options = {}
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([-0.5, 0.0, 0.25, 1.0]))
    if softcap and draw(st.integers(0, 3)) == 0:
        options["softcap"] = draw(st.sampled_from([0.5, 2.0, 30.0]))
    if draw(st.booleans()):
        per_head = [(heads, 1, keys), (batch, 1, queries, 1), (batch, heads, queries, keys)]
        shape = draw(st.sampled_from([(queries, keys), (keys,), (), *per_head]))
        options["bias"] = quarters(*shape)
        if draw(st.booleans()):
            hidden = torch.rand(shape, generator=source) < 0.2
            options["bias"] = options["bias"].masked_fill(hidden, -torch.inf)
            visible = visible & ~hidden
    if draw(st.booleans()):
        options["alibi"] = 0.5 ** torch.arange(1, heads + 1)
    if draw(st.booleans()):
        options["sink"] = quarters(heads)
    return Case(
        query=numbers(batch, heads, queries, dim),
        key=numbers(batch, groups, keys, dim),
        value=numbers(batch, groups, keys, dim_value),
        make_mask=lambda: make_hidden() & make_shifts(),
        others=options,
        visible=visible,
        positions=positions,
        shift=shift,
    )
