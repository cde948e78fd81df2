"""Recordings of the attention of models: patterns, whose weights are computed on request."""

from regard.errors import RecordError
from regard.intercept import use_in_transformers
from regard.record._fidelity import Fidelity, HeadFidelity, fidelity
from regard.record._files import load
from regard.record._record import record
from regard.record._recording import Recording
from regard.record.heads import Heads, HeadScores
from regard.record.layer import Layer
from regard.record.link_values import LinkValues
from regard.record.link_weights import LinkWeights
from regard.record.links import Link
from regard.record.passage_weights import PassageWeights
from regard.record.passages import Passage, split_passages, token_offsets
from regard.record.readings import LayerReadings, Reading, Readings
from regard.record.run import Run
from regard.record.token_names import token_names

__all__ = [
    "Fidelity",
    "HeadFidelity",
    "HeadScores",
    "Heads",
    "Layer",
    "LayerReadings",
    "Link",
    "LinkValues",
    "LinkWeights",
    "Passage",
    "PassageWeights",
    "Reading",
    "Readings",
    "RecordError",
    "Recording",
    "Run",
    "fidelity",
    "load",
    "record",
    "split_passages",
    "token_names",
    "token_offsets",
    "use_in_transformers",
]
