"""A model for evaluations with inspect-ai, whose log then has readouts of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.gpt import Sampling
from regard.models import LanguageModel
from regard.pattern.readout import Readout
from regard.record import read_while_running

try:
    from inspect_ai.model import GenerateConfig, Model, ModelAPI, ModelOutput, modelapi
except ModuleNotFoundError as missing:
    if missing.name != "inspect_ai":
        raise
    message = "this needs the library inspect-ai: pip install inspect-ai"
    raise ModuleNotFoundError(message, name="inspect_ai") from None

__all__ = ["reading"]

_TOKENS = 128  # of an answer, if the evaluation names no largest number
# What changes an answer, or asks for more of it.
_UNKNOWN = (
    *("stop_seqs", "num_choices", "best_of", "logprobs", "top_logprobs", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "response_schema"),
)


def reading(model: LanguageModel, *readouts: Readout[Any, Any]) -> Model:
    """Make a model for `inspect_ai.eval` that answers each sample and reads its attention.

    After an answer the model runs once more, over prompt and answer, so that the readouts are those
    of the whole text. They stand in the log, as ``sample.output.metadata["regard"]``: the tokens,
    and for each readout its axes and values as lists. A readout of each query and key of a long
    text makes a large log; take those that are small, or few layers and heads by `Mass` and such.

    Args:
        model: a language model, of `regard.models.open`.
        readouts: what is read, from `regard.readouts`.

    Raises:
        ModuleNotFoundError: where this module is imported without inspect-ai.
        ValueError: in a sample, for a conversation that the model has no template for, for tools,
            and for options that it does not know, such as strings to stop at.

    Example:
        >>> import inspect_ai, regard  # doctest: +SKIP
        >>> from regard.integrations.inspect_ai import reading  # doctest: +SKIP
        >>> opened = regard.models.open("smollm2")  # doctest: +SKIP
        >>> model = reading(opened, regard.readouts.Mass(0))  # doctest: +SKIP
        >>> inspect_ai.eval("task.py", model=model)  # doctest: +SKIP
    """
    return Model(_Reading(model, readouts), GenerateConfig())


@modelapi(name="regard")
class _Reading(ModelAPI):  # type: ignore[misc] # its class is not typed
    def __init__(self, model: LanguageModel, readouts: Sequence[Readout[Any, Any]]) -> None:
        super().__init__(model.name)
        self._model, self._readouts = model, tuple(readouts)

    async def generate(
        self,
        input: list[Any],  # noqa: A002 - inspect-ai's signature
        tools: list[Any],
        tool_choice: Any,  # noqa: ARG002 - likewise
        config: GenerateConfig,
    ) -> ModelOutput:
        """Answer a sample's messages."""
        refused = ["tools"] * bool(tools)
        refused += [name for name in _UNKNOWN if getattr(config, name, None)]
        if refused:
            raise ValueError(f"{', '.join(refused)}: this model does not know that; leave it out")
        given = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        given["seed"] = config.seed
        sampling = Sampling(**{name: one for name, one in given.items() if one is not None})
        asked = self._ids(input)
        drawn = self._model.stream(asked, tokens=config.max_tokens or _TOKENS, sampling=sampling)
        answer = [token for token in drawn if token not in self._model.ends]
        ids = [*asked, *answer]
        with torch.no_grad(), read_while_running(self._model, *self._readouts) as readings:
            self._model(torch.tensor(ids, device=self._model.device))
        output = ModelOutput.from_content(self.model_name, self._model.tokenizer.decode(answer))
        output.metadata = {"regard": {"tokens": self._model.tokenizer.tokens(ids)}}
        for name, one in readings.items():
            kept = {"axes": [*one.axes], "values": [part.tolist() for part in one.parts]}
            output.metadata["regard"][name] = kept
        return output

    def _ids(self, messages: list[Any]) -> tuple[int, ...]:
        if not self._model.is_chat:
            return self._model.read("\n".join(one.text for one in messages)).ids
        roles = [one.role for one in messages]
        if roles not in (["user"], ["system", "user"]):
            raise ValueError(f"messages must be of a user, or system and user, but are of {roles}")
        system = messages[0].text if len(messages) == 2 else None
        return self._model.read(messages[-1].text, chat=True, system=system).ids
