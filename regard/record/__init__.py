"""Recordings of the attention of models: patterns, whose weights are computed on request."""

from regard.errors import RecordError
from regard.intercept import use_in_transformers
from regard.record._files import load
from regard.record._record import record
from regard.record._recording import Recording
from regard.record.layer import Layer
from regard.record.readings import LayerReadings, Reading, Readings
from regard.record.run import Run
from regard.record.token_names import token_names

__all__ = [
    "Layer",
    "LayerReadings",
    "Reading",
    "Readings",
    "RecordError",
    "Recording",
    "Run",
    "load",
    "record",
    "token_names",
    "use_in_transformers",
]
