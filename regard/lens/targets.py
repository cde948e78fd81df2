"""Targets: the number that effects are measured on, and the queries that predict it.

Axes: B batch, T tokens, A tokens of an answer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._arguments import check_indices, check_whole, chosen, tensor_of
from regard._modules import module_of
from regard._shapes import Float, Int
from regard.intercept import last_logits, takes_logits_to_keep
from regard.record import token_names


@dataclass(frozen=True)
class _TokenTarget:
    """A number of one token at one position."""

    token: int
    position: int = -1
    _name: ClassVar[str]

    def __post_init__(self) -> None:
        check_whole(self.token, "token")
        check_whole(self.position, "position")
        if self.token < 0:
            raise ValueError(f"token must be an id from 0, but is {self.token}")

    def __str__(self) -> str:
        return self.named(f"token {self.token}")

    def named(self, token: str) -> str:
        """Describe the target with the token's name."""
        return f"{self._name} of {token} at position {self.position}"

    def queries(self, length: int) -> tuple[int, int]:
        """Return start and stop of the query that predicts the token, in a text of a length."""
        (query,) = chosen(check_indices("position", self.position), length, "position")
        return query, query + 1

    def _logits(self, output: Any) -> Float[Tensor, "B V"]:
        logits = _logits(output)
        tokens, vocabulary = logits.shape[1:]
        if not -tokens <= self.position < tokens:
            raise ValueError(
                f"target: position is {self.position}, but the output has {tokens} tokens"
            )
        if self.token >= vocabulary:
            raise ValueError(
                f"target: token is {self.token}, but the vocabulary ends at {vocabulary - 1}"
            )
        return logits[:, self.position]


class LogProbability(_TokenTarget):
    """Log-probability of a token, in nats.

    Args:
        token: the token's id.
        position: the position of the query that predicts it; negative from the end.

    Example:
        >>> import regard, torch
        >>> target = regard.lens.LogProbability(2)
        >>> print(target)
        log-probability of token 2 at position -1
        >>> target(torch.zeros(1, 3, 4)).exp()
        tensor([0.2500], dtype=torch.float64)
    """

    _name = "log-probability"

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        """Read it from what a model returned."""
        return self._logits(output).double().log_softmax(dim=-1)[:, self.token]


class Logit(_TokenTarget):
    """Logit of a token.

    Args:
        token: the token's id.
        position: the position of the query that predicts it; negative from the end.

    Example:
        >>> import regard, torch
        >>> regard.lens.Logit(2, position=0)(torch.arange(12.0).view(1, 3, 4))
        tensor([2.], dtype=torch.float64)
    """

    _name = "logit"

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        """Read it from what a model returned."""
        return self._logits(output)[:, self.token].double()


@dataclass(frozen=True)
class Answer:
    """Log-probability of an answer that ends a text: the sum over its tokens, in nats.

    Attributes:
        tokens: the answer's tokens in the text, such as ``slice(-4, None)``.

    Example:
        >>> import regard
        >>> answer = regard.lens.Answer(slice(-2, None))
        >>> answer.queries(9)  # the query before each token predicts it
        (6, 8)
    """

    tokens: slice

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, slice):
            raise TypeError(
                f"tokens must be a slice of the text's tokens, such as slice(40, 44), but is "
                f"{self.tokens!r}"
            )

    def __str__(self) -> str:
        first, stop = ("" if end is None else end for end in (self.tokens.start, self.tokens.stop))
        return f"log-probability of tokens {first}:{stop}"

    def queries(self, length: int) -> tuple[int, int]:
        """Return start and stop of the queries that predict the answer.

        Raises:
            ValueError: for an answer without tokens after the text's first one.
        """
        numbers = chosen(check_indices("tokens", self.tokens), length, "tokens")
        if not numbers or numbers[0] < 1 or numbers != tuple(range(numbers[0], numbers[-1] + 1)):
            raise ValueError(
                f"Answer({self.tokens!r}) must hold adjacent tokens of the text's {length}, none "
                "of them the first, which no query predicts"
            )
        return numbers[0] - 1, numbers[-1]


@dataclass(frozen=True, eq=False)
class _AnswerOf:
    """Log-probability of an answer whose token ids are known."""

    ids: Int[Tensor, " A"]
    ahead: int
    """Distance of the first query that predicts it from the text's end."""

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        logits = _logits(output)
        if logits.shape[1] < self.ahead:
            raise ValueError(
                f"target needs the logits of the last {self.ahead} tokens, but the output has "
                f"those of {logits.shape[1]}"
            )
        rows = logits[:, logits.shape[1] - self.ahead :].unbind(1)
        return torch.stack(
            [  # one by one: with a large vocabulary, several in float64 would take gigabytes
                row.double().log_softmax(dim=-1)[:, token]
                for row, token in zip(rows, self.ids.tolist(), strict=False)
            ]
        ).sum(dim=0)


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean negative log-likelihood of each next token of a text, in nats."""

    ids: Int[Tensor, " T"]
    present: Tensor | None = None
    """True for tokens that are not padding, ``(T,)``."""

    def __str__(self) -> str:
        return "loss"

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        """Read it from what a model returned."""
        logits = _logits(output)
        if logits.shape[1] != len(self.ids):
            raise ValueError(
                f"target='loss' needs logits of each of the {len(self.ids)} tokens, but they are "
                f"{tuple(logits.shape)}; give a function of the output as target"
            )
        following = self.ids[1:].to(logits.device)
        losses = torch.stack(
            [  # one by one: with a large vocabulary, several in float32 would take gigabytes
                F.cross_entropy(sequence[:-1].float(), following, reduction="none")
                for sequence in logits
            ]
        )
        if self.present is not None:
            both = self.present[1:] & self.present[:-1]
            losses = losses[:, both.to(logits.device)]
        return losses.double().mean(dim=-1)


Target = LogProbability | Logit | Answer | str | Callable[[Any], Any]
"""The string "loss", or, of a model that reads text, a token."""


@runtime_checkable
class TextModel(Protocol):
    """A model with its tokenizer, as `regard.models.LanguageModel` is."""

    module: nn.Module
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """The device of its input."""

    def read(self, text: str) -> Any:
        """Return what it reads of a text, with its token ``ids``."""

    def token(self, text: str) -> int:
        """Return the id of a token by its text."""


def in_tokens(
    model: TextModel, run: Any, target: Any, tokens: Any
) -> tuple[nn.Module, Any, Target, Any]:
    """Return module, text, target and names of tokens, for `effects`, of a model that reads text.

    Raises:
        TypeError: for anything but such a model.
        ValueError: for a target that is not one token of the model.
    """
    if not isinstance(module_of(model), nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but is {type(model).__name__}")
    run = read_in(model, run)
    if isinstance(target, str) and target != "loss":
        target = LogProbability(model.token(target))
    return model.module, run, target, model.tokenizer if tokens is None else tokens


def read_in(model: TextModel, run: Any) -> Any:
    """Return the token ids of a text; any other run as it is."""
    return torch.tensor(model.read(run).ids, device=model.device) if isinstance(run, str) else run


def target_of(
    target: Target, model: nn.Module, inputs: Mapping[str, Any] | None, tokens: Any = None
) -> tuple[str, Callable[[Any], Any]]:
    """Return the name of a target, and the function that reads it from a model's output.

    Args:
        target: as for `effects`.
        model: the model.
        inputs: the model's keyword inputs, with ``input_ids`` if known; None if nothing is known.
        tokens: a tokenizer that names the target's token; strings only name those of the text.

    Raises:
        TypeError: for any other target.
        ValueError: for the loss of a text that is not known, or too short.
    """
    if isinstance(target, str):
        return "loss", _loss(target, model, inputs)
    if isinstance(target, Answer):
        ids = _ids_of(target, model, inputs)[0]
        first, stop = target.queries(len(ids))
        return str(target), _AnswerOf(ids[first + 1 : stop + 1], len(ids) - first)
    if isinstance(target, _TokenTarget):
        if tokens is None or isinstance(tokens, (str, list, tuple)):
            return str(target), target
        (name,) = token_names(tokens, [target.token])
        return target.named(repr(name)), target
    if not callable(target):
        raise TypeError(
            "target must be a regard.lens.LogProbability, Logit or Answer, 'loss' or a function of "
            f"the model's output, but is {target!r}"
        )
    return getattr(target, "__name__", type(target).__name__), target


def last_positions(target: Target, length: int) -> int | None:
    """Return how many of the last positions' logits a target needs, in a text of a length.

    None if it may need all, as with a non-negative position.
    """
    if isinstance(target, Answer):
        return length - target.queries(length)[0]
    if type(target) not in (LogProbability, Logit):  # a subclass may read others
        return None
    count: int = -target.position  # type: ignore[union-attr]
    return count if 0 < count <= length else None


def last_logits_for(target: Target, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument by which a model computes no logits before the target's position.

    Empty if all may be needed, for example for labels.
    """
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    count = last_positions(target, ids.shape[-1]) if isinstance(ids, Tensor) else None
    if count is None or {"labels", "logits_to_keep"} & inputs.keys():
        return {}
    return last_logits(count) if takes_logits_to_keep(model) else {}


def numbers(result: Any, count: int) -> Float[Tensor, " B"]:
    """Check the result of a target: a number per sequence.

    Raises:
        TypeError: if it is not a tensor or a number.
        ValueError: for another shape.
    """
    if not isinstance(result, (Tensor, float, int)):
        raise TypeError(
            f"target gave {type(result).__name__}; it must give a tensor with a number for each "
            "sequence, such as output.logits[:, -1, 7]"
        )
    result = tensor_of(result)
    if result.shape != (count,) and (count > 1 or result.numel() != 1):
        raise ValueError(
            f"target gave a tensor of shape {tuple(result.shape)} for {count} sequences; it must "
            f"give ({count},), a number for each"
        )
    return result.reshape(count).double()


def _loss(target: str, model: nn.Module, inputs: Mapping[str, Any] | None) -> Loss:
    if target != "loss":
        raise ValueError(f"target must be 'loss', not {target!r}; strings name no other target")
    ids = _ids_of(target, model, inputs)
    if ids.shape[-1] < 2:
        raise ValueError("target='loss' needs at least two tokens: the first is not predicted")
    mask = None if inputs is None else inputs.get(f"{_prefix(model)}attention_mask")
    present = mask[0].bool() if isinstance(mask, Tensor) and mask.shape == ids.shape else None
    return Loss(ids[0], present)


def _ids_of(
    target: str | Answer, model: nn.Module, inputs: Mapping[str, Any] | None
) -> Int[Tensor, "1 T"]:
    """Return the ids of the text, which a target needs."""
    prefix = _prefix(model)
    if prefix and isinstance(target, Answer):
        raise ValueError(
            f"target: {type(model).__name__} reads the context in an encoder; an Answer needs a "
            "causal language model"
        )
    ids: Tensor | None = None if inputs is None else inputs.get(f"{prefix}input_ids")
    if ids is None:
        way = "" if prefix else "as token ids, or "
        raise ValueError(
            f"target={target!r} needs the ids of the text: give run {way}as a mapping with "
            f"{prefix}input_ids; else give a function of the output as target"
        )
    return ids if ids.ndim > 1 else ids[None]


def _prefix(model: nn.Module) -> str:
    """Return the prefix of an encoder-decoder's inputs for its target text."""
    return (
        "decoder_" if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else ""
    )


def _logits(output: Any) -> Float[Tensor, "B T V"]:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        found = f"of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "missing"
        raise TypeError(
            f"target: logits (B, T, V) of {type(output).__name__} are {found}; give a function of "
            "the output as target"
        )
    return logits
