"""What the likeliest next token of a text rests on: its heads, and its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

import regard
from regard.explorer._errors import ExplorerError

if TYPE_CHECKING:
    from regard.explorer._run import Run

__all__ = ["Over", "measure_effects"]

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
        ExplorerError: the run is changed.
    """
    if run.before is not None or run.following is None:
        raise ExplorerError("this run is changed; effects are those of the text as it is")
    if over not in run.effects:
        target = regard.LogProbability(run.following[0][0])
        measured = regard.effects(model, ids, target, over=over, progress=progress)
        run.effects[over] = {
            "over": over,
            "token": target.token,
            "unchanged": measured.unchanged,
            "effects": measured.values.tolist(),
            "spans": [list(place) for place in measured.places] if over == "keys" else None,
        }
    return run.effects[over]
