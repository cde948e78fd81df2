"""A model that runs in the page: its weights, tokenizer and shape, as `static/live` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.page.file.bundle import deflated, embedded, kernels, script, whole_page

if TYPE_CHECKING:
    from regard.gpt import GPT, Tokenizer

__all__ = ["live_page", "objection_to_tokenizer", "pack_model"]

_STAND_INS = {"api.js": "live/api.js"}

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""From the narrowest, as far as a page can read them."""

# What a page's byte-level BPE does; a tokenizer with anything else is refused.
_PIPELINE: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "post_processor": (None, "ByteLevel"),
    "pre_tokenizer": ("ByteLevel",),
    "model": ("BPE", None),
}
_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "pre_tokenizer": {"add_prefix_space": (False,), "use_regex": (True, None)},
    "model": {
        "dropout": (None, 0.0),
        "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, ""),
        "byte_fallback": (False, None),
        "ignore_merges": (False, None),
    },
}
_ADDED = ("single_word", "lstrip", "rstrip")


def live_page(
    model: GPT,
    tokenizer: Tokenizer,
    about: dict[str, Any],
    ids: Sequence[int],
    notes: Sequence[str] = (),
) -> str:
    """Write the page with a model in it, which runs over any text in the browser.

    Args:
        model: the model.
        tokenizer: its own; `objection_to_tokenizer` has none to it.
        about: what it shows, as the server describes it.
        ids: the text that is open at first.
        notes: what to say of it.
    """
    description, numbers = pack_model(model, tokenizer)
    first = {"ids": list(ids), "notes": list(notes)}
    opening = embedded({"about": about, "first": first})
    data = (
        f'<script type="application/json" id="report">{opening}</script>\n'
        f'<script type="application/json" id="model">{embedded(description)}</script>\n'
        f'{kernels()}<script type="text/plain" id="numbers">{numbers}</script>\n'
        f'<script type="text/plain" id="worker">{script("live/worker.js")}</script>\n'
    )
    return whole_page("live", instead=_STAND_INS, data=data, worker=True)


def objection_to_tokenizer(tokenizer: Tokenizer) -> str | None:
    """Say why a page can't encode as this tokenizer does, or None."""
    try:
        file = json.loads(tokenizer.to_json())
    except (NotImplementedError, ValueError):
        return f"a {type(tokenizer).__name__} has no tokenizer.json"
    if file.get("type") == "characters":
        return None
    for part, kinds in _PIPELINE.items():
        value = file.get(part)
        kind = None if value is None else value.get("type")
        if kind not in kinds:
            return f"its {part} is {kind}"
        for option, known in _OPTIONS.get(part, {}).items():
            if value.get(option) not in known:
                return f"its {part} has {option}={value.get(option)!r}"
    for token in file.get("added_tokens", ()):
        if any(token.get(name) for name in _ADDED):
            return f"its token {token['content']!r} takes in what stands around it"
    return None


def pack_model(model: GPT, tokenizer: Tokenizer) -> tuple[dict[str, Any], str]:
    """Describe a model for the page, with its weights as text.

    A tensor is kept in half precision where that holds each of its numbers exactly.

    Args:
        model: the model.
        tokenizer: its own; `objection_to_tokenizer` has none to it.
    """
    tensors = {
        name: tensor.detach().float().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    narrow = {name: _narrowest(tensor) for name, tensor in tensors.items()}
    config = model.config
    derived = {
        "groups": config.group_count,
        "head_dim": config.head_dim,
        "windows": list(map(config.layer_window, range(config.layers))),
    }
    description = {
        "config": asdict(config) | derived,
        "tokenizer": json.loads(tokenizer.to_json()),
        "tensors": [
            {
                "name": name,
                "dtype": str(narrow[name].dtype).removeprefix("torch."),
                "count": t.numel(),
            }
            for name, t in tensors.items()
        ],
    }
    return description, deflated(plane for tensor in narrow.values() for plane in _planes(tensor))


def _narrowest(tensor: Tensor) -> Tensor:
    """The numbers in the narrowest type that holds them exactly."""
    return next(
        (
            narrow
            for narrow in (tensor.to(dtype) for dtype in _DTYPES)
            if torch.equal(narrow.float(), tensor)
        ),
        tensor,
    )


def _planes(tensor: Tensor) -> Iterator[bytes]:
    """The lowest bytes of all numbers, then the next: the upper ones repeat more."""
    data = tensor.view(torch.uint8).reshape(-1, tensor.element_size())
    for place in range(tensor.element_size()):
        yield data[:, place].contiguous().numpy().tobytes()
