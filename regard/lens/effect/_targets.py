"""The number that effects are measured on.

Axes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._arguments import check_whole, tensor_of
from regard._shapes import Float, Int
from regard.intercept import last_logits, takes_logits_to_keep
from regard.record import token_names


@dataclass(frozen=True)
class LogProbability:
    """Log-probability of a token, in nats.

    Attributes:
        token: its id.
        position: the token after which it is expected; negative from the end.

    Example:
        >>> import regard, torch
        >>> target = regard.lens.LogProbability(2)
        >>> print(target)
        log-probability of token 2 at position -1
        >>> target(torch.zeros(1, 3, 4)).exp()
        tensor([0.2500], dtype=torch.float64)
    """

    token: int
    position: int = -1

    def __post_init__(self) -> None:
        _check(self.token, self.position)

    def __str__(self) -> str:
        return self.named(f"token {self.token}")

    def named(self, token: str) -> str:
        """What it is, in words, where the token is called so."""
        return f"log-probability of {token} at position {self.position}"

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        """Read it from what a model returned."""
        logits = _logits_at(output, self.token, self.position)
        return logits.double().log_softmax(dim=-1)[:, self.token]


@dataclass(frozen=True)
class Logit:
    """Logit of a token.

    Attributes:
        token: its id.
        position: the token after which it is expected; negative from the end.

    Example:
        >>> import regard, torch
        >>> regard.lens.Logit(2, position=0)(torch.arange(12.0).view(1, 3, 4))
        tensor([2.], dtype=torch.float64)
    """

    token: int
    position: int = -1

    def __post_init__(self) -> None:
        _check(self.token, self.position)

    def __str__(self) -> str:
        return self.named(f"token {self.token}")

    def named(self, token: str) -> str:
        """What it is, in words, where the token is called so."""
        return f"logit of {token} at position {self.position}"

    def __call__(self, output: Any) -> Float[Tensor, " B"]:
        """Read it from what a model returned."""
        return _logits_at(output, self.token, self.position)[:, self.token].double()


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean negative log-likelihood of each next token of a text, in nats."""

    ids: Int[Tensor, " T"]
    present: Tensor | None = None
    """Which tokens are not padding, ``(T,)``."""

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
            [  # one by one: of a large vocabulary, several in float32 would take gigabytes
                F.cross_entropy(sequence[:-1].float(), following, reduction="none")
                for sequence in logits
            ]
        )
        if self.present is not None:
            both = self.present[1:] & self.present[:-1]
            losses = losses[:, both.to(logits.device)]
        return losses.double().mean(dim=-1)


Target = LogProbability | Logit | Literal["loss"] | Callable[[Any], Any]


def target_of(
    target: Target, model: nn.Module, inputs: Mapping[str, Any] | None, tokens: Any = None
) -> tuple[str, Callable[[Any], Any]]:
    """Name a target, and the function that reads it from a model's output.

    Args:
        target: as `effects` has it.
        model: whose output it is read from.
        inputs: the model's keyword inputs, with ``input_ids`` if known; None if nothing is known.
        tokens: a tokenizer, by which a token is named; strings name none but those of the text.

    Raises:
        TypeError: for anything else.
        ValueError: for the loss of a text that is not known, or too short.
    """
    if isinstance(target, str):
        return "loss", _loss(target, model, inputs)
    if isinstance(target, (LogProbability, Logit)):
        if tokens is None or isinstance(tokens, (str, list, tuple)):
            return str(target), target
        (name,) = token_names(tokens, [target.token])
        return target.named(repr(name)), target
    if not callable(target):
        raise TypeError(
            "target must be a regard.lens.LogProbability, a regard.lens.Logit, 'loss' or a function of the "
            f"model's output, but is {target!r}"
        )
    return getattr(target, "__name__", type(target).__name__), target


def last_logits_for(target: Target, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The argument that has a model compute no logits before the target's position.

    Empty where all are needed, or may be: a position from 0 is not known from the end, and labels
    are compared with all.
    """
    if not isinstance(target, (LogProbability, Logit)) or type(target).__call__ not in _READ_ONE:
        return {}
    ids, count = inputs.get("decoder_input_ids", inputs.get("input_ids")), -target.position
    length = ids.shape[-1] if isinstance(ids, Tensor) else 0
    if {"labels", "logits_to_keep"} & inputs.keys() or not 0 < count <= length:
        return {}
    return last_logits(count) if takes_logits_to_keep(model) else {}


_READ_ONE = LogProbability.__call__, Logit.__call__
"""What reads the logits of one position; a subclass may read others."""


def numbers(result: Any, count: int) -> Float[Tensor, " B"]:
    """Check what a target gave: a number for each of so many sequences.

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
    decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    prefix = "decoder_" if decodes else ""
    ids: Tensor | None = None if inputs is None else inputs.get(f"{prefix}input_ids")
    if ids is None:
        way = "" if decodes else "as token ids, or "
        raise ValueError(
            f"target='loss' needs the ids of the text: give run {way}as a mapping with "
            f"{prefix}input_ids; else give a function of the output as target"
        )
    if ids.shape[-1] < 2:
        raise ValueError("target='loss' needs at least two tokens, the second of which is foreseen")
    mask = None if inputs is None else inputs.get(f"{prefix}attention_mask")
    present = mask[0].bool() if isinstance(mask, Tensor) and mask.shape == ids.shape else None
    return Loss(ids[0], present)


def _check(token: int, position: int) -> None:
    check_whole(token, "token")
    check_whole(position, "position")
    if token < 0:
        raise ValueError(f"token must be an id from 0, but is {token}")


def _logits_at(output: Any, token: int, position: int) -> Float[Tensor, "B V"]:
    logits = _logits(output)
    tokens, vocabulary = logits.shape[1:]
    if not -tokens <= position < tokens:
        raise ValueError(f"target: position is {position}, but the output has {tokens} tokens")
    if token >= vocabulary:
        raise ValueError(f"target: token is {token}, but the vocabulary ends at {vocabulary - 1}")
    return logits[:, position]


def _logits(output: Any) -> Float[Tensor, "B T V"]:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        found = f"of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "missing"
        raise TypeError(
            f"target: logits (B, T, V) of {type(output).__name__} are {found}; give a function of "
            "the output as target"
        )
    return logits
