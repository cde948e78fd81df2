"""Weights times factors: a lazy matrix of what the weights move, or do, or of their odds.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, N = B·H flattened heads, E terms
of a dot product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._arguments import check_dtype, check_tensor
from regard._definitions import factor_of, odds_of
from regard._display import show
from regard._shapes import Float, Int
from regard._tensors import Mover, flat, four_axes, per_key
from regard.backends.kernel_spec import Factors
from regard.errors import Error
from regard.inputs import Problem
from regard.pattern._operator import LinearOperator, check_operand
from regard.pattern.index import span
from regard.pattern.ordered import totals
from regard.pattern.reading import require_numbers, sizes_of, take
from regard.pattern.readout import Readout, Sizes, check_readout
from regard.pattern.readouts import Distance, Entropy, Max, MaxScore
from regard.pattern.stream import WeightBlock
from regard.steps import written_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WeightedPattern"]


class WeightedPattern(LinearOperator):
    """Weights times factors, ``(B, H, L, S)``, computed when they are read.

    Made by `Pattern.weighted` and `Pattern.odds`. Entries may be negative: `topk` ranks them by
    magnitude, an image averages them with their signs. It is indexed like a pattern, and has its
    readouts, apart from those that have no meaning for signed numbers (largest, score, distance).
    The entropy is that of each row's shares, for entries that are not negative.

    Args:
        pattern: the weights.
        factors: what they are multiplied by, in the layout of the pattern's `problem`.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 4, 7, 5).unbind()
        >>> _, pattern = regard.attention_with_pattern(query, key, value, mask=regard.causal())
        >>> moved = pattern.weighted(key=value.norm(dim=-1))
        >>> moved
        WeightedPattern(4 × 7 queries × 7 keys, float32, cpu)
        >>> moved.received().shape, moved.image(3, 3).shape
        (torch.Size([4, 7]), torch.Size([4, 3, 3]))
    """

    def __init__(self, pattern: LinearOperator, factors: Factors) -> None:
        self.pattern = pattern
        self._factors = factors

    @classmethod
    def of(cls, pattern: LinearOperator, key: Any, dot: Any) -> WeightedPattern:
        """Check factors as a user gives them; see `Pattern.weighted`."""
        return cls(pattern, _checked(pattern, key, dot))

    def weighted(self, *, key: Any = None, dot: Any = None) -> WeightedPattern:
        """Multiply each entry by further numbers; see `Pattern.weighted`.

        Raises:
            ValueError: for a factor of a kind that it has already; and as `Pattern.weighted`.
        """
        new = _checked(self.pattern, key, dot)
        for name in ("key", "dot"):
            if getattr(new, name) is not None and getattr(self._factors, name) is not None:
                raise ValueError(f"{name}: this pattern is weighted by {name} already")
        key = self._factors.key if new.key is None else new.key
        dot = self._factors.dot if new.dot is None else new.dot
        return WeightedPattern(self.pattern, replace(self._factors, key=key, dot=dot))

    @property
    def problem(self) -> Any:
        """The checked arguments of the attention, in the layout ``(B, H, L, D)``."""
        return self.pattern.problem

    @property
    def logsumexp(self) -> Float[Tensor, "*b L"]:
        """Log-sum-exp of the scores of each row, natural logarithm."""
        return self.pattern.logsumexp

    def __repr__(self) -> str:
        return f"Weighted{self.pattern!r}"

    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> WeightedPattern:
        """Restrict it to a range of queries and a range of keys, each as start and stop."""
        rows, columns = span("queries", queries, self.shape[-2]), span("keys", keys, self.shape[-1])
        factors = self._factors.mapped(lambda t: t[:, :, rows], lambda t: t[:, :, columns])
        if factors.largest is not None:
            inside = (factors.largest >= columns.start) & (factors.largest < columns.stop)
            factors = replace(
                factors, largest=torch.where(inside, factors.largest - columns.start, -1)
            )
        return WeightedPattern(self.pattern.crop(queries, keys), factors)

    def at(self, queries: Int[Tensor, " l"]) -> WeightedPattern:
        """Restrict it to the queries with these indices."""
        index = queries.to(self.device)
        factors = self._factors.mapped(lambda t: t[:, :, index], lambda t: t)
        return WeightedPattern(self.pattern.at(queries), factors)

    def to(self, device: str | torch.device) -> WeightedPattern:
        """Move it to a device, where readouts are then computed."""
        move = Mover(device)
        return WeightedPattern(self.pattern.to(device), self._factors.mapped(move, move))

    def _sub(self, pairs: Tensor) -> WeightedPattern:
        flat = pairs.flatten().to(self.device)
        factors = self._factors.select(flat, self.problem.heads[1])
        return WeightedPattern(self.pattern._sub(pairs), factors)  # noqa: SLF001 - its own room

    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts in one pass; its results are in order.

        Raises:
            TypeError: for an argument that is not a readout.
            Error: for a readout that has no meaning for signed numbers, and for the entropy of a
                row with a negative entry.
        """
        chosen: list[Readout[Any, Any]] = []
        for readout in readouts:
            check_readout(readout)
            is_largest = getattr(readout, "reduce", None) == "max"
            if isinstance(readout, (Max, MaxScore, Distance)) or is_largest:
                raise Error(
                    f"{readout!r} has no meaning for weights times factors, whose sign may be "
                    "negative; read topk(1), which ranks by magnitude, or the plain pattern"
                )
            chosen.append(_ShareEntropy() if isinstance(readout, Entropy) else readout)
        return self._read(tuple(chosen), None)

    def _read_part(
        self, readouts: tuple[Readout[Any, Any], ...], columns: slice
    ) -> tuple[Any, ...]:
        return self._read(readouts, columns)

    def _read(
        self, readouts: tuple[Readout[Any, Any], ...], columns: slice | None
    ) -> tuple[Any, ...]:
        require_numbers(self.problem)
        known = self.pattern.logsumexp.reshape(-1, self.problem.queries)
        sizes = sizes_of(self.problem)
        return take(readouts, self.problem, sizes, known, columns, factors=self._factors)

    def __matmul__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Multiply by a matrix: ``(B, H, L)``, or ``(B, H, L, N)``; x as for a `Pattern`."""
        if not isinstance(x, torch.Tensor):
            return NotImplemented
        columns = x[:, None] if x.ndim == 1 else x
        check_operand(self, x, columns, -2)
        spread = columns.expand(*self.problem.leading, *columns.shape[-2:]).to(self.dtype)
        factors = self._factors
        if factors.key is not None and factors.dot is None and factors.largest is None:
            own = self.problem.restore(factors.key.to(self.dtype))[..., None]
            product = self.pattern @ (spread * own)
        else:
            (product,) = self.read(_Product(spread.reshape(-1, *spread.shape[-2:])))
        return product[..., 0] if x.ndim == 1 else product

    def plot(self, tokens: Any = None, **options: Any) -> Figure:
        """Plot one head, or the heads of one sequence, in colours around 0; see `Pattern.plot`."""
        figure: Figure = show("plot_pattern", self, tokens, **options)
        return figure

    def verify(self, rows: int = 64) -> float:
        """Compare sampled rows of every head with the definition in float64.

        Args:
            rows: number of rows to compare in each head, evenly spaced from first to last.

        Returns:
            The largest error of an entry, relative to the largest magnitude of its head's sampled
            rows; NaN if there is nothing to compare. Entries that are not finite in both agree.

        Raises:
            ValueError: if `rows` is below 1.
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, but is {rows}")
        last, count = max(self.problem.queries - 1, 0), min(rows, self.shape[-2])
        index = torch.linspace(0, last, count, device="cpu").round().long()
        parts = [self._sub(n[None]).at(index) for n in self._pairs().flatten()]
        errors = [part._error() for part in parts]  # noqa: SLF001 - its own class
        return max((error for error in errors if not math.isnan(error)), default=math.nan)

    def _error(self) -> float:
        exact = dict(written_out(self.problem.cast(torch.float64)))["weights"]
        if self._factors.largest is not None:
            exact = odds_of(exact)
        key, dot = self._factors.key, self._factors.dot
        visible = self.problem.rows.visible(*(slice(0, n) for n in self.shape[-2:]))
        exact = torch.where(visible, exact * factor_of(key, dot, exact), 0)[:, 0]
        entries = self.dense(limit=None).double()
        same = ~exact.isfinite() & ~entries.isfinite()
        size = exact.abs().masked_fill(same, 0)
        error = (entries - exact).abs().masked_fill(same, 0)
        error = error.masked_fill(error.isnan(), torch.inf)
        return float(error.max() / size.max().clamp(min=1e-300)) if error.numel() else math.nan


def _checked(pattern: LinearOperator, key: Any, dot: Any) -> Factors:
    problem = pattern.problem
    if key is None and dot is None:
        raise ValueError("give a factor: key=, one number per key, or dot=, two tensors")
    if dot is not None and (not isinstance(dot, (tuple, list)) or len(dot) != 2):
        raise TypeError(
            f"dot must be two tensors, (B, H, L, E) and (B, G, S, E), but is a {type(dot).__name__}"
        )
    named = [("key", key)] + [(f"dot[{i}]", t) for i, t in enumerate(dot or ())]
    for name, tensor in named:
        if tensor is not None:
            check_tensor(tensor, name)
            check_dtype(tensor, name)
            if tensor.device != pattern.device:
                raise ValueError(f"{name} is on {tensor.device}, the pattern on {pattern.device}")
    factors = None
    if key is not None:
        factors = per_key(
            key.detach(), "key", problem.leading, problem.heads, problem.keys, pattern.device
        )
        factors = factors.expand(*problem.heads, -1)
    return Factors(key=factors, dot=None if dot is None else _checked_dot(problem, *dot))


def _checked_dot(
    problem: Problem, of_rows: Tensor, of_keys: Tensor
) -> tuple[Float[Tensor, "B H L E"], Float[Tensor, "B _ S E"]]:
    of_rows, of_keys = of_rows.detach(), of_keys.detach()
    leading, groups = tuple(problem.leading), problem.key.shape[1]
    each = leading[-1] if leading else 1
    is_selection = problem.heads != flat(leading)
    if is_selection:
        groups = each  # selected heads need not share their keys
    if tuple(of_rows.shape[:-1]) != (*leading, problem.queries):
        raise ValueError(
            f"dot[0] has shape {tuple(of_rows.shape)}, but the pattern's queries are "
            f"{(*leading, problem.queries)}, each with E numbers"
        )
    heads = of_keys.shape[-3] if leading and of_keys.ndim > 2 else 1
    fits = of_keys.ndim == of_rows.ndim and of_keys.shape[-1] == of_rows.shape[-1]
    fits = fits and of_keys.shape[-2] == problem.keys and heads in (groups, each)
    if not fits or of_keys.shape[:-3] != of_rows.shape[:-3]:
        named = f"{groups} or {each}" if groups != each else f"{each}"
        raise ValueError(
            f"dot[1] has shape {tuple(of_keys.shape)}, but needs {problem.keys} keys of {named} "
            f"heads, each with {of_rows.shape[-1]} numbers"
        )
    one, other = four_axes(of_rows, problem.leading), four_axes(of_keys, problem.leading)
    if is_selection:
        one, other = (t.reshape(*problem.heads, *t.shape[-2:]) for t in (one, other))
    return one, other


@dataclass(frozen=True)
class _ShareEntropy(Readout["Tensor", "Tensor"]):
    """Entropy of each row's shares, −Σ p·ln p with p = entry / sum: ``(..., L)``."""

    axes = ("query",)
    title = "entropy"

    def add(self, state: Tensor, block: WeightBlock) -> None:
        entries, logs = block.weights.double(), block.log_weights.double()
        if bool((entries < 0).any()):
            raise Error(
                "the entropy of a row with a negative entry is not defined; read topk(k) or mass, "
                "or weight the pattern by factors that are not negative"
            )
        total = totals(entries)
        mean = totals(entries * logs) / total
        entropy = torch.where(total == 0, 0, total.log() - mean)
        state[block.heads, block.rows] = entropy.clamp(min=0)


@dataclass(frozen=True, eq=False)
class _Product(Readout["Tensor", "Tensor"]):
    """A product from the right, ``entries @ columns``: ``(..., L, N)``."""

    columns: Float[Tensor, "N S n"]

    def begin(self, sizes: Sizes) -> Tensor:
        return sizes.zeros(sizes.queries, self.columns.shape[-1])

    def add(self, state: Tensor, block: WeightBlock) -> None:
        right = self.columns[block.heads, block.columns].to(block.weights)
        state[block.heads, block.rows] = (block.weights @ right).double()
