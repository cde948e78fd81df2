"""What the likeliest next token of a text rests on: its heads, and its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from regard.lens import LogProbability, effects
from regard.lens.spans.weights import weigh_passages
from regard.page._errors import PageError

if TYPE_CHECKING:
    from regard.page._run import Run

__all__ = ["Over", "measure_effects", "measure_passages"]

Over = Literal["heads", "keys"]


def measure_effects(
    model: nn.Module, ids: Tensor, run: Run, over: Over, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure the log-probability of the next token without each head, or each token.

    What was measured once is kept in the run.

    Args:
        model: whose run it is.
        ids: the run's tokens, ``(T,)``.
        run: a run that is not changed.
        over: what is switched off one by one: heads, or tokens; of long texts, blocks of them.
        progress: called with how much is done, and of how much; what it raises ends it.

    Raises:
        PageError: the run is changed.
    """
    token = _next_token(run)
    if over not in run.effects:
        target = LogProbability(token)
        measured = effects(model, ids, target, over=over, progress=progress)
        run.effects[over] = {
            "over": over,
            "token": target.token,
            "unchanged": measured.unchanged,
            "effects": measured.values.tolist(),
            "spans": [list(place) for place in measured.places] if over == "keys" else None,
        }
    return run.effects[over]


def measure_passages(
    model: nn.Module,
    ids: Tensor,
    run: Run,
    spans: Sequence[tuple[int, int]],
    progress: Callable[[int, int], None],
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
            weights = weigh_passages(run.layers, spans, target, sinks=())
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
