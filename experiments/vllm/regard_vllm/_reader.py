"""Reading inside vLLM's worker: which requests of a step ask, and where their queries and keys are.

While a request that asks is served, two functions are wrapped, of the worker's own objects: the
model runner's ``execute_model``, since `attach`, by which requests come and go; and ``forward`` of
the attention of each layer that a request names, unwrapped when the last such request ends.

Axes: H query heads, G key/value heads, n queries of a step, D head dimension.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.record import token_names
from regard_vllm._answer import AnswerError
from regard_vllm._attention import ReadableLayer, readable_layers
from regard_vllm._layer_reading import Heads, LayerReading
from regard_vllm._limits import MIB, Limits
from regard_vllm._request import AttentionRequest
from regard_vllm._request_reading import RequestReading

# vLLM appends eight random digits to a request's name, and puts the number of a choice before it
# where a request has several.
_NAME = re.compile(r"(?:(?P<choice>\d+)_)?(?P<name>.+?)(?:-[0-9a-f]{8})?")


class Reader:
    """Reads the requests of a worker that ask for it.

    Args:
        worker: vLLM's worker, with its model loaded.

    Raises:
        Error: for an engine whose attention can't be read, with the reason.
    """

    def __init__(self, worker: Any) -> None:
        self._runner = worker.model_runner
        self._configuration = worker.vllm_config
        self._limits = Limits.of(worker.vllm_config.additional_config or {})
        self._layers = readable_layers(worker)
        self._reading: dict[str, RequestReading] = {}
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._wrapped: dict[int, Any] = {}
        """Layers whose forward is wrapped, each with what its implementation had for it, if any."""
        self._runner.execute_model = partial(self._execute, self._runner.execute_model)

    def take(self, name: str, prompt: int, choice: int) -> bytes | None:
        """Hand out an answer, once; None if there is none.

        Args:
            name: the request's, as who sent it knows it.
            prompt: number of the prompt, where a request to the server has several.
            choice: number of the choice.
        """
        names = (name, f"{name}-{prompt}", f"{name}_{prompt}")
        for own in [*self._reading, *self._answers]:
            match = _NAME.fullmatch(own)
            if match and match["name"] in names and int(match["choice"] or 0) == choice:
                if own in self._reading:
                    self._finish(own)
                return self._answers.pop(own, None)
        return None

    def _execute(self, original: Any, scheduled: Any, *arguments: Any, **options: Any) -> Any:
        for name in scheduled.finished_req_ids:
            if name in self._reading:
                self._finish(name)
        for new in scheduled.scheduled_new_reqs:
            sampling = new.sampling_params
            if sampling is not None and sampling.extra_args and new.req_id not in self._reading:
                self._begin(new, sampling.extra_args)
        return original(scheduled, *arguments, **options)

    def _begin(self, new: Any, arguments: dict[str, Any]) -> None:
        try:
            request = AttentionRequest.of(arguments)
            if request is None:
                return
            self._reading[new.req_id] = self._opened(request, len(new.prompt_token_ids or ()))
        except (TypeError, ValueError, AnswerError) as error:
            self._reading[new.req_id] = RequestReading.failed(error)
        self._wrap()

    def _opened(self, request: AttentionRequest, prompt: int) -> RequestReading:
        if request.records and self._limits.recordings is None:
            raise AnswerError(
                "this engine has no folder for recordings; its owner names one: "
                'additional_config={"regard": {"recordings": "/a/folder"}}'
            )
        if len(request.spans or ()) > prompt:
            raise ValueError(f"spans has {len(request.spans or ())} labels for {prompt} tokens")
        numbers = range(len(self._layers)) if request.layers is None else request.layers
        if max(numbers) >= len(self._layers):
            raise ValueError(
                f"layers are {list(numbers)}, but the model has {len(self._layers)}, from 0"
            )
        layers = {number: self._layer_reading(request, number, prompt) for number in numbers}
        return RequestReading(request, layers, self._limits)

    def _layer_reading(self, request: AttentionRequest, number: int, prompt: int) -> LayerReading:
        layer = self._layers[number]
        return LayerReading(
            index=number,
            name=layer.name,
            scores=layer.scores(),
            heads=Heads.of(request.heads, layer.heads, layer.groups),
            readouts=request.readouts(),
            prompt=prompt,
            records=request.records,
        )

    def _finish(self, name: str) -> None:
        reading = self._reading.pop(name)
        with torch.inference_mode(mode=False), torch.no_grad():
            self._answers[name] = reading.answer(partial(self._tokens, name))
        self._wrap()
        self._make_room()

    def _make_room(self) -> None:
        kept = sum(map(len, self._answers.values()))
        while kept > self._limits.memory_mib * MIB:
            _, oldest = self._answers.popitem(last=False)
            kept -= len(oldest)

    def _tokens(self, name: str) -> list[str] | None:
        """Names of a request's tokens; None where the engine has no tokenizer."""
        model = self._configuration.model_config
        state = self._runner.requests.get(name)
        if model.skip_tokenizer_init or state is None or state.prompt_token_ids is None:
            return None
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
        ids = [*state.prompt_token_ids, *state.output_token_ids]
        return token_names(tokenizer, ids)

    # Layers

    def _wrap(self) -> None:
        """Have the attention read of the layers that requests ask for, and of no others."""
        wanted = frozenset().union(*(reading.layers for reading in self._reading.values()))
        for number in self._wrapped.keys() - wanted:
            implementation = self._layers[number].implementation
            del implementation.forward  # that of its class is left
            if (own := self._wrapped.pop(number)) is not None:
                implementation.forward = own
        for number in wanted - self._wrapped.keys():
            implementation = self._layers[number].implementation
            self._wrapped[number] = vars(implementation).get("forward")
            implementation.forward = partial(self._forward, number, implementation.forward)

    def _forward(self, number: int, original: Any, *arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        _, query, _, _, cache, metadata, *_ = arguments
        if metadata is not None:
            layer = self._layers[number]
            for name, reading in self._reading.items():
                place = self._runner.input_batch.req_id_to_index.get(name)
                if place is not None and reading.layer(number) is not None:
                    self._take(layer, reading, place, query, cache, metadata)
        return result

    def _take(
        self,
        layer: ReadableLayer,
        reading: RequestReading,
        place: int,
        query: Tensor,
        cache: Tensor,
        metadata: Any,
    ) -> None:
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                own = reading.layer(layer.number)
                assert own is not None, "a request names it"
                rows = layer.rows(place, query, cache, metadata, own.heads)
                reading.take(layer.number, *rows)
                self._require_room()
        except Exception as error:  # noqa: BLE001 - the engine serves others, whatever fails here
            reading.fail(error)

    def _require_room(self) -> None:
        sizes = (reading.answer_size + reading.kept_size for reading in self._reading.values())
        if sum(sizes) > self._limits.memory_mib * MIB:
            raise AnswerError(
                f"all that the engine reads takes more than {self._limits.memory_mib} MiB, its "
                "memory_mib; ask again later, or for less"
            )
