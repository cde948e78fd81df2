"""A model that runs in the page: its weights, tokenizer and shape, as `static/live` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.nn.rotary import frequencies_of
from regard.page.file.bundle import deflated, embedded, kernels, script, whole_page

if TYPE_CHECKING:
    from regard.gpt import GPT, GPTConfig

__all__ = [
    "described",
    "live_page",
    "objection_to_tokenizer",
    "pack_model",
    "page_of",
    "tokenizer_file",
]

_STAND_INS = {"api.js": "live/api.js"}

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""From the narrowest, as far as a page can read them."""

_JOINING = ("MergedWithPrevious", "MergedWithNext", "Contiguous")
"""Ways to split a text that the page's library does not have."""
_SPELLING = ("Replace", "ByteFallback", "Fuse", "Strip")
"""Steps of a decoder that write characters, and bytes where a vocabulary lacks a character."""
_NORMALIZERS = ("Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD")
"""Changes of a text that the page's library makes as Python's does."""


def live_page(
    model: GPT,
    tokenizer: dict[str, Any],
    about: dict[str, Any],
    ids: Sequence[int],
    notes: Sequence[str] = (),
) -> str:
    """Write the page with a model in it, which runs over any text in the browser.

    Args:
        model: the model.
        tokenizer: its `tokenizer_file`; `objection_to_tokenizer` has none to it.
        about: what it shows, as the server describes it.
        ids: the text that is open at first.
        notes: what to say of it.
    """
    description, numbers = pack_model(model, tokenizer)
    first = {"ids": list(ids), "notes": list(notes)}
    return page_of(description, about, first, numbers)


def page_of(
    description: dict[str, Any], about: dict[str, Any], first: dict[str, Any], numbers: str = ""
) -> str:
    """Write the page of a model.

    Args:
        description: of the model, as `static/live` reads it.
        about: what the page shows, as the server describes it.
        first: the text that is open at first.
        numbers: the weights as text; empty where they lie beside the page, in pieces.
    """
    opening = embedded({"about": about, "first": first})
    data = (
        f'<script type="application/json" id="report">{opening}</script>\n'
        f'<script type="application/json" id="model">{embedded(description)}</script>\n'
        f'{kernels()}<script type="text/plain" id="numbers">{numbers}</script>\n'
        f'<script type="text/plain" id="worker">{script("live/worker.js")}</script>\n'
    )
    return whole_page("live", instead=_STAND_INS, data=data, worker=True, beside=not numbers)


def tokenizer_file(tokenizer: Any, *, special: bool = True) -> dict[str, Any]:
    """Return a tokenizer's `tokenizer.json`, or what stands for it.

    Args:
        tokenizer: of `regard.gpt`, or a `regard.models.PretrainedTokenizer`.
        special: whether the tokens that it adds to every text are added.

    Raises:
        ValueError: it has none.
    """
    inner = getattr(getattr(tokenizer, "inner", None), "backend_tokenizer", None)
    try:
        file: dict[str, Any] = json.loads(tokenizer.to_json() if inner is None else inner.to_str())
    except (AttributeError, NotImplementedError):
        raise ValueError(f"a {type(tokenizer).__name__} has no tokenizer.json") from None
    return file if special else file | {"post_processor": None}


def objection_to_tokenizer(file: dict[str, Any]) -> str | None:
    """Say why a page can't encode as a `tokenizer.json` says, or None.

    The page reads it with a library; its vocabulary has to spell any text, in bytes as GPT-2's does
    or in characters beside bytes as SentencePiece's does.
    """
    if file.get("type") == "characters":
        return None
    model, decoder = file.get("model") or {}, file.get("decoder") or {}
    if model.get("type") not in ("BPE", None):
        return f"its model is {model.get('type')}"
    spelling = [step.get("type") for step in _steps(decoder, "decoders")]
    if spelling != ["ByteLevel"]:
        other = next((kind for kind in spelling if kind not in _SPELLING), None)
        if other is not None or not spelling:
            return f"its decoder is {other}"
        has_bytes = all(f"<0x{byte:02X}>" in model.get("vocab", ()) for byte in range(256))
        if not (has_bytes and model.get("byte_fallback") and "ByteFallback" in spelling):
            return "its vocabulary has no token for some texts"
    for step in _steps(file.get("normalizer"), "normalizers"):
        if step.get("type") not in _NORMALIZERS:
            return f"its normalizer is {step.get('type')}"
    for step in _steps(file.get("pre_tokenizer"), "pretokenizers"):
        if step.get("behavior") in _JOINING:
            return f"its pre_tokenizer splits by {step['behavior']}"
    return None


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a part of a `tokenizer.json`, which may be one step or a sequence of them."""
    if not part:
        return []
    if name not in part:
        return [part]
    return [step for inner in part[name] for step in _steps(inner, name)]


def pack_model(model: GPT, tokenizer: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Describe a model for the page, with its weights as text.

    A tensor is kept in half precision where that holds each of its numbers exactly.

    Args:
        model: the model.
        tokenizer: its `tokenizer_file`; `objection_to_tokenizer` has none to it.
    """
    tensors = {
        name: tensor.detach().float().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    narrow = {name: _narrowest(tensor) for name, tensor in tensors.items()}
    description = {
        "config": described(model.config),
        "tokenizer": tokenizer,
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


def described(config: GPTConfig) -> dict[str, Any]:
    """A model's shape, and what follows from it."""
    frequencies = config.rotary_frequencies
    if config.positions == "rotary" and frequencies is None:
        frequencies = tuple(frequencies_of(config.head_dim, config.rotary_base).tolist())
    return asdict(config) | {
        "rotary_frequencies": frequencies,
        "groups": config.group_count,
        "head_dim": config.head_dim,
        "hidden_dim": config.hidden_dim,
        "windows": list(map(config.layer_window, range(config.layers))),
    }


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
