"""Check an answer or a function against an exercise."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import Error
from regard_course._compare import Difference, Misfit, compare
from regard_course._exercise import Answer, Exercise, Function, Mistake, exercise

__all__ = ["Verdict", "check", "judge"]


@dataclass(frozen=True, repr=False)
class Verdict:
    """The result of a check; it shows as its text.

    Args:
        right: whether the answer is right.
        text: one line where it is right; else the first wrong number and its place, the mistake
            where it is recognised, and the hint.

    Example:
        >>> from regard_course import check
        >>> check("1.3", [6, 3, 3, 4]).right
        True
    """

    right: bool
    text: str

    def __repr__(self) -> str:
        return self.text


def check(number: str, given: Any) -> Verdict:
    """Check an exercise of the course.

    Args:
        number: of the exercise, such as ``5.5``.
        given: for an answer the number, the numbers or the choice; else the function.

    Raises:
        regard.Error: there is no such exercise, or what is given cannot be compared: another type,
            shape or dtype, or a function that fails.

    Example:
        >>> import torch
        >>> from regard_course import check
        >>> check("5.5", lambda length: torch.tril(torch.ones(length, length)).bool())
        5.5 right: causal_mask(length) gives what the reference gives in 3 cases.
        >>> check("5.5", lambda length: torch.triu(torch.ones(length, length)).bool()).right
        False
    """
    return judge(exercise(number), given)


def judge(subject: Exercise, given: Any, *, file: str | None = None) -> Verdict:
    """Check what is given for this exercise.

    Args:
        subject: the exercise.
        given: the answer, or the function.
        file: where the function comes from, to name the line that fails.

    Raises:
        regard.Error: it cannot be compared.
    """
    if isinstance(subject, Answer):
        return _judge_answer(subject, given)
    return _judge_function(subject, given, file)


def _judge_answer(subject: Answer, given: Any) -> Verdict:
    if subject.choices:
        return _judge_choice(subject, given)
    came = _numbers(subject, given)
    difference = _differs(came, subject.expected, subject.tolerance)
    if difference is None:
        return _right(subject, "")
    mistake = _first(
        subject.mistakes, lambda one: _differs(came, one.wrong, subject.tolerance) is None
    )
    place = f"{difference.place}: " if difference.place else ""
    return _wrong(subject, f"{place}{difference.came} is not it", mistake)


def _differs(came: torch.Tensor, expected: Any, tolerance: float) -> Difference | None:
    difference = compare(came, _tensor(expected), tolerance, relative=False)
    assert not isinstance(difference, Misfit), "the shapes are equal"
    return difference


def _judge_choice(subject: Answer, given: Any) -> Verdict:
    if given not in subject.choices:
        raise Error(f"{subject.number}: {given!r} is none of: {', '.join(subject.choices)}")
    if given == subject.expected:
        return _right(subject, "")
    mistake = _first(subject.mistakes, lambda one: bool(one.wrong == given))
    return _wrong(subject, given, mistake)


def _numbers(subject: Answer, given: Any) -> torch.Tensor:
    """The numbers that are given, in the shape that is expected; a table may come row by row."""
    expected = _tensor(subject.expected)
    try:
        came = _tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(given).__name__
        what = f"{kind} {given!r} cannot be read as numbers"
        raise Error(f"{subject.number}: {what}; expected {subject.expects}") from error
    if came.numel() != expected.numel():
        raise Error(
            f"{subject.number}: {came.numel()} number{'s' * (came.numel() != 1)} came; "
            f"expected {subject.expects}"
        )
    return came.reshape(expected.shape)


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach()


def _judge_function(subject: Function, given: Any, file: str | None) -> Verdict:
    if not callable(given):
        kind = type(given).__name__
        raise Error(f"{subject.name} is of type {kind}; expected a function {subject.signature}")
    cases = _seeded(subject.cases)
    came = [_outcome(given, arguments) for arguments in cases]
    differences = [
        _compare_outcomes(one, _outcome(subject.reference, arguments), subject.tolerance)
        for one, arguments in zip(came, cases, strict=True)
    ]
    if not any(differences):
        calls = f"{subject.signature} gives what the reference gives in {len(cases)} cases"
        return _right(subject, f": {calls}")

    at, difference = next((at, one) for at, one in enumerate(differences) if one is not None)
    outcome = came[at]
    raised = outcome.described(file) if isinstance(outcome, _Raised) else None
    what = f"{_call(subject, cases[at])}{raised or _described(difference)}"
    mistake = _first(subject.mistakes, lambda one: _makes(one, subject, cases, came))
    if isinstance(difference, Misfit) and mistake is None:
        raise Error(what) from getattr(came[at], "error", None)
    return _wrong(subject, what, mistake)


def _described(difference: Difference | Misfit) -> str:
    if isinstance(difference, Misfit):
        return f" {difference.came}; expected {difference.expected}"
    place = f", {difference.place}" if difference.place else ""
    return f"{place}: {difference.came}, expected {difference.expected}"


@dataclass(frozen=True)
class _Raised:
    """An error in place of a result."""

    error: BaseException

    def __str__(self) -> str:
        message = " ".join(str(self.error).split())
        return f"{type(self.error).__name__}: {message}" if message else type(self.error).__name__

    def described(self, file: str | None) -> str:
        """The error, with the last line of the file that was running."""
        lines = [
            one.lineno
            for one in traceback.extract_tb(self.error.__traceback__)
            if one.filename == file
        ]
        return f" raises {self}{f' (line {lines[-1]})' if lines else ''}"


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a function gives on a copy of the arguments, from a fixed seed; or the error."""
    try:
        return _seeded(lambda: function(*copy.deepcopy(arguments)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the learner's code raises
        return _Raised(error)


def _seeded(function: Callable[[], Any]) -> Any:
    """What a function gives from a fixed seed; the caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function()


def _compare_outcomes(came: Any, expected: Any, tolerance: float) -> Difference | Misfit | None:
    """The first difference between two results, of which either may be an error."""
    if isinstance(came, _Raised):
        if isinstance(expected, _Raised) and str(came) == str(expected):
            return None
        return Misfit(f"raises {came}", "a result")
    if isinstance(expected, _Raised):
        return Misfit("returns a result", f"{expected}")
    difference = compare(came, expected, tolerance)
    if isinstance(difference, Misfit):
        return Misfit(f"returns {difference.came}", difference.expected)
    return difference


def _makes(
    mistake: Mistake, subject: Function, cases: Sequence[tuple[Any, ...]], came: Sequence[Any]
) -> bool:
    """Whether a function with this mistake has the same outcome in every case."""
    return all(
        _compare_outcomes(one, _outcome(mistake.wrong, arguments), subject.tolerance) is None
        for one, arguments in zip(came, cases, strict=True)
    )


def _call(subject: Function, arguments: tuple[Any, ...]) -> str:
    """A call as one reads it: numbers as they are, tensors by name and shape."""
    names = inspect.signature(subject.reference).parameters
    shown = (_argument(name, one) for name, one in zip(names, arguments, strict=False))
    return f"{subject.name}({', '.join(shown)})"


def _argument(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{name} {tuple(value.shape)}"
    return repr(value) if isinstance(value, bool | int | float | str) else name


def _first(mistakes: Sequence[Mistake], holds: Callable[[Mistake], bool]) -> Mistake | None:
    return next((one for one in mistakes if holds(one)), None)


def _right(subject: Exercise, what: str) -> Verdict:
    return Verdict(right=True, text=f"{subject.number} right{what}.")


def _wrong(subject: Exercise, what: str, mistake: Mistake | None) -> Verdict:
    lines = [f"{subject.number} wrong: {what}."]
    if mistake is not None:
        lines.append(f"Mistake: {mistake.name}. {mistake.why}")
    lines.append(f"Hint: {subject.hint}")
    return Verdict(right=False, text="\n".join(lines))
