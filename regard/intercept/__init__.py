"""Interception of attention calls: observing and changing them in any model."""

from regard.intercept._call import Call, PendingContext
from regard.intercept._compute import CallChange, CallChanger
from regard.intercept._observer import (
    change_calls,
    is_observed,
    observe_calls,
    observe_contexts,
)
from regard.intercept._recomputation import Moment, now, was_made_before
from regard.intercept._scopes import Scope, open_scope
from regard.intercept._transformers import replace_attention, use_in_transformers
from regard.intercept._transformers_models import last_logits, takes_logits_to_keep

__all__ = [
    "Call",
    "CallChange",
    "CallChanger",
    "Moment",
    "PendingContext",
    "Scope",
    "change_calls",
    "is_observed",
    "last_logits",
    "now",
    "observe_calls",
    "observe_contexts",
    "open_scope",
    "replace_attention",
    "takes_logits_to_keep",
    "use_in_transformers",
    "was_made_before",
]
