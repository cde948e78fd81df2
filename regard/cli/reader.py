"""Readers: a model of regard, or a causal one of transformers, with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard._extras import needing
from regard.cli.errors import MisuseError, user_errors
from regard.cli.model import folder_of, open_model, weights_of
from regard.gpt import Sampling, generate
from regard.gpt.checkpoint import holds_pretrained
from regard.gpt.errors import CheckpointError
from regard.gpt.model_files import CONFIG, load_json
from regard.lens import token_offsets
from regard.lens.spans.links import Span

if TYPE_CHECKING:
    from regard.gpt import GPT, Tokenizer

__all__ = ["Encoded", "Reader", "open_reader"]


_UNREADABLE = (OSError, ValueError, ImportError, KeyError, SafetensorError)
"""Exceptions of transformers for a folder without a model, or with an unknown one."""

_SHOWN = 200  # maximum characters of their messages


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    offsets: list[Span]
    """Start and stop of each token, in characters of the text."""


class Reader(Protocol):
    """A model and its tokenizer."""

    @property
    def model(self) -> nn.Module:
        """Return the model, in evaluation mode."""

    @property
    def context(self) -> int | None:
        """Return the model's context length in tokens; None if unknown."""

    @property
    def is_chat(self) -> bool:
        """Return True if the model has a chat template."""

    def prompt(self, text: str) -> str:
        """Return the model's input for a user's message."""

    def encode(self, text: str) -> Encoded:
        """Tokenize the model's input."""

    def answer(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Generate greedily, at most a number of tokens, up to the end of the answer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""


def open_reader(
    name: str | None, *, fetch: bool, device: torch.device, weights: str | None = None
) -> Reader:
    """Open the model of ``--model``; None is the one that comes with regard.

    Args:
        name: the model.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        weights: the format of the matrices of a model of regard or a GPT-2.

    Raises:
        MisuseError: if there is no such model, it is damaged or not causal, or `weights` is not
            supported, in general or for this model.
    """
    weights_of(weights, device)
    folder = Path(name) if name is not None and Path(name).is_dir() else None
    if folder is None:
        folder = folder_of(name, fetch=fetch)
    with user_errors(CheckpointError, OSError):
        other = folder is not None and holds_pretrained(folder)
        if folder is not None and other and load_json(folder / CONFIG)["model_type"] != "gpt2":
            if weights is not None:
                raise MisuseError(
                    f"--weights {weights} is for models of regard and GPT-2, and transformers runs "
                    f"the one in {folder}: leave out --weights"
                )
            return _TransformersReader(folder, device)
    return _OwnReader(*open_model(name, fetch=fetch, device=device, weights=weights))


class _OwnReader:
    is_chat = False

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.model = model
        self.context = model.config.context
        self._tokenizer = tokenizer

    def prompt(self, text: str) -> str:
        return text

    def encode(self, text: str) -> Encoded:
        with user_errors(ValueError):  # a character that this tokenizer has no token for
            ids = self._tokenizer.encode(text)
        return Encoded(ids, token_offsets(self._tokenizer.tokens(ids)))

    def answer(self, ids: Sequence[int], tokens: int) -> list[int]:
        greedy = Sampling(temperature=0.0)
        with user_errors(ValueError):  # of a model whose logits are NaN
            (whole,) = generate(self.model, [ids], tokens=tokens, sampling=greedy, past="refuse")
        end = self._tokenizer.end
        return _until(whole[len(ids) :].tolist(), () if end is None else (end,))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


class _TransformersReader:
    def __init__(self, folder: Path, device: torch.device) -> None:
        with needing("transformers"):
            from transformers import AutoModelForCausalLM, AutoTokenizer

        def refusal(message: str) -> str:
            reason = shorten(message, _SHOWN, placeholder=" …")
            return (
                f"{folder} holds no causal language model that transformers can read: {reason}; "
                "give the folder of one, with its weights and tokenizer"
            )

        with user_errors(*_UNREADABLE, rewrite=refusal), _without_bars():
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, about = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        if about["missing_keys"]:
            raise MisuseError(
                f"the model in {folder} lacks {len(about['missing_keys'])} weights, such as "
                f"{min(about['missing_keys'])}: give the folder of a causal language model"
            )
        self.model: Any = model.to(device).eval()
        if not self._tokenizer.is_fast:
            raise MisuseError(
                f"the tokenizer in {folder} does not say which characters a token holds; it needs "
                "a tokenizer.json"
            )
        self.is_chat = self._tokenizer.chat_template is not None
        text_config = self.model.config.get_text_config()
        self.context: int | None = getattr(text_config, "max_position_embeddings", None)

    def prompt(self, text: str) -> str:
        if not self.is_chat:
            return text
        turns = [{"role": "user", "content": text}]
        prompt: str = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        return prompt

    def encode(self, text: str) -> Encoded:
        encoded = self._tokenizer(
            text, return_offsets_mapping=True, add_special_tokens=not self.is_chat
        )
        return Encoded(encoded["input_ids"], [tuple(o) for o in encoded["offset_mapping"]])

    def answer(self, ids: Sequence[int], tokens: int) -> list[int]:
        prompt = torch.tensor([ids], device=self.model.device)
        # Raised for a model whose layers have no cache that transformers can use.
        with user_errors(ValueError, rewrite="transformers cannot generate with it: {}".format):
            whole: Tensor = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,  # one text has no padding; without the argument, a warning
            )
        ends = self.model.generation_config.eos_token_id
        known = [] if ends is None else ends if isinstance(ends, list) else [ends]
        return _until(whole[0, len(ids) :].tolist(), known)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids)
        return text


@contextmanager
def _without_bars() -> Iterator[None]:
    """Disable progress bars of transformers inside the block."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _until(ids: list[int], ends: Sequence[int]) -> list[int]:
    """Return the tokens before the first end token."""
    first = min((ids.index(end) for end in ends if end in ids), default=len(ids))
    return ids[:first]
