"""Weights of spans of a text, against controls: links between words, passages of a context."""

from regard.lens.spans.link_values import LinkValues
from regard.lens.spans.link_weights import LinkWeights, against
from regard.lens.spans.links import Link
from regard.lens.spans.passage_weights import PassageWeights, passages
from regard.lens.spans.passages import Passage, split_passages, token_offsets

__all__ = [
    "Link",
    "LinkValues",
    "LinkWeights",
    "Passage",
    "PassageWeights",
    "against",
    "passages",
    "split_passages",
    "token_offsets",
]
