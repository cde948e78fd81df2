"""Two texts that differ in a word: which heads carry what that changes of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.lens import Logit, LogProbability, patch
from regard.page._errors import PageError
from regard.page._heads import for_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.page._changes import Report
    from regard.page._run import Run

__all__ = ["measure_patches"]


def measure_patches(
    model: nn.Module, ids: tuple[Tensor, Tensor], runs: tuple[Run, Run], progress: Report
) -> dict[str, Any]:
    """Put each head's context of another run into a run, and measure what becomes of the answer.

    The number is the logit of the other run's likeliest next token − that of this run's; where both
    are one token, its log-probability. The run caches the result.

    Args:
        model: whose runs they are.
        ids: the tokens of the run and of the other, each ``(T,)``.
        runs: the run and the other, neither of them changed.
        progress: called with the number of heads done and of all heads; may raise to cancel.

    Returns:
        ``answers``: both tokens, of the run and of the other; ``unchanged`` and ``other``: the
        number of each; ``values``: the number with a head patched − ``unchanged``, by layer.

    Raises:
        PageError: one of the runs is changed, has no next token, or is of another length.
    """
    now, then = (_answer(run) for run in runs)
    lengths = [len(one) for one in ids]
    if lengths[0] != lengths[1]:
        raise PageError(
            f"patching needs equal positions; one text has {lengths[0]} tokens, the other "
            f"{lengths[1]}"
        )
    run, other = runs
    key = f"patched {other.id}"
    if key not in run.effects:
        target = LogProbability(now) if now == then else _lead(then, now)
        patched = patch(model, ids[1], ids[0], target, progress=progress)
        run.effects[key] = {
            "answers": [now, then],
            "unchanged": patched.unchanged,
            "other": patched.other,
            "values": for_json(patched.values.tolist()),
        }
    return run.effects[key]


def _answer(run: Run) -> int:
    if run.before is not None or run.following is None:
        raise PageError("a run with changes, or without a next token, is not patched")
    return run.following[0][0]


def _lead(token: int, over: int) -> Callable[[Any], Tensor]:
    """Return a target: the logit of a token − that of another, after the last token."""

    def lead(output: Any) -> Tensor:
        return Logit(token)(output) - Logit(over)(output)

    return lead
