"""Names of the positions of a recording.

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

from regard.intercept import Block, open_block
from regard.record.layer import Labels, Tokens
from regard.record.token_names import TokenNames


class Labeller:
    """Names positions: by strings, or by a tokenizer and the ids that the model is called with."""

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
        """Observe the ids that the model is called with on this thread."""
        with ExitStack() as stack:
            block = stack.enter_context(open_block())
            for place, module, argument in self._places():
                observe = partial(self._observe, block, place, argument)
                handle = module.register_forward_pre_hook(observe, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def _places(self) -> list[tuple[str, nn.Module, str]]:
        """Which sequence comes in by which module and argument."""
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
        """The names, as far as they are known."""
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
        """Check that strings fit the positions; those that do not are left out.

        Args:
            layers: gives the name of each layer, its leading dimensions and its number of keys.
            several: whether layers made several calls, as in a generation: names of the prompt fit
                the first, and an error would lose the rest.

        Raises:
            ValueError: if they do not fit a single call.

        Warns:
            RuntimeWarning: if they do not fit one of several.
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
        block: Block,
        place: str,
        argument: str,
        module: nn.Module,  # noqa: ARG002 - the signature of torch's hooks
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if not block.holds():  # a call that is not recorded here
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
            if length:  # it goes on from those before
                ids = torch.cat([known, ids], dim=-1)
        self._ids[place] = ids


def _strings(tokens: Any) -> Tokens | None:
    """Give strings one list a sequence; None for anything else."""
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
