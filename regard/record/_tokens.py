"""Labels the positions of a recording by tokens.

Axes: B batch, L positions of self-attention, S positions of the source.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.intercept import Scope, open_scope
from regard.record.layer import Labels, Tokens
from regard.record.token_names import TokenNames


class Labeller:
    """Labels positions with strings, or with a tokenizer applied to the model's input ids."""

    def __init__(self, model: nn.Module | None, tokens: Any) -> None:
        self._model = model
        self._strings = _strings(tokens)
        by_strings = tokens is None or self._strings is not None
        self._names = None if by_strings else TokenNames(tokens)
        self._ids: dict[str, Tensor] = {}
        if self._names is not None and model is None:
            raise ValueError(
                "a tokenizer names the ids that a model is called with, so give the model too: "
                "record(model, tokens=tokenizer); or give the strings"
            )

    @contextmanager
    def observe_ids(self) -> Iterator[None]:
        """Observe the input ids of the model on this thread."""
        with ExitStack() as stack:
            block = stack.enter_context(open_scope())
            for place, module, argument in self._inputs():
                observe = partial(self._observe, block, place, argument)
                handle = module.register_forward_pre_hook(observe, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def _inputs(self) -> list[tuple[str, nn.Module, str]]:
        """Return each sequence with the module and argument that receive it."""
        if self._names is None or self._model is None:
            return []
        if getattr(getattr(self._model, "config", None), "is_encoder_decoder", False):
            encoder = self._model.get_encoder()  # type: ignore[operator] # it has one
            return [
                ("target", self._model, "decoder_input_ids"),
                ("source", encoder, "input_ids"),
            ]
        return [("target", self._model, "input_ids")]

    def labels(self) -> Labels:
        """Return the labels known so far."""
        if self._strings is not None:
            return Labels(self._strings)
        if self._names is None or not self._ids:
            return Labels(None)
        names = {
            place: tuple(tuple(self._names(sequence)) for sequence in ids.tolist())
            for place, ids in self._ids.items()
        }
        return Labels(names.get("target"), names.get("source"))

    def check(
        self, layers: Callable[[], Iterable[tuple[str, tuple[int, ...], int]]], *, several: bool
    ) -> None:
        """Check that the number of strings equals the number of positions; else discard them.

        Args:
            layers: returns the name, leading dimensions and number of keys of each layer.
            several: whether layers made several calls, as in a generation, whose recording an error
                would lose.

        Raises:
            ValueError: on a mismatch after single calls.

        Warns:
            RuntimeWarning: on a mismatch after several calls.
        """
        given = self._strings
        if given is None:
            return
        own = sorted({len(names) for names in given})
        for name, leading, keys in layers():
            batch = leading[0] if len(leading) > 1 else 1
            if own == [keys] and len(given) in (1, batch):
                continue
            self._strings = None
            message = (
                f"tokens names {len(given)} sequence(s) of {own} positions, but "
                f"{name or 'the model'} attended over {batch} of {keys}"
            )
            if not several:
                raise ValueError(
                    f"{message}; give one string a position, special tokens and padding included"
                )
            cure = "so that positions have no names; give a tokenizer, or one string a position"
            warnings.warn(
                f"{message}, {cure}, the last generated token left out",
                RuntimeWarning,
                stacklevel=4,
            )
            return

    def _observe(
        self,
        block: Scope,
        place: str,
        argument: str,
        module: nn.Module,  # noqa: ARG002 - the signature of torch's hooks
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Keep the ids; another thread may call without `kwargs`, while the hook is removed."""
        if kwargs is None or not block.holds():  # this call is not recorded
            return
        ids = kwargs.get(argument)
        if ids is None and args and argument == "input_ids":
            ids = args[0]
        if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.ndim > 2:
            return
        ids = ids.detach().cpu().reshape(-1, ids.shape[-1])
        known = self._ids.get(place)
        cache = kwargs.get("past_key_values")
        if known is not None and len(known) == len(ids):
            length = ids.shape[-1] == 1 if cache is None else int(cache.get_seq_length())
            if length:  # the ids continue the previous ones
                ids = torch.cat([known, ids], dim=-1)
        self._ids[place] = ids


def _strings(tokens: Any) -> Tokens | None:
    """Return strings as one list per sequence; None for a tokenizer."""
    if isinstance(tokens, str) or not isinstance(tokens, (list, tuple)) or not tokens:
        if isinstance(tokens, (str, list, tuple)):
            raise TypeError(
                "tokens must be a list of strings, lists of them, or a tokenizer, but is "
                f"{tokens!r}"
            )
        return None
    if all(isinstance(name, str) for name in tokens):
        return (tuple(tokens),)
    lists = all(isinstance(names, (list, tuple)) for names in tokens)
    if lists and all(isinstance(name, str) for names in tokens for name in names):
        return tuple(tuple(names) for names in tokens)
    raise TypeError("tokens must be a list of strings, lists of them, or a tokenizer")
