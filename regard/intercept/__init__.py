"""Everything that sees or changes the attention calls of a model."""

from regard.intercept._blocks import Block, open_block
from regard.intercept._call import Call
from regard.intercept._change import Change, Changer
from regard.intercept._logits_to_keep import last_logits, takes_logits_to_keep
from regard.intercept._observer import (
    change_calls,
    is_observed,
    observe_calls,
    observe_contexts,
)
from regard.intercept._pending import PendingContext
from regard.intercept._recomputation import Moment, now, was_made_before
from regard.intercept._transformers import replace_attention, use_in_transformers

__all__ = [
    "Block",
    "Call",
    "Change",
    "Changer",
    "Moment",
    "PendingContext",
    "change_calls",
    "is_observed",
    "last_logits",
    "now",
    "observe_calls",
    "observe_contexts",
    "open_block",
    "replace_attention",
    "takes_logits_to_keep",
    "use_in_transformers",
    "was_made_before",
]
