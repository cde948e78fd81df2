"""Which stages the reader's own file has, which grows from page to page, and which are right."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from regard.errors import Error
from regard_course import _mine_attention, _mine_gpt
from regard_course._stage import Names, Stage, StageError

__all__ = ["STAGES", "Result", "check_stages"]

STAGES: Sequence[Stage] = (*_mine_attention.STAGES, *_mine_gpt.STAGES)


@dataclass(frozen=True)
class Result:
    """What is to be said of a stage.

    Args:
        page: where it is written.
        name: what is written.
        state: "waiting" is one behind another that is wrong.
        what: of a wrong one, what came and where.
        why: of a wrong one, the mistake where it is recognised.

    Example:
        >>> from regard_course import Result
        >>> Result("1", "causal_averages(x)", "right").state
        'right'
    """

    page: str
    name: str
    state: Literal["right", "wrong", "missing", "waiting"]
    what: str = ""
    why: str = ""


def check_stages(names: Names, file: str = "mine.py") -> list[Result]:
    """Check the stages that a file has, in the order of the pages.

    The later ones rest on those before, so the first that is wrong is the last that is checked.

    Args:
        names: what the file defines.
        file: its path, to name the line that fails.

    Raises:
        regard.Error: it has none.
    """
    results = list(_results(names, file))
    if all(one.state == "missing" for one in results):
        raise Error(
            f"{file} has nothing of the file that the course builds; it begins on page 1 with "
            "causal_averages(x)"
        )
    return results


def _results(names: Names, file: str) -> Iterator[Result]:
    is_wrong = False
    for stage in STAGES:
        if not stage.is_there(names):
            yield Result(stage.page, stage.name, "missing")
        elif is_wrong:
            yield Result(stage.page, stage.name, "waiting")
        else:
            result = _result(stage, names, file)
            is_wrong = result.state == "wrong"
            yield result


def _result(stage: Stage, names: Names, file: str) -> Result:
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            stage.check(names)
    except StageError as wrong:
        return Result(stage.page, stage.name, "wrong", wrong.what, wrong.why)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the reader's code raises
        lines = [
            one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file
        ]
        where = f" in line {lines[-1]}" if lines else ""
        message = " ".join(str(error).split())
        what = f"it raises {type(error).__name__}{where}: {message}"
        return Result(stage.page, stage.name, "wrong", what)
    return Result(stage.page, stage.name, "right")
