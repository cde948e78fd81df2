"""The definition of attention: every intermediate result, each under its own name.

Everything else is compared with this computation, which stores each L×S matrix of the definition.
In float64 it is the oracle of the tests and of `Pattern.verify`.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value. For half-precision inputs, the steps from scores to weights are computed in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from regard._captions import caption
from regard._definitions import Definitions, factor_of, marked, odds_of
from regard._display import show
from regard._shapes import Bool, Float, Int
from regard.inputs import Problem, Scoring, ScoringOptions, check
from regard.inputs.dropout import keep_mask
from regard.inputs.finite import dot_products, softcapped, weighted_sum

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Step", "Steps", "explain"]

_NAMES = (
    *("query", "key", "value", "scores", "scaled", "softcapped", "biased", "masked"),
    *("weights", "factor", "entries", "dropped", "context", "logsumexp"),
)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the computation: its name, its result and a one-line description.

    Example:
        >>> import regard, torch
        >>> step = next(iter(regard.explain(*torch.zeros(3, 5, 2), mask=regard.causal())))
        >>> step.name, step.shape
        ('query', (5, 2))
    """

    name: str
    tensor: Float[Tensor, "..."]
    meaning: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.tensor.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class Steps(Definitions):
    """Every step of one attention call, from the query to the context; made by `explain`.

    Each step is an attribute; iteration yields them as `Step`, in the order of the computation.
    Steps whose option is not set (softcapped, biased, dropped) are None and are not iterated over.
    Every readout of a `Pattern` is also a method here, defined on the full matrices.
    Printing shows tables.

    Example:
        >>> import regard, torch
        >>> x = torch.zeros(3, 1)
        >>> steps = regard.explain(x, x, x, mask=regard.causal())
        >>> steps.received()
        tensor([1.8333, 0.8333, 0.3333])
    """

    query: Float[Tensor, "*b L D"]
    key: Float[Tensor, "*#g S D"]
    value: Float[Tensor, "*#g S Dv"]
    scores: Float[Tensor, "*b L S"]
    scaled: Float[Tensor, "*b L S"]
    softcapped: Float[Tensor, "*b L S"] | None = None
    biased: Float[Tensor, "*b L S"] | None = None
    masked: Float[Tensor, "*b L S"]
    weights: Float[Tensor, "*b L S"]
    factor: Float[Tensor, "*b L S"] | None = None
    """What each weight is multiplied by, in `weighted`."""
    entries: Float[Tensor, "*b L S"] | None = None
    """What readouts reduce in place of the weights, in `weighted` and `odds`."""
    dropped: Float[Tensor, "*b L S"] | None = None
    context: Float[Tensor, "*b L Dv"]
    logsumexp: Float[Tensor, "*b L"]
    visible: Bool[Tensor, "*b L S"]
    """True if the query may see the key."""
    positions: Int[Tensor, "*b L"]
    """Position of each query among the keys."""
    scale: float
    softcap: float | None = None
    sink: Float[Tensor, "..."] | None = None
    dropout: float = 0.0

    def __iter__(self) -> Iterator[Step]:
        for name in _NAMES:
            tensor = getattr(self, name)
            if tensor is not None:
                yield Step(name, tensor, caption(name, self))

    def __repr__(self) -> str:
        lines = [f"  {s.name:<10} {s.shape!s:<18} {s.meaning}" for s in self]
        return "\n".join(["Steps(", *lines, ")"])

    def __str__(self) -> str:
        text: str = show("as_text", self)
        return text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from show("step_tables", self)

    def _repr_html_(self) -> str:
        html: str = show("steps_html", self)
        return html

    def without(
        self,
        keys: int | slice | Sequence[int] | Bool[Tensor, "*#b S"],
        *,
        sink_logit: bool = True,
    ) -> Steps:
        """Renormalize the weights over the other keys: the steps as if these were hidden."""
        if not isinstance(keys, torch.Tensor):
            keys = marked(self.weights, keys).bool()
        visible = self.visible & ~keys[..., None, :]
        masked = self.masked.masked_fill(~visible, -torch.inf)
        sink = self.sink if sink_logit else None
        weights, logsumexp = softmax(masked, sink)
        value = self.value
        if value.ndim > 2 and value.shape[-3] != weights.shape[-3]:
            value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
        context = (weights @ value.to(weights)).to(self.value)
        return replace(
            self,
            masked=masked,
            weights=weights,
            logsumexp=logsumexp,
            visible=visible,
            context=context,
            sink=sink,
            dropped=None,
        )

    def weighted(
        self,
        *,
        key: Float[Tensor, "*#b S"] | None = None,
        dot: tuple[Float[Tensor, "*b L E"], Float[Tensor, "*#g S E"]] | None = None,
    ) -> Steps:
        """Multiply each weight by a number: the steps with ``factor`` and ``entries``."""
        factor = factor_of(key, dot, self.weights)
        return replace(
            self, factor=factor, entries=torch.where(self.visible, self.matrix * factor, 0)
        )

    def odds(self) -> Steps:
        """Divide each weight by that of the other keys: the steps with these ``entries``."""
        return replace(self, entries=odds_of(self.weights))

    def plot(self, query: int = -1, tokens: Sequence[str] | None = None) -> Figure:
        """Draw how one query's context is computed: a row of bars for each step, aligned by key.

        If there are several batch entries or heads, the first is drawn, and the figure says so.

        Args:
            query: index of the query; a negative one counts from the end.
            tokens: one token for each key.

        Returns:
            A matplotlib figure, made without pyplot.

        Raises:
            IndexError: for a query out of range.
            ValueError: if there is not one token for each key, or nothing to draw.
            ImportError: if matplotlib is not installed; the extra ``plot`` installs it.
        """
        figure: Figure = show("plot_steps", self, query, tokens)
        return figure


def explain(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    **options: Unpack[ScoringOptions],
) -> Steps:
    """Compute attention step by step and keep every step.

    Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, equation 1), in the order
    scale, softcap, bias, mask, softmax, dropout, weighted sum. The arguments are those of
    `regard.attention`, which computes the same without storing the L×S matrices.

    Args:
        query: ``(B, H, L, D)``; every leading dimension is optional.
        key: ``(B, G, S, D)``, H a multiple of G.
        value: ``(B, G, S, Dv)``.
        mask: the keys that each query may see; None for all.
        scale: factor on the scores; None means 1/√D.
        softcap: cap·tanh(score/cap) after scaling.
        bias: added after the softcap, broadcastable to ``(B, H, L, S)``; −inf hides a key.
        alibi: slope of each head, ``(H,)``: −slope·|distance| is added.
        sink: a logit of each head, ``(H,)``, that takes part in the softmax and has no value.
        dropout: probability of zeroing a weight; meant for training.
        generator: source of the dropout's seed; None means torch's global generator. In the same
            state it drops the same weights here and in `regard.attention`.

    Returns:
        All steps, each with the leading dimensions of the query.

    Raises:
        ValueError: for inconsistent shapes, dtypes or devices, or numbers out of range.
        TypeError: for arguments of the wrong type.

    Example:
        >>> import regard, torch
        >>> x = torch.eye(2)
        >>> steps = regard.explain(x, x, x, mask=regard.causal(), scale=1.0)
        >>> steps.weights
        tensor([[1.0000, 0.0000],
                [0.2689, 0.7311]])
    """
    scoring = Scoring.of(options)
    problem = check(
        query, key, value, scoring, dropout=dropout, generator=generator, check_finite=True
    )
    return _steps(problem, query, key, value, sink=scoring.sink)


def explain_problem(problem: Problem) -> Steps:
    """Compute every step of an attention call that was checked already, such as a recorded one.

    Args:
        problem: one with a value.
    """
    assert problem.value is not None, "the context is a step"
    inputs = problem.query, problem.repeated(problem.key), problem.repeated(problem.value)
    query, key, value = map(problem.restore, inputs)
    return _steps(problem, query, key, value, sink=problem.sink)


def _steps(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, *, sink: Tensor | None
) -> Steps:
    results = {name: problem.restore(tensor) for name, tensor in written_out(problem)}
    rows = problem.rows
    visible = rows.visible(slice(0, problem.queries), slice(0, problem.keys))
    visible = visible.expand(*problem.heads, problem.queries, problem.keys)
    return Steps(
        query=query,
        key=key,
        value=value,
        visible=problem.restore(visible),
        positions=problem.restore(rows.spread(rows.positions)),
        scale=problem.scale,
        softcap=problem.softcap,
        sink=sink,
        dropout=problem.dropout,
        **results,
    )


def written_out(problem: Problem) -> Iterator[tuple[str, Tensor]]:
    """Yield name and result of each step after the inputs; (B, H, L, S) unless noted."""
    exact = problem.exact_dtype
    rows, columns = slice(0, problem.queries), slice(0, problem.keys)
    query, key = problem.query.to(exact), problem.repeated(problem.key).to(exact)
    visible = problem.rows.visible(rows, columns)

    scores = dot_products(query, key, check_finite=problem.check_finite)
    yield "scores", scores

    scores = scores * problem.scale
    yield "scaled", scores

    if problem.softcap is not None:
        scores = softcapped(scores, problem.softcap)
        yield "softcapped", scores

    bias = total_bias(problem, rows, columns)
    if bias is not None:
        scores = scores + bias.to(exact)
        yield "biased", scores

    scores = scores.masked_fill(~visible, -torch.inf)
    yield "masked", scores

    weights, logsumexp = softmax(scores, problem.sink)
    yield "weights", weights

    yield "logsumexp", logsumexp  # (B, H, L)

    if problem.seed is not None:
        kept = keep_mask(
            problem.seed, problem.dropout, problem.heads, rows, columns, weights.device
        )
        scaled = weights / (1 - problem.dropout) if problem.dropout < 1 else weights
        weights = torch.where(kept, scaled, 0)
        yield "dropped", weights

    if problem.value is not None:
        value = problem.repeated(problem.value).to(exact)
        context = weighted_sum(weights, value, visible, check_finite=problem.check_finite)
        yield "context", context.to(problem.value.dtype)  # (B, H, L, Dv)


def softmax(
    masked: Float[Tensor, "*b L S"], sink: Float[Tensor, "..."] | None
) -> tuple[Float[Tensor, "*b L S"], Float[Tensor, "*b L"]]:
    """Compute the weights and log-sum-exps of masked scores; 0 and −∞ in a row without keys."""
    nothing = masked.isneginf().all(-1, keepdim=True)
    logits = masked.masked_fill(nothing, 0)
    if sink is not None:
        column = sink.to(masked)[..., None, None].expand(*masked.shape[:-1], 1)
        logits = torch.cat([logits, column], -1)
    weights = torch.softmax(logits, -1)[..., : masked.shape[-1]].masked_fill(masked.isneginf(), 0)
    return weights, logits.logsumexp(-1).masked_fill(nothing[..., 0], -torch.inf)


def total_bias(problem: Problem, rows: slice, columns: slice) -> Tensor | None:
    """Compute the sum of dense bias and ALiBi for a block of scores; None if there is neither.

    ALiBi (Press et al. 2022, arXiv:2108.12409, section 3) adds −slope·distance.
    """
    bias = problem.rows.bias_block(rows, columns, problem.exact_dtype)
    if problem.alibi is None:
        return bias
    exact = problem.exact_dtype
    key = torch.arange(columns.start, columns.stop, device=problem.key.device)
    distance = (problem.rows.positions[..., rows, None] - key).abs()
    slope = problem.alibi.to(exact)[..., None, None]
    return -slope * distance if bias is None else bias.to(exact) - slope * distance


def worst_error(problem: Problem, weights: Float[Tensor, "B L S"]) -> float:
    """Compare the weights of single heads with the definition in float64.

    Returns:
        The largest absolute error; infinity if exactly one of two weights is NaN; NaN if all rows
        that see a key are NaN in both, or if there are no weights.
    """
    exact = dict(written_out(problem.cast(torch.float64)))["weights"][:, 0]
    unknown = weights.isnan() & exact.isnan()
    error = (weights.double() - exact).abs().masked_fill(unknown, 0)
    error = error.masked_fill(error.isnan(), torch.inf)
    worst = float(error.max()) if error.numel() else math.nan
    compared = exact.any(dim=-1) & ~unknown.any(dim=-1)
    return math.nan if worst == 0 and bool(unknown.any()) and not bool(compared.any()) else worst
