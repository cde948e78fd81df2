"""Grading: runs every case, and gathers the outcomes by area into a report.

An area has *passed* if every case that the function offers has; it *differs* if one does. It is
*noted* where the definition leaves a choice, *refused* where the function raised an error, which
is no failure, and *not offered* where it has no parameter for any of its cases.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.conformance.cases import AREAS, Case, cases
from regard.conformance.judging import JUDGES, Status, Verdict
from regard.conformance.signatures import NotOfferedError, Signature, signature_of
from regard.conformance.trial import Setting, Trial

__all__ = ["Area", "Outcome", "Report", "check"]

_DROPOUT = 0.3
_WORST: tuple[Status, ...] = ("differs", "refused", "noted", "passed", "not offered")


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    Example:
        >>> from regard.conformance import Outcome
        >>> Outcome("scale", "scale 0.5", "differs", error=0.3, allowed=1e-6).status
        'differs'
    """

    area: str
    case: str
    status: Status
    """passed, noted, differs, refused or not offered."""
    words: str = ""
    """What was found, where a number is not all; the error's message, where it was refused."""
    error: float | None = None
    """The largest difference from the definition; None if nothing was subtracted."""
    allowed: float | None = None
    """The largest difference allowed."""
    snippet: str = ""
    """Lines that show a difference, to paste into an issue."""


@dataclass(frozen=True)
class Area:
    """The outcomes of one area, and what they come to.

    Example:
        >>> from regard.conformance import Area, Outcome
        >>> scale = Area("scale", [Outcome("scale", "scale 0.5", "passed")])
        >>> scale.status, scale.counted
        ('passed', {'passed': 1})
    """

    name: str
    outcomes: Sequence[Outcome]

    @property
    def status(self) -> Status:
        """The worst of its outcomes; not offered only if all are."""
        found = {outcome.status for outcome in self.outcomes}
        return next(status for status in _WORST if status in found)

    @property
    def counted(self) -> dict[str, int]:
        """How many outcomes have each status."""
        statuses = [outcome.status for outcome in self.outcomes]
        return {status: statuses.count(status) for status in _WORST if status in statuses}

    @property
    def closest(self) -> Outcome | None:
        """The outcome whose error is the largest share of what is allowed."""
        measured = [outcome for outcome in self.outcomes if outcome.allowed]
        return max(measured, key=_ratio, default=None)


def _ratio(outcome: Outcome) -> float:
    assert outcome.error is not None, "what is measured has both"
    assert outcome.allowed, "likewise"
    return outcome.error / outcome.allowed


@dataclass(frozen=True)
class Report:
    """Every area's grade, with the conditions.

    Example:
        >>> import regard.conformance
        >>> def halved(query, key, value, is_causal=False):
        ...     "Two faults: half of the result, and the mask is ignored."
        ...     return (query @ key.mT).softmax(-1) @ value / 2
        >>> report = regard.conformance.check(halved, areas=["causal", "softcap"])
        >>> report.conforms, report["causal"].status, report["softcap"].status
        (False, 'differs', 'not offered')
    """

    target: str
    """How the function was named."""
    signature: str
    """The family that it is called like."""
    dtype: str
    device: str
    versions: dict[str, str]
    """Of Python, torch, and the package that the function is in."""
    seconds: float
    areas: Sequence[Area]

    def __getitem__(self, name: str) -> Area:
        """Find an area by its name."""
        return next(area for area in self.areas if area.name == name)

    @property
    def conforms(self) -> bool:
        """True if nothing differs."""
        return all(area.status != "differs" for area in self.areas)

    @property
    def counted(self) -> dict[str, int]:
        """How many areas have each status."""
        statuses = [area.status for area in self.areas]
        return {status: statuses.count(status) for status in _WORST if status in statuses}


def check(
    function: Callable[..., Any],
    *,
    target: str = "",
    lines: Sequence[str] = (),
    signature: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    versions: dict[str, str] | None = None,
    areas: Sequence[str] = AREAS,
) -> Report:
    """Grade an attention function.

    Args:
        function: takes query, key and value, and what its signature has beyond them; a function
            that returns more than the context returns it first.
        target: how the report names the function; the default is its own name.
        lines: what makes it the name ``attend`` in a failing case.
        signature: ``torch``, ``flash``, ``flex`` or ``regard``; None to find it by the names of the
            parameters.
        dtype: that of all cases but those about precision.
        device: where the tensors are.
        versions: of packages, for the report; beside those of Python and torch.
        areas: the areas to grade.

    Returns:
        The report: a grade an area, and each failing case as lines to paste.

    Raises:
        ValueError: if the signature is of no known family, or if every case was refused.
        TypeError: if it returns no tensor.

    Example:
        >>> import regard, regard.conformance
        >>> report = regard.conformance.check(regard.attention, areas=["plain", "causal"])
        >>> [(area.name, area.status) for area in report.areas]
        [('plain', 'passed'), ('causal', 'passed')]
    """
    start = time.perf_counter()
    name = target or getattr(function, "__name__", repr(function))
    made = lines or [f"# attend = {name}"]
    setting = Setting(function, made, signature_of(function, signature), dtype, device)
    with _quietly(device):
        setting = replace(setting, signature=_with_pair(setting))
        outcomes: list[Outcome] = []
        for case in cases():
            if case.area in areas and (not outcomes or case.area != "compile" or _served(outcomes)):
                outcomes.append(_outcome(case, setting))
    if not _served(outcomes):
        first = next((o.words for o in outcomes if o.status == "refused"), "no case is offered")
        raise ValueError(
            f"{name} could not be called like {setting.signature.family}'s: {first}; name "
            "another family with --signature, or another dtype with --dtype"
        )
    graded = [Area(area, [one for one in outcomes if one.area == area]) for area in AREAS]
    return Report(
        target=name,
        signature=setting.signature.family,
        dtype=dtype,
        device=device,
        versions={"torch": torch.__version__, **(versions or {})},
        seconds=time.perf_counter() - start,
        areas=[area for area in graded if area.outcomes],
    )


def _served(outcomes: Sequence[Outcome]) -> bool:
    """Whether any case got a result: compiling a function that refuses all takes long."""
    return any(outcome.status not in {"refused", "not offered"} for outcome in outcomes)


@contextlib.contextmanager
def _quietly(device: str) -> Iterator[None]:
    """No gradients unless a judge wants them, no warnings, and torch's generators as they were."""
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=cuda):
        warnings.simplefilter("ignore")
        yield


def _with_pair(setting: Setting) -> Signature:
    """Call once, to see whether the context comes alone.

    A refusal says nothing yet: other cases may be served.
    """
    found = setting.signature
    trial = Trial(next(cases()), setting)
    try:
        got = trial.value(trial.call.expression.removesuffix(".transpose(1, 2)"))
    except Exception:  # noqa: BLE001  # whatever the function raises; the case itself will say it
        return found
    if isinstance(got, tuple | list) and got and isinstance(got[0], torch.Tensor):
        return replace(found, pair=True)
    if not isinstance(got, torch.Tensor):
        raise TypeError(f"the function must return a tensor or a tuple of them, not {got!r:.60}")
    return found


def _outcome(case: Case, setting: Setting) -> Outcome:
    try:
        verdict = _verdict(case, setting)
    except NotOfferedError as missing:
        verdict = Verdict("not offered", str(missing))
    return Outcome(case.area, case.name, **_fields(verdict))


def _verdict(case: Case, setting: Setting) -> Verdict:
    probability = _DROPOUT if case.area == "dropout" else 0.0
    trial = Trial(case, setting, probability)
    try:
        return JUDGES[case.judge](trial)
    except Exception as raised:  # noqa: BLE001  # whatever the function raises is its refusal
        text = str(raised).strip().partition("\n")[0]
        return Verdict("refused", f"{type(raised).__name__}: {text}"[:200])


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in verdict.__dataclass_fields__}
