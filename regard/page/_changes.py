"""Changes of a model's attention, as the page states them, and effects that are measured by them.

Axes: T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, Strict
from torch import Tensor, nn

from regard.intervene import intervene
from regard.lens import LogProbability, effects
from regard.lens.spans.weights import read_passages
from regard.page._errors import PageError
from regard.page._heads import for_json

if TYPE_CHECKING:
    from regard.page._run import Run

__all__ = [
    "MOST",
    "Ablation",
    "Change",
    "Changes",
    "Fields",
    "KnockOut",
    "Number",
    "Over",
    "changed",
    "check_changes",
    "measure_effects",
    "measure_passages",
    "require_range",
]

Number = Annotated[int, Field(ge=0, le=2**31)]
Span = Annotated[tuple[Number, Number], Strict(strict=False)]  # JSON has lists, no tuples


class Fields(BaseModel):
    """Fields of a request: true and "1" are no numbers, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


MOST = 64
"""Largest number of changes of a run."""


class Ablation(Fields):
    """A head whose context is set to 0; the page calls it off."""

    kind: Literal["off"]
    layer: Number
    head: Number


class KnockOut(Fields):
    """Keys that are hidden from queries, each as first and stop; the page calls it cut."""

    kind: Literal["cut"]
    layer: Number | None = None
    """None: in all layers, and then in all heads."""
    head: Number | None = None
    """None: in all heads of the layer."""
    queries: Span | None = None
    """None: from all later ones."""
    keys: Span


Change = Ablation | KnockOut


class Changes(Fields):
    """Body of a request to change a run."""

    changes: list[Annotated[Change, Field(discriminator="kind")]] = Field(
        min_length=1, max_length=MOST
    )


def check_changes(changes: Sequence[Change], run: Run) -> None:
    """Check that all layers, heads and positions of the changes exist in a run.

    Raises:
        PageError: for the first change of which one does not.
    """
    for change in changes:
        if change.layer is None:
            if change.head is not None:
                raise PageError(f"head={change.head} of all layers is none; name its layer")
        else:
            _require("layer", change.layer, len(run.layers))
            if change.head is not None:
                _require("head", change.head, len(run.layers[change.layer].heads))
        if isinstance(change, KnockOut):
            require_range("keys", change.keys, len(run.tokens))
            if change.queries is not None:
                require_range("queries", change.queries, len(run.tokens))
            elif change.keys[1] == len(run.tokens):
                raise PageError("the last token has no later one to be cut from; give queries")


@contextmanager
def changed(model: nn.Module, changes: Sequence[Change]) -> Iterator[None]:
    """Apply distinct changes to the calls that this thread makes of a model."""
    if not changes:
        yield
        return
    with intervene(model) as change:
        for one in changes:
            if isinstance(one, Ablation):
                change.ablate(layers=one.layer, heads=one.head)
            else:
                change.knock_out(**_places(one))
        yield


def _places(cut: KnockOut) -> dict[str, Any]:
    return {
        "layers": cut.layer,
        "heads": cut.head,
        "queries": slice(*cut.queries or (cut.keys[1], None)),
        "keys": slice(*cut.keys),
    }


def _require(name: str, value: int, count: int) -> None:
    if value >= count:
        raise PageError(f"{name}={value} is none of 0 … {count - 1}")


def require_range(name: str, span: Span, length: int) -> None:
    """Check that a range is not empty and ends within a length."""
    first, stop = span
    if not first < stop <= length:
        raise PageError(f"{name}={first},{stop} is not a range within 0,{length}")


Over = Literal["heads", "keys"]

FEW = 64
"""Heads of a model that are measured at once; of more, an estimate comes first."""
LONGEST_ESTIMATED = 2048
"""Tokens of the longest text that a backward pass is run over, which keeps all activations."""
_TOGETHER = 24  # heads that are measured between two answers


class Report(Protocol):
    """Takes how much of a computation is done, and what is known by then."""

    def __call__(self, done: int, total: int, /, **known: Any) -> None:
        """Report, or raise to cancel."""


def measure_effects(
    model: nn.Module, ids: Tensor, run: Run, over: Over, progress: Report
) -> dict[str, Any]:
    """Measure the log-probability of the next token without each head, or each token.

    Of many heads an estimate comes first, to first order in one pass; then they are measured, those
    with the largest estimate first. The run caches the result.

    Args:
        model: whose run it is.
        ids: the run's tokens, ``(T,)``.
        run: a run that is not changed.
        over: what is removed, one at a time: heads, or tokens, in long texts blocks of tokens.
        progress: called with the number of runs done and of all runs, and with what is known by
            then; may raise to cancel.

    Raises:
        PageError: the run is changed.
    """
    token = _next_token(run)
    if over not in run.effects:
        target = LogProbability(token)
        heads = sum(len(layer.heads) for layer in run.layers)
        if over == "heads" and heads > FEW and len(ids) <= LONGEST_ESTIMATED:
            values, unchanged = _strongest_first(model, ids, target, progress)
            spans = None
        else:
            measured = effects(model, ids, target, over=over, progress=progress)
            values, unchanged = measured.values.tolist(), measured.unchanged
            spans = [list(place) for place in measured.places] if over == "keys" else None
        run.effects[over] = {
            "over": over,
            "token": target.token,
            "unchanged": unchanged,
            "effects": values,
            "spans": spans,
        }
    return run.effects[over]


def _strongest_first(
    model: nn.Module, ids: Tensor, target: LogProbability, progress: Report
) -> tuple[list[list[float | None]], float]:
    """Measure heads in the order of their estimated effects; return the values and the target."""
    estimated = effects(model, ids, target, method="gradient", progress=False)
    rows = {layer: row for row, layer in enumerate(estimated.labels[0])}
    values: list[list[float | None]] = [[None] * len(row) for row in estimated.values]
    places = [one.place for one in estimated.largest(len(estimated.places))]
    about = {"unchanged": estimated.unchanged, "estimates": for_json(estimated.values.tolist())}
    progress(0, len(places), **about)
    for first in range(0, len(places), _TOGETHER):
        some = places[first : first + _TOGETHER]
        known = []
        for (layer, head), value in zip(some, estimated.measure(some).tolist(), strict=True):
            values[rows[layer]][head] = value
            known.append([rows[layer], head, value])
        progress(first + len(some), len(places), measured=known)
    return values, estimated.unchanged


def measure_passages(
    model: nn.Module,
    ids: Tensor,
    run: Run,
    spans: Sequence[tuple[int, int]],
    progress: Report,
) -> dict[str, Any]:
    """Measure the log-probability of the next token with each passage hidden from what follows.

    Args:
        model: whose run it is.
        ids: the run's tokens, ``(T,)``.
        run: a run that is not changed.
        spans: the passages; what comes after the last one is the question.
        progress: as for `measure_effects`.

    Raises:
        PageError: the run is changed, or the spans are not passages of it.
    """
    token = _next_token(run)
    key = f"passages {list(spans)}"
    if key not in run.effects:
        target = LogProbability(token)
        try:
            weights = read_passages(model, ids, spans, target)
            measured = effects(
                model, ids, target, over=spans, hidden_from="question", progress=progress
            )
        except ValueError as error:
            raise PageError(str(error)) from error
        run.effects[key] = {
            "token": token,
            "unchanged": measured.unchanged,
            "effects": measured.values.tolist(),
            "without": measured.without_all,
            "weights": weights.mean[: len(spans)].tolist(),
            "spans": [list(span) for span in spans],
        }
    return run.effects[key]


def _next_token(run: Run) -> int:
    if run.before is not None or run.following is None:
        raise PageError("this run is changed; effects are those of the text as it is")
    return int(run.following[0][0])
