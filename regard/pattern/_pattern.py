"""Attention weights as a lazy matrix: nothing of size L·S is stored, and every entry is exact.

A weight is ``exp(score − logsumexp)``, with one log-sum-exp per row. A `Pattern` stores query, key
and log-sum-exps, O(L·D), and recomputes the weights that are read.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension. Every leading
dimension is optional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor

from regard._arguments import check_indices, chosen
from regard._contexts import is_concrete
from regard._display import show
from regard._shapes import Bool, Float, Int
from regard._tensors import Mover, per_key, version
from regard.backends.kernel_spec import Divergence, Factors
from regard.inputs import Problem, Scoring, ScoringOptions, check
from regard.masks.spans import Spans
from regard.pattern._operator import LinearOperator
from regard.pattern.divergence import divergence
from regard.pattern.index import span
from regard.pattern.internal_readouts import LogSumExp
from regard.pattern.mean import MeanPattern
from regard.pattern.reading import refined, require_numbers, sizes_of, take
from regard.pattern.readout import Readout, check_readout
from regard.pattern.weighted import WeightedPattern
from regard.steps import worst_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Pattern"]


class Pattern(LinearOperator):
    """All weights of an attention, shape ``(B, H, L, S)``, computed when they are read.

    Indexing batch and heads alone gives a smaller pattern; an index of queries or keys gives exact
    weights, as a tensor. It is a linear operator: ``pattern @ x`` and ``y @ pattern`` are exact and
    do not materialize it. It is detached from the autograd graph and ignores dropout. Query and key
    are not copied: the pattern follows in-place changes to them. Make a new pattern after changes
    that torch does not count: in inference mode, or through ``.data`` or NumPy.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``, H a multiple of G.
        mask, scale, softcap, bias, alibi, sink: as for `attention`.
        logsumexp: of each row, ``(B, H, L)``, natural logarithm, if it is known from the forward
            pass; else it is computed when it is first needed.

    Raises:
        ValueError: if shapes, dtypes, devices or numbers do not fit together; when it is read, if
            its tensors were changed and a `logsumexp` was given with them.
        TypeError: for arguments of another type.

    Example:
        >>> import regard, torch
        >>> x = torch.eye(3)
        >>> pattern = regard.Pattern(x, x, mask=regard.causal(), scale=1.0)
        >>> pattern
        Pattern(3 queries × 3 keys, float32, cpu)
        >>> pattern[1]
        tensor([0.2689, 0.7311, 0.0000])
        >>> pattern.entropy()
        tensor([0.0000, 0.5822, 0.9753])
    """

    def __init__(
        self,
        query: Float[Tensor, "*b L D"],
        key: Float[Tensor, "*g S D"],
        *,
        logsumexp: Float[Tensor, "*b L"] | None = None,
        **options: Unpack[ScoringOptions],
    ) -> None:
        problem = check(query, key, scoring=Scoring.of(options))
        if logsumexp is not None and logsumexp.shape != query.shape[:-1]:
            raise ValueError(
                f"logsumexp has shape {tuple(logsumexp.shape)}, but the query has one row for each "
                f"of {tuple(query.shape[:-1])}"
            )
        self._keep(problem, logsumexp)

    @classmethod
    def of(
        cls, problem: Problem, known: Tensor | None, *, by_library: bool = False, given: bool = True
    ) -> Pattern:
        """Make a pattern of checked arguments.

        Args:
            problem: the checked arguments.
            known: log-sum-exps ``(N, L)``, or None.
            by_library: whether a library's kernel computed them, so that they may need refinement.
            given: whether they come from outside and so can't be recomputed from the arguments.
        """
        pattern = cls.__new__(cls)
        pattern._keep(problem, known, given=given)  # noqa: SLF001 - its own class
        pattern._unrefined = by_library and known is not None and is_concrete(known)  # noqa: SLF001 - its own class
        if pattern._unrefined and not problem.query.is_cuda:  # noqa: SLF001 - a GPU computes it only where it is read
            pattern._row_logsumexp()  # noqa: SLF001 - its own class
        return pattern

    def _keep(self, problem: Problem, logsumexp: Tensor | None, *, given: bool = True) -> None:
        self._problem = problem.detached()
        self._writes, self._given = _Writes.of(self._problem), given and logsumexp is not None
        shape = torch.Size(problem.heads).numel(), problem.queries
        self._logsumexp = None if logsumexp is None else logsumexp.detach().reshape(shape)
        self._unrefined = False

    @property
    def problem(self) -> Problem:
        """The checked arguments of the attention, in the layout ``(B, H, L, D)``."""
        return self._problem

    @property
    def is_causal(self) -> bool:
        """Whether L = S and query i sees exactly keys 0 … i."""
        return self._problem.rows.is_lower_triangular

    @property
    def has_logsumexp(self) -> bool:
        """Whether the log-sum-exps are known, so that a weight takes only its own score."""
        now = _Writes.of(self._problem)
        if self._writes.are_fewer(now, given=self._given):
            self._logsumexp, self._unrefined = None, False
        if now.count is not None:
            self._writes = now
        return self._logsumexp is not None

    @property
    def logsumexp(self) -> Float[Tensor, "*b L"]:
        """Log-sum-exp of each row of masked scores and sink, ``(B, H, L)``; −inf without keys."""
        return self._row_logsumexp().reshape(self.shape[:-1])

    def __repr__(self) -> str:
        *leading, queries, keys = self.shape
        prefix = " × ".join(map(str, leading)) + " × " if leading else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Pattern({prefix}{queries} queries × {keys} keys, {dtype}, {self.device})"

    def mean(self) -> MeanPattern:
        """Average the weights over heads: the mean pattern ``(B, L, S)``, with its own readouts.

        Its entropy is at least the mean of the heads' entropies, and larger where heads attend to
        different keys.

        Raises:
            ValueError: if there is no axis of heads.

        Example:
            >>> import regard, torch
            >>> pattern = regard.Pattern(*torch.randn(2, 3, 4, 7, 5), mask=regard.causal())
            >>> pattern.mean().entropy().shape
            torch.Size([3, 7])
        """
        if self.ndim < 3:
            raise ValueError(f"{self!r} has no axis of heads to average over")
        return MeanPattern([self[..., head, :, :] for head in range(self.shape[-3])])

    def without(
        self,
        keys: int | slice | Sequence[int] | Bool[Tensor, "*#b S"],
        *,
        sink_logit: bool = True,
    ) -> Pattern:
        """Renormalize the weights over the other keys, as if these were hidden: a new pattern.

        A head that rests on a sink key shows beside it what it looks at: the weight of a key is
        ``exp(score − log-sum-exp over the other keys)``, exact however little is left for them. A
        row that sees no other key is 0.

        Args:
            keys: an index, a slice or indices, the same in all heads; or booleans, True for the
                keys to leave out, ``(S,)``, ``(H, S)`` or ``(B, H, S)``.
            sink_logit: whether a sink logit stays in the denominator.

        Raises:
            IndexError: for a key that does not exist.
            TypeError: for another type.
            ValueError: for booleans of another shape.

        Example:
            >>> import regard, torch
            >>> query, key = torch.ones(1, 1), torch.tensor([[9.0], [0.0], [0.0]])
            >>> pattern = regard.Pattern(query, key, scale=1.0)
            >>> pattern[0].round(decimals=4), pattern.without(0)[0]
            (tensor([9.9980e-01, 1.0000e-04, 1.0000e-04]), tensor([0.0000, 0.5000, 0.5000]))
        """
        problem = self._problem
        if isinstance(keys, torch.Tensor):
            if keys.dtype != torch.bool:
                raise TypeError(f"keys must hold booleans, but is {keys.dtype}; list the indices")
            left_out = per_key(
                keys, "keys", problem.leading, problem.heads, problem.keys, self.device
            )
        else:
            index = list(chosen(check_indices("keys", keys), problem.keys, "keys"))
            left_out = torch.zeros(1, 1, problem.keys, dtype=torch.bool, device=self.device)
            left_out[..., index] = True
        rows, sink = problem.rows.hiding(left_out), problem.sink if sink_logit else None
        return Pattern.of(replace(problem, rows=rows, sink=sink), None)

    def weighted(
        self,
        *,
        key: Float[Tensor, "*#b S"] | None = None,
        dot: tuple[Float[Tensor, "*b L E"], Float[Tensor, "*#g S E"]] | None = None,
    ) -> WeightedPattern:
        """Multiply each weight by a number: what it moves, in place of where it looks.

        Norms of values times W_O as ``key`` give norm-based attention (Kobayashi et al. 2020,
        arXiv:2004.10102, equation 4); the gradient of a context and the values as ``dot`` what
        each weight does to a number, to first order.

        Args:
            key: a factor for each key: ``(S,)``, ``(H, S)`` or ``(B, H, S)``.
            dot: a factor for each query and key, the dot product of two tensors: ``(B, H, L, E)``
                and ``(B, G, S, E)``, with G heads like the keys or H.

        Returns:
            A lazy matrix ``(B, H, L, S)`` of entries weight · key · ⟨dot[0], dot[1]⟩, which may be
            negative. Nothing of its size is stored.

        Raises:
            ValueError: for no factor, or shapes that do not fit.
            TypeError: for anything but floating-point tensors.

        Example:
            >>> import regard, torch
            >>> x = torch.zeros(3, 1)
            >>> pattern = regard.Pattern(x, x, mask=regard.causal())
            >>> moved = pattern.weighted(key=torch.tensor([0.1, -2.0, 1.0]))
            >>> moved[2]
            tensor([ 0.0333, -0.6667,  0.3333])
            >>> moved.topk(1).positions[2]
            tensor([1])
        """
        return WeightedPattern.of(self, key, dot)

    def odds(self) -> WeightedPattern:
        """Divide each weight α by the weight of the other keys: α/(1 − α), ``(B, H, L, S)``.

        Without key j, the context of row i is o + odds_ij · (o − v_j): what knocking out a link
        changes. Near α = 1 the entry is exp(score − log-sum-exp of the other keys), which loses no
        digits; it is infinite if there is no other key and no sink logit.

        Example:
            >>> import regard, torch
            >>> query, key = torch.ones(1, 1), torch.tensor([[20.0], [0.0], [0.0]])
            >>> regard.Pattern(query, key, scale=1.0).odds()[0, 0].log()  # 20 − ln 2
            tensor(19.3069)
        """
        top = self.topk(1)
        largest, weight = top.positions[..., 0], top.weights[..., 0]
        flat = largest.reshape(*self._problem.heads, self._problem.queries)
        start, stop = flat.clamp(min=0), flat + 1  # of a row without keys both are 0
        hides = torch.full((1,), -torch.inf, dtype=torch.float64, device="cpu")
        rows = self._problem.rows.with_spans(Spans(start[None], stop[None], hides))
        others = Pattern.of(replace(self._problem, rows=rows), None).logsumexp.reshape(flat.shape)
        if self._problem.sink is not None:  # the rest of a row that sees no other key
            sink = self._problem.sink.to(others)[..., None].expand_as(others)
            others = torch.where(others == -torch.inf, sink, others)
        score = (weight.log() + self.logsumexp).reshape(flat.shape)
        return WeightedPattern(self, Factors(largest=flat, odds=(score - others).exp()))

    def divergence(
        self, other: Pattern, kind: Divergence = "js", *, keys: Int[Tensor, "*k s"] | None = None
    ) -> Float[Tensor, "*b L"]:
        """Compute the divergence of each row p from row q of another pattern: ``(B, H, L)``.

        ``"kl"`` is the KL divergence Σ p·ln(p/q) in nats, infinite if p > 0 where q = 0 (Kullback
        and Leibler 1951); ``"js"`` the Jensen–Shannon divergence, at most ln 2 (Lin 1991); ``"tv"``
        the total variation distance Σ|p − q|/2. A sink counts as one more key. Memory is that of a
        few rows.

        Args:
            other: a pattern of the same heads and queries, such as one with quantised keys.
            kind: which of the three.
            keys: indices of the other's keys among this pattern's, ``(s,)`` or ``(B, H, s)``, if
                some were evicted; q is 0 for the evicted keys. None: both have the same keys.

        Raises:
            ValueError: if the patterns or keys do not fit together.
            TypeError: for keys that are not integers.

        Example:
            >>> import regard, torch
            >>> query, key = torch.randn(2, 5, 7, 3).unbind()
            >>> kept = torch.tensor([0, 4, 5, 6])
            >>> pattern, evicted = regard.Pattern(query, key), regard.Pattern(query, key[:, kept])
            >>> lost = 1 - pattern.mass(kept)
            >>> far = pattern.divergence(evicted, "tv", keys=kept)
            >>> torch.testing.assert_close(far, lost)
        """
        if not isinstance(other, Pattern):
            raise TypeError(f"other must be a regard.Pattern, but is {type(other).__name__}")
        one, two = ((p.problem, p._row_logsumexp()) for p in (self, other))  # noqa: SLF001 - its own class
        return divergence(one, two, kind, keys)

    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> Pattern:
        """Restrict it to a range of queries and a range of keys, without renormalizing its rows.

        Args:
            queries: start and stop; None for all.
            keys: start and stop; None for all.

        Raises:
            ValueError: for a range that is empty or not within the pattern.
        """
        rows, columns = span("queries", queries, self.shape[-2]), span("keys", keys, self.shape[-1])
        if keys is not None:
            self._row_logsumexp()  # of whole rows, which the part cannot compute
        return self._part(self._problem.crop(rows, columns), lambda known: known[:, rows])

    def at(self, queries: Int[Tensor, " l"]) -> Pattern:
        """Restrict it to the queries with these indices."""
        if queries.numel() == self._problem.queries and bool((queries.diff() == 1).all()):
            return self
        index = queries.to(self.device)
        return self._part(self._problem.at(index), lambda known: known[:, index])

    def to(self, device: str | torch.device) -> Pattern:
        """Move query, key, mask and log-sum-exps to a device, where readouts are then computed.

        Args:
            device: such as ``"cpu"`` or ``"cuda"``.

        Returns:
            A pattern on that device; this object itself if it is there already.

        Example:
            >>> import regard, torch
            >>> pattern = regard.Pattern(*torch.randn(2, 5, 7), mask=regard.causal())
            >>> pattern.to("cpu") is pattern
            True
        """
        return self.moved(Mover(device))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Pattern:
        """Move it by a function that moves a tensor, which patterns may share; see `Mover`."""
        if move(self._problem.query) is self._problem.query:
            return self
        return self._part(self._problem.to(move), move)

    def _part(self, problem: Problem, pick: Callable[[Tensor], Tensor]) -> Pattern:
        """Make the pattern of a part, with its log-sum-exps if they are known."""
        known = pick(self._row_logsumexp()) if self.has_logsumexp else None
        return Pattern.of(problem, known, given=self._given or problem.keys < self._problem.keys)

    def _sub(self, pairs: Tensor) -> Pattern:
        return self._part(self._problem.select(pairs), lambda known: known[pairs.flatten()])

    # Readouts

    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts in one pass over the pattern.

        Memory beyond the pattern and the results is a block of a few MiB; of a few hundred MiB on a
        GPU where torch computes instead of Triton.

        Args:
            readouts: see `regard.readouts`.

        Returns:
            The result of each readout, in order.

        Raises:
            TypeError: for an argument that is not a readout.

        Example:
            >>> import regard, torch
            >>> from regard.pattern.readouts import Entropy, TopK
            >>> x = torch.eye(3)
            >>> top, entropy = regard.Pattern(x, x).read(TopK(1), Entropy())
            >>> top.positions.T
            tensor([[0, 1, 2]])
        """
        for readout in readouts:
            check_readout(readout)
        if self.has_logsumexp:
            self._row_logsumexp()
            return self._read(readouts, None)
        *results, self._logsumexp = self._read((*readouts, LogSumExp()), None)
        return tuple(results)

    def _read(
        self, readouts: tuple[Readout[Any, Any], ...], columns: slice | None
    ) -> tuple[Any, ...]:
        require_numbers(self._problem)
        return take(readouts, self._problem, sizes_of(self._problem), self._logsumexp, columns)

    def _read_part(
        self, readouts: tuple[Readout[Any, Any], ...], columns: slice
    ) -> tuple[Any, ...]:
        self._row_logsumexp()
        return self._read(readouts, columns)

    def plot(
        self,
        tokens: Sequence[str] | None = None,
        *,
        scale: Literal["log", "linear"] | None = None,
        rows: int | None = None,
        columns: int | None = None,
        queries: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Plot one head, or the heads of one sequence; for arguments see `view.plot.plot_pattern`.

        Raises:
            ImportError: without matplotlib, which the extra ``plot`` installs.
        """
        shown = {"rows": rows, "columns": columns, "queries": queries, "keys": keys}
        options = {"scale": scale, "figsize": figsize, "ax": ax}
        figure: Figure = show("plot_pattern", self, tokens, **options, **shown)
        return figure

    def _repr_html_(self) -> str:
        html: str = show("pattern_html", self)
        return html

    def _row_logsumexp(self) -> Tensor:
        if not self.has_logsumexp:
            self.read()
        assert self._logsumexp is not None, "read() computes it"
        if self._unrefined:
            self._unrefined = False
            self._logsumexp = refined(self._problem, self._logsumexp)
        return self._logsumexp

    def verify(self, rows: int = 64) -> float:
        """Compare sampled rows of every head with the written-out computation in float64.

        Args:
            rows: number of rows to compare in each head, evenly spaced from first to last.

        Returns:
            The largest absolute error of a weight; infinity if only one of the two is NaN. NaN if
            there is nothing to compare: no rows, no keys, or NaN in both everywhere.

        Raises:
            ValueError: if `rows` is below 1.

        Example:
            >>> import regard, torch
            >>> query, key = torch.randn(2, 31, 17).unbind()
            >>> regard.Pattern(query, key, mask=regard.causal()).verify() < 1e-5
            True
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, but is {rows}")
        self._row_logsumexp()
        last, count = max(self._problem.queries - 1, 0), min(rows, self.shape[-2])
        index = torch.linspace(0, last, count, device="cpu")
        parts = [self._sub(n[None]).at(index.round().long()) for n in self._pairs().flatten()]
        errors = [worst_error(p._problem, p.dense(limit=None)) for p in parts]  # noqa: SLF001 - likewise
        return max((error for error in errors if not math.isnan(error)), default=math.nan)


@dataclass(frozen=True)
class _Writes:
    """Version counters of a pattern's tensors, which tell whether its log-sum-exps are stale.

    They are None for copies and in a compiled graph.
    """

    count: tuple[int, ...] | None

    @classmethod
    def of(cls, problem: Problem) -> _Writes:
        """Read the current counters."""
        if torch.compiler.is_compiling():
            return cls(None)
        rows = problem.rows
        tensors = (problem.query, problem.key, rows.allowed, rows.bias, problem.alibi, problem.sink)
        return cls(tuple(version(tensor) for tensor in tensors if tensor is not None))

    def are_fewer(self, now: _Writes, *, given: bool) -> bool:
        """Whether the tensors were written to between these counters and later ones.

        Args:
            now: the later counters.
            given: whether the caller gave the log-sum-exps: they may be those of longer rows and
                can't be recomputed.

        Raises:
            ValueError: if they were, and the log-sum-exps were given.
        """
        if self == now or self.count is None or now.count is None:
            return False
        if given:
            raise ValueError(
                "query, key or mask were written to after the pattern was made, but the "
                "log-sum-exps that were given with them are those from before; make the pattern "
                "anew, or of copies"
            )
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> _Writes:
        return _Writes(None)

    def __reduce__(self) -> tuple[type[_Writes], tuple[None]]:
        return _Writes, (None,)
