"""The definition of every readout: a few lines of torch on the full matrices.

Patterns compute the same block by block, and kernels tile by tile. The methods have the same names
as those of `Pattern`.

Axes: H query heads, G key/value heads, L queries, S keys. Every leading dimension is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._arguments import check_choice, check_indices, chosen, tensor_of
from regard._shapes import Bool, Float, Int


class Definitions:
    """The readouts of an attention call with stored steps; formulas: docs/definitions.md."""

    key: Float[Tensor, "*#g S D"]
    scaled: Float[Tensor, "*b L S"]
    masked: Float[Tensor, "*b L S"]
    weights: Float[Tensor, "*b L S"]
    logsumexp: Float[Tensor, "*b L"]
    visible: Bool[Tensor, "*b L S"]
    """True if the query may see the key."""
    positions: Int[Tensor, "*b L"]
    """Position of each query among the keys."""
    sink: Float[Tensor, "..."] | None
    entries: Float[Tensor, "*b L S"] | None

    @property
    def back(self) -> Int[Tensor, "*b L S"]:
        """Distance from each query back to each key, in tokens; negative for later keys."""
        key = torch.arange(self.weights.shape[-1], device=self.positions.device)
        return self.positions[..., None] - key

    @property
    def matrix(self) -> Float[Tensor, "*b L S"]:
        """What is reduced: the weights, or what was put in their place."""
        return self.weights if self.entries is None else self.entries

    # Per row

    def max(self) -> Float[Tensor, "*b L"]:
        """Find the largest weight: ``(..., L)``."""
        return self.matrix.amax(-1)

    def topk(self, k: int) -> tuple[Float[Tensor, "*b L k"], Int[Tensor, "*b L k"]]:
        """Find the k largest weights and their keys; hidden keys give 0 and −1: ``(..., L, k)``."""
        sizes, keys = self.matrix.abs().masked_fill(~self.visible, -1).topk(k)
        entries = self.matrix.gather(-1, keys).masked_fill(sizes == -1, 0)
        return entries, keys.masked_fill(sizes == -1, -1)

    def max_score(self, each: Literal["query", "head"] = "query") -> Float[Tensor, "..."]:
        """Find the largest visible scaled score, per row ``(..., L)`` or per head ``(...)``."""
        check_choice("each", each, ("query", "head"))
        seen = self.scaled.masked_fill(~self.visible, -torch.inf)
        return seen.amax(-1 if each == "query" else (-2, -1))

    def entropy(self) -> Float[Tensor, "*b L"]:
        """Compute −Σ w·ln w, in nats; of entries that of their shares: ``(..., L)``."""
        if self.entries is not None:
            total = self.entries.sum(-1, keepdim=True)
            shares = self.entries / total.masked_fill(total == 0, 1)
            return -torch.special.xlogy(shares, shares).sum(-1)
        return -torch.special.xlogy(self.weights, self.weights).sum(-1)

    def distance(self) -> Float[Tensor, "*b L"]:
        """Compute Σ w·|back| / Σ w, in tokens; 0 in a fully masked row: ``(..., L)``."""
        share = self.weights.sum(-1)
        return (self.weights * self.back.abs()).sum(-1) / share.masked_fill(share == 0, 1)

    def mass(self, keys: int | slice | Sequence[int] | Tensor) -> Float[Tensor, "*b L"]:
        """Sum the weights on some keys: ``(..., L)``."""
        marks = marked(self.weights, keys)
        return (self.matrix * marks).sum(-1)

    def spans(self, labels: Sequence[int] | Int[Tensor, "S"]) -> Float[Tensor, "*b L n"]:
        """Sum the weights on the keys of each label 0 … n−1: ``(..., L, n)``."""
        span = tensor_of(labels)
        numbers = torch.arange(int(span.max()) + 1, device=span.device)
        marks = (span[:, None] == numbers).to(self.weights)
        return self.matrix[..., : len(marks)] @ marks

    def lag(self, d: int) -> tuple[Float[Tensor, "*b L"], Float[Tensor, "*b L"]]:
        """Find the weight of the key d tokens back, and its logarithm: ``(..., L)`` each."""
        at_lag = self.visible & (self.back == d)
        exact = self.masked - self.logsumexp[..., None]  # also of weights that underflow
        logs = exact if self.entries is None else self.entries.abs().log()
        logs = torch.where(at_lag, logs, -torch.inf)
        return torch.where(at_lag, self.matrix, 0).sum(-1), logs.amax(-1)

    def offsets(self, n: int) -> Float[Tensor, "*b n"]:
        """Average the weight 0 … n−1 tokens back over queries that see that key: ``(..., n)``."""
        at_lags = [self.visible & (self.back == d) for d in range(n)]
        sums = [torch.where(keys, self.matrix, 0).sum((-2, -1)) for keys in at_lags]
        counts = [keys.sum((-2, -1)).clamp_min(1) for keys in at_lags]
        return torch.stack(sums, -1) / torch.stack(counts, -1)

    # Per key

    def received(
        self,
        reduce: Literal["sum", "mean", "max"] = "sum",
        *,
        queries: int | slice | Sequence[int] | None = None,
        grouped: bool = False,
    ) -> Float[Tensor, "*b S"]:
        """Reduce each column of a head ``(..., S)`` or, if grouped, of a group ``(..., G, S)``."""
        check_choice("reduce", reduce, ("sum", "mean", "max"))
        some = chosen(check_indices("queries", queries), self.weights.shape[-2], "queries")
        of_queries = slice(None) if queries is None else sorted({*some})
        weights, visible = self.matrix[..., of_queries, :], self.visible[..., of_queries, :]
        if grouped:
            groups = self.key.shape[-3]
            weights, visible = (  # (..., G, queries of all its heads, S)
                x.unflatten(-3, (groups, -1)).flatten(-3, -2) for x in (weights, visible)
            )
        if reduce == "max":
            return pad(weights, (0, 0, 0, 1)).amax(-2)  # 0 for no queries
        return weights.sum(-2) / (visible.sum(-2).clamp_min(1) if reduce == "mean" else 1)

    # Per matrix

    def image(self, rows: int, columns: int) -> Float[Tensor, "*b r c"]:
        """Average the weights over ``rows × columns`` equal rectangles; edges may divide tokens."""
        queries, keys = self.weights.shape[-2:]
        down = _overlaps(min(rows, queries), queries).to(self.weights)
        across = _overlaps(min(columns, keys), keys).to(self.weights)
        return down @ self.matrix @ across.mT

    def blocks(
        self, rows: int, columns: int, reduce: Literal["mean", "sum", "max"] = "mean"
    ) -> Float[Tensor, "*b r c"]:
        """Reduce each block of ``rows × columns`` weights: ``(..., ⌈L/rows⌉, ⌈S/columns⌉)``."""
        check_choice("reduce", reduce, ("mean", "sum", "max"))
        choices: dict[str, Callable[..., Tensor]]
        choices = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}
        bands = [band.split(columns, -1) for band in self.matrix.split(rows, -2)]
        cells = [[choices[reduce](block, dim=(-2, -1)) for block in band] for band in bands]
        return torch.stack([torch.stack(band, -1) for band in cells], -2)

    def singular_values(self, k: int) -> Float[Tensor, "*b k"]:
        """Find the k largest singular values: ``(..., k)``."""
        return torch.linalg.svdvals(self.matrix)[..., :k]

    def mean(self) -> Float[Tensor, "*b L S"]:
        """Average the weights over the heads: ``(B, L, S)``."""
        return self.matrix.mean(-3)

    # Two matrices

    def divergence(
        self,
        other: Definitions,
        kind: Literal["kl", "js", "tv"] = "js",
        *,
        keys: Int[Tensor, "*k s"] | None = None,
    ) -> Float[Tensor, "*b L"]:
        """Compare each row with the other's; `keys` maps the other's keys to these."""
        check_choice("kind", kind, ("kl", "js", "tv"))
        p, q = _with_sink(self), _with_sink(other)
        if keys is not None:
            places = pad(keys, (0, 1), value=p.shape[-1] - 1)  # the sink is last
            places = places.expand(*q.shape[:-2], -1)[..., None, :].expand(q.shape)
            q = torch.zeros_like(p).scatter(-1, places, q)
        return divergence_of(p, q, kind)


def factor_of(
    key: Float[Tensor, "*#b S"] | None,
    dot: tuple[Float[Tensor, "*b L E"], Float[Tensor, "*#g S E"]] | None,
    weights: Float[Tensor, "*b L S"],
) -> Float[Tensor, "*b L S"]:
    """Compute a factor for each weight: a number per key · a dot product."""
    factor = torch.ones_like(weights)
    if key is not None:
        factor = factor * key[..., None, :].to(weights)
    if dot is not None:
        query, other = (tensor.to(weights) for tensor in dot)
        if query.ndim > 2 and other.shape[-3] != query.shape[-3]:
            other = other.repeat_interleave(query.shape[-3] // other.shape[-3], -3)
        factor = factor * (query @ other.mT)
    return factor


def odds_of(weights: Float[Tensor, "*b L S"]) -> Float[Tensor, "*b L S"]:
    """Compute w / (1 − w)."""
    return weights / (1 - weights)


def marked(weights: Tensor, keys: int | slice | Sequence[int] | Tensor) -> Float[Tensor, "S"]:
    marks = weights.new_zeros(weights.shape[-1])
    marks[keys] = 1
    return marks


def divergence_of(
    p: Float[Tensor, "*b L S"], q: Float[Tensor, "*b L S"], kind: Literal["kl", "js", "tv"]
) -> Float[Tensor, "*b L"]:
    """Compare rows of weights: Kullback–Leibler, Jensen–Shannon or total variation."""
    if kind == "tv":
        return (p - q).abs().sum(-1) / 2
    if kind == "kl":
        return _relative_entropy(p, q)
    middle = (p + q) / 2
    return (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2


def _relative_entropy(p: Float[Tensor, "*b L S"], q: Float[Tensor, "*b L S"]) -> Tensor:
    return torch.where(p > 0, p * (p / q).log(), 0).sum(-1)


def _with_sink(steps: Definitions) -> Float[Tensor, "*b L S+1"]:
    """Append the share of the sink logit to the weights, as one more key."""
    share = 1 - steps.weights.sum(-1, keepdim=True)
    nothing = steps.sink is None or ~steps.visible.any(-1, keepdim=True)
    return torch.cat((steps.weights, torch.where(tensor_of(nothing), 0, share)), -1)


def _overlaps(pixels: int, tokens: int) -> Float[Tensor, "p t"]:
    """Compute the overlap of each token with each pixel, as a share of the pixel."""
    edges = torch.arange(pixels + 1, dtype=torch.float64, device="cpu")[:, None] * tokens / pixels
    token = torch.arange(tokens, device="cpu")
    inside = torch.minimum(edges[1:], token + 1) - torch.maximum(edges[:-1], token)
    return inside.clamp_min(0) * pixels / tokens
