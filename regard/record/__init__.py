"""Recordings of the attention of models: patterns, whose weights are computed on request."""

from regard.errors import RecordError
from regard.intercept import use_in_transformers
from regard.record._read_layers import read_layers
from regard.record._read_while_running import read_while_running
from regard.record._record import record
from regard.record._recording import Recording, load
from regard.record.layer import Layer
from regard.record.readings import LayerReadings, Reading, Readings
from regard.record.token_names import token_names

__all__ = [
    "Layer",
    "LayerReadings",
    "Reading",
    "Readings",
    "RecordError",
    "Recording",
    "load",
    "read_layers",
    "read_while_running",
    "record",
    "token_names",
    "use_in_transformers",
]
