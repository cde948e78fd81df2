"""Weights of spans of a text, against controls: links between words, passages of a context."""

from regard.lens.spans.links import Link
from regard.lens.spans.passages import Passage, split_passages, token_offsets
from regard.lens.spans.weights import SpanValues, SpanWeights, link_weights, passage_weights

__all__ = [
    "Link",
    "Passage",
    "SpanValues",
    "SpanWeights",
    "link_weights",
    "passage_weights",
    "split_passages",
    "token_offsets",
]
