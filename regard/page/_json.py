"""Answers as JSON can hold them."""

from __future__ import annotations

from math import isfinite
from typing import Any

__all__ = ["for_json"]


def for_json(value: Any) -> Any:
    """Prepare an answer for JSON, which has no NaN and no infinity: None stands for them."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: for_json(entry) for name, entry in value.items()}
    return [for_json(entry) for entry in value] if isinstance(value, list) else value
