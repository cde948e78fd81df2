"""Recording a run: what a model's attention did, from its own kernels, without its weights."""

from regard.record._errors import RecordError
from regard.record._files import load
from regard.record._record import record
from regard.record._recording import Recording
from regard.record.heads import Heads, HeadScores
from regard.record.intercept.transformers import use_in_transformers
from regard.record.layer import Layer
from regard.record.readings import Labelled, Readings

__all__ = [
    "HeadScores",
    "Heads",
    "Labelled",
    "Layer",
    "Readings",
    "RecordError",
    "Recording",
    "load",
    "record",
    "use_in_transformers",
]
