"""Why a request is refused: the error, and a sentence on each form that a field must have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from regard.errors import Error

NAME = "^[A-Za-z0-9_-]+$"
PLACE = "^([0-9]{1,9}|mean)$"
RANGE = "^[0-9]{1,10},[0-9]{1,10}$"
SPANS = "^([0-9]{1,10},[0-9]{1,10}(;|$)){1,200}$"

_FORMS = {
    NAME: "must be made of letters, digits, - and _",
    PLACE: "must be a number, counted from 0, or mean",
    SPANS: "must be pairs of whole numbers, first and stop, such as 0,12;14,20, at most 200",
    RANGE: "must be two whole numbers, first and stop, such as 0,128",
}
_WORDS = {
    "union": "must have kind off or cut",
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "string": "must be text",
}
_SHOWN = 40  # characters of a refused value


class PageError(Error, ValueError):
    """A request that can't be answered, in a sentence for the reader.

    Args:
        message: the sentence.
        status: that of HTTP: 404 for what does not exist, 503 where too much waits already.

    Example:
        >>> import regard, torch
        >>> from regard.page import PageError, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(torch.randn(1, 2, 3, 4), *torch.randn(2, 1, 2, 5, 4))
        >>> try:
        ...     RecordingSubject(recording, title="three queries of five")
        ... except PageError as error:
        ...     print(str(error).partition(",")[0])
        the page shows whole sequences
    """

    def __init__(self, message: str, *, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


def describe_errors(problems: Iterable[Mapping[str, Any]]) -> str:
    """Describe the errors that pydantic found in a request, each with the name of its field."""
    return "; ".join(map(_sentence, problems))


def _sentence(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if kind == "json_invalid":
        return "the request's body is not JSON"
    name = ".".join(map(str, problem["loc"][1:]))
    if not name:  # the whole body, and none of its fields
        return "the request's body is not a JSON object; send it as application/json"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "string_unicode":
        return f"{name} is not Unicode: it has half of a pair that stands for one character"
    if kind == "extra_forbidden":
        return f"{name} is not a field of this request; leave it out"
    value = repr(problem["input"])
    value = value if len(value) <= _SHOWN else f"{value[: _SHOWN - 1]}…"
    return f"{name} is {value}, but {_wanted(kind, problem.get('ctx', {}))}"


def _wanted(kind: str, limits: Mapping[str, Any]) -> str:
    if kind == "string_pattern_mismatch":
        return _FORMS[limits["pattern"]]
    if kind == "string_too_long":
        return f"must have at most {limits['max_length']:,} characters"
    if kind == "literal_error":
        return f"must be {limits['expected']}"
    if kind == "too_long":
        return f"must have at most {limits['max_length']:,} entries"
    if kind == "too_short":
        return f"must have at least {limits['min_length']:,} entry"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "int_parsing_size":
        return "must be a number of fewer digits"
    if kind == "greater_than_equal":
        return f"must be at least {limits['ge']:,}"
    if kind == "less_than_equal":
        return f"must be at most {limits['le']:,}"
    return _WORDS.get(kind.split("_", maxsplit=1)[0], "can't be read")
