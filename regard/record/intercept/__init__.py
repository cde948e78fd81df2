"""Everything that sees or changes the attention calls of a model."""

from regard.record.intercept._call import Call
from regard.record.intercept._observer import is_observed, observe_calls, require_eager
from regard.record.intercept._transformers import replace_attention, use_in_transformers

__all__ = [
    "Call",
    "is_observed",
    "observe_calls",
    "replace_attention",
    "require_eager",
    "use_in_transformers",
]
