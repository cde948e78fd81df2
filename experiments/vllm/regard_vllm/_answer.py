"""The readouts of a request, as bytes that can be sent.

The bytes are those of a safetensors file, so that any language reads them; its metadata has JSON
under ``regard``: the layers, heads and rows, the axes of each tensor, the recording's folder, or
the reason why nothing could be read. A tensor is named ``layer/reading``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from regard import Error
from regard.pattern.readout import Readout
from regard.record import LayerReadings, Reading
from regard.record.readings import labelled

_FORMAT, _VERSION = "regard answer", 1


class AnswerError(Error):
    """A request was not read, or there is no answer of it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What was read of a request.

    Attributes:
        readings: by name, as of a `regard.record.Recording`: ``answer.readings["entropy"]``, with
            the axes (layer, batch, head, …), where batch is 1.
        rows: positions of the queries that were read. It begins above 0 where the first keys came
            from the prefix cache, since their queries were not computed.
        recording: folder of the recording on the engine's machine, if the request has one.
    """

    readings: Mapping[str, Reading]
    rows: range
    recording: str | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Read what an engine or a server gave.

        Raises:
            AnswerError: if the request was not read, with the reason; or for other bytes.
        """
        try:
            index, tensors = index_of(data), load(data)
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise AnswerError(f"these bytes are not an answer: {error!r}") from error
        if index["error"] is not None:
            raise AnswerError(index["error"])
        rows = range(*index["rows"])
        labels = tuple(
            {"layer": [layer], "head": index["heads"], "query": rows} for layer in index["layers"]
        )
        readings = {
            name: Reading(
                name,
                tuple(axes),
                tuple(tensors[f"{layer}/{name}"] for layer in index["layers"]),
                labels,
            )
            for name, axes in index["axes"].items()
        }
        return cls(readings=readings, rows=rows, recording=index["recording"])


def index_of(data: bytes) -> dict[str, Any]:
    """Read what an answer says beside its tensors.

    Raises:
        ValueError, KeyError, TypeError: for other bytes.
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    index: dict[str, Any] = json.loads(header["__metadata__"]["regard"])
    if (index["format"], index["version"]) != (_FORMAT, _VERSION):
        raise ValueError(f"{index['format']!r}, version {index['version']!r}")
    return index


def answer_bytes(
    readouts: Sequence[Readout[Any, Any]],
    layers: Sequence[LayerReadings],
    *,
    heads: Sequence[int],
    rows: range,
    recording: str | None,
) -> bytes:
    """Write an answer down."""
    readings = labelled(readouts, layers)
    tensors: dict[str, Tensor] = {
        f"{layer.index}/{name}": part.contiguous()
        for name, reading in readings.items()
        for layer, part in zip(layers, reading.parts, strict=True)
    }
    return _written(
        tensors,
        layers=[layer.index for layer in layers],
        heads=list(heads),
        rows=[rows.start, rows.stop],
        axes={name: list(reading.axes) for name, reading in readings.items()},
        recording=recording,
    )


def error_bytes(error: str) -> bytes:
    """Write down why a request was not read."""
    return _written({}, error=error)


def _written(tensors: dict[str, Tensor], *, error: str | None = None, **index: Any) -> bytes:
    index |= {"format": _FORMAT, "version": _VERSION, "error": error}
    return save(tensors, metadata={"regard": json.dumps(index)})
