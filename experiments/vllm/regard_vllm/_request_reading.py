"""What is read of one request, over all layers that it asks for, and the answer made of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from regard.record import Recording
from regard.record.layer import Labels
from regard_vllm._answer import AnswerError, answer_bytes, error_bytes
from regard_vllm._layer_reading import LayerReading
from regard_vllm._limits import MIB, Limits
from regard_vllm._request import AttentionRequest

GetTokens = Callable[[], Sequence[str] | None]


class RequestReading:
    """Reads one request; a failure is kept for its answer, and ends its reading alone.

    Args:
        request: what it asks for.
        layers: by their numbers, those that are read.
        limits: what the engine allows.
    """

    def __init__(
        self, request: AttentionRequest, layers: Mapping[int, LayerReading], limits: Limits
    ) -> None:
        self._request = request
        self._layers = dict(layers)
        self._limits = limits
        self._error: str | None = None

    @classmethod
    def failed(cls, error: Exception) -> RequestReading:
        """Make that of a request that can't be read."""
        reading = cls(AttentionRequest(read=("entropy",)), {}, Limits())
        reading.fail(error)
        return reading

    def fail(self, error: Exception) -> None:
        """Keep the first reason why the request is not read, and nothing else."""
        self._error = self._error or f"the attention of this request was not read: {error}"
        self._layers.clear()

    def layer(self, index: int) -> LayerReading | None:
        """The reading of a layer, if that is read."""
        return self._layers.get(index)

    @property
    def layers(self) -> frozenset[int]:
        """Numbers of the layers that are still read."""
        return frozenset(self._layers)

    def take(self, index: int, query: Tensor, key: Tensor, shift: int) -> None:
        """Read a step of a layer, as `LayerReading.take` does.

        Raises:
            AnswerError: where that would be more than the limits allow.
        """
        self._layers[index].take(query, key, shift)
        limits = self._limits
        if self.answer_size > limits.answer_mib * MIB:
            raise AnswerError(
                f"its readouts take more than {limits.answer_mib} MiB, the engine's answer_mib; "
                "ask for fewer layers, heads or keys"
            )
        if self.kept_size > limits.recording_mib * MIB:
            raise AnswerError(
                f"its queries and keys take more than {limits.recording_mib} MiB, the engine's "
                "recording_mib; record fewer layers or heads"
            )

    @property
    def answer_size(self) -> int:
        """Bytes of the readouts."""
        return sum(
            len(layer.heads.query) * self._request.answer_bytes(len(layer.rows), layer.stop)
            for layer in self._layers.values()
        )

    @property
    def kept_size(self) -> int:
        """Bytes of the queries and keys for a recording."""
        return sum(layer.kept_bytes for layer in self._layers.values())

    def answer(self, get_tokens: GetTokens) -> bytes:
        """Make the answer, and write the recording; a failure is an answer too.

        Args:
            get_tokens: names of the positions, for a recording.
        """
        if self._error is None:
            try:
                return self._answer(get_tokens)
            except Exception as error:  # noqa: BLE001 - the engine serves others, whatever fails here
                self.fail(error)
        return error_bytes(self._error or "")

    def _answer(self, get_tokens: GetTokens) -> bytes:
        layers = [self._layers[index] for index in sorted(self._layers)]
        rows = layers[0].rows
        if not rows:
            raise AnswerError("no row of it was computed")
        folder = self._recorded(layers, get_tokens) if self._request.records else None
        return answer_bytes(
            self._request.readouts(),
            [layer.results() for layer in layers],
            heads=layers[0].heads.query,
            rows=rows,
            recording=folder,
        )

    def _recorded(self, layers: Sequence[LayerReading], get_tokens: GetTokens) -> str:
        assert self._limits.recordings is not None, "refused when the request came"
        parent = Path(self._limits.recordings)
        taken = sum(path.stat().st_size for path in parent.rglob("*") if path.is_file())
        if taken + self.kept_size > self._limits.recordings_mib * MIB:
            raise AnswerError(
                f"the recordings in {parent} would take more than {self._limits.recordings_mib} "
                "MiB, the engine's recordings_mib; its owner may remove some"
            )
        recorded = [layer.layer() for layer in layers]
        names = get_tokens()
        labels = Labels(None if names is None else (tuple(names)[: layers[0].stop],))
        folder = parent / secrets.token_hex(16)
        Recording(lambda: recorded, lambda: labels).save(folder)
        return str(folder)
