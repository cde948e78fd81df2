"""A model in a folder: `config.json`, `model.safetensors`, `tokenizer.json`, `training.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from regard._files import replace_files
from regard.gpt.bpe import BPETokenizer
from regard.gpt.config import HAS_READ, GPTConfig
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import (
    CONFIG,
    TOKENIZER,
    TRAINING,
    WEIGHTS,
    dump_json,
    holds_model,
    holds_pretrained,
    json_checksums,
    load_json,
)
from regard.gpt.gpt2 import read_gpt2, read_gpt2_tokenizer
from regard.gpt.hub import model_folder
from regard.gpt.int8 import int8_state, to_int8
from regard.gpt.model import GPT
from regard.gpt.model_files import (
    count_layers,
    dump,
    load_into_huge_pages,
    read_each,
    read_shapes,
    require_written,
)
from regard.gpt.tokenizer import CharTokenizer, Tokenizer
from regard.gpt.unwrap import as_gpt, require_own_tokenizer, weights_to_write

SHIPPED = Path(__file__).parent / "shipped"
"""The folder of the model that comes with the package."""


def save(
    folder: str | Path,
    model: GPT,
    tokenizer: Tokenizer,
    *,
    dtype: torch.dtype | None = None,
    training: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model to a folder.

    The files are written under temporary names and, when all are complete, renamed, the weights
    last. So at any moment the folder holds the old or the new model. Only if the new one has
    another shape or tokenizer, there is a moment between the renames at which `load` raises an
    error.

    Args:
        folder: the folder; made if it does not exist.
        model: the model, as it is or wrapped by ``torch.compile``, DataParallel or
            DistributedDataParallel.
        tokenizer: its tokenizer.
        dtype: dtype of the weights in the file, such as ``torch.float16``; None is that of the
            model. `load` converts them to float32.
        training: the record of its training, written to `training.json`.
        overwrite: whether a model of another shape or with another tokenizer may be replaced.

    Raises:
        CheckpointError: if `folder` holds such a model, and `overwrite` is False.
        ValueError: if the tokenizer's vocabulary is not the model's, or the weights are int8,
            shards of FSDP, or not loadable. Nothing is written then.
        TypeError: if `model` is not a `GPT`.

    Example:
        >>> import tempfile
        >>> from regard.gpt import load, save
        >>> model, tokenizer = load()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, model, tokenizer)
        ...     again, _ = load(folder)
        >>> bool((again.wte.weight == model.wte.weight).all())
        True
    """
    folder = Path(folder)
    model = as_gpt(model)
    require_own_tokenizer(model, tokenizer)
    weights = weights_to_write(model, dtype)
    contents = {
        folder / CONFIG: dump_json(asdict(model.config)),
        folder / TOKENIZER: tokenizer.to_json().encode(),
    }
    if not overwrite:
        _require_same(folder, model.config, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    written = json_checksums({path.name: data for path, data in contents.items()})
    contents[folder / WEIGHTS] = dump(weights, about=written)
    if training is not None:
        contents[folder / TRAINING] = dump_json(training)
    replace_files(contents)
    if training is None and overwrite:  # the old record is of another model
        (folder / TRAINING).unlink(missing_ok=True)


def load(
    folder: str | Path | None = None,
    *,
    fetch: bool = False,
    device: torch.device | str = "cpu",
    weights: Literal["int8"] | None = None,
) -> tuple[GPT, Tokenizer]:
    """Load the model and the tokenizer of a folder: of `save`, or a GPT-2 of `transformers`.

    A GPT-2 of the Hugging Face hub is named like ``"openai-community/gpt2"``. It is read from the
    hub's cache on this machine, through `huggingface_hub` (the extra `hub`); the network is used
    only with `fetch`, and only if the cache lacks it.

    `save` writes checksums of the weights, `config.json` and `tokenizer.json` into the header of
    `model.safetensors`, and `load` verifies them. Weights of an earlier version or another library,
    without checksums, are not verified.

    With ``weights="int8"`` the matrices take a quarter of float32's memory. Each row of a linear
    map, and of the token embeddings, which are tied to the unembedding, is rounded to integers from
    −127 to 127 times the row's own scale, its largest magnitude divided by 127: the error of a
    weight is at most half a scale. Norms, biases, learned positions and all activations stay in
    float32. Such a model runs only on a CPU; it supports recordings and interventions, but can't be
    trained or saved. Matrices are read and rounded one by one: only one is in memory in float32.

    Args:
        folder: the folder, or a name on the hub; None is the model that comes with the package.
        fetch: whether to download a model of the hub if the cache lacks it.
        device: the model's device.
        weights: "int8", or None for float32.

    Returns:
        The model, in evaluation mode and in float32 whatever the dtype of the file, and its
        tokenizer.

    Raises:
        ValueError: if `weights` is neither, or is "int8" and `device` is not a CPU.
        CheckpointError: if the folder holds no model, or a damaged one; if there is no such folder,
            and the cache lacks a GPT-2 of that name, or it can't be downloaded; or if a weight is
            NaN, infinite or not floating point. The message names what is missing and the cure.

    >>> model, tokenizer = load()
    >>> tokenizer.decode(tokenizer.encode("A statement."))
    'A statement.'
    >>> load(weights="int8")[0].h[0].mlp.c_fc.int8_weight.dtype
    torch.int8
    """
    _check_weights(weights, torch.device(device))
    folder = SHIPPED if folder is None else model_folder(folder, fetch=fetch)
    load_from = _load_gpt2 if holds_pretrained(folder) else _load_own
    model, tokenizer = load_from(folder, device, int8=weights is not None)
    model.has_read = HAS_READ if folder == SHIPPED else None
    return model, tokenizer


def _check_weights(weights: object, device: torch.device) -> None:
    if weights is not None and weights != "int8":
        raise ValueError(f"weights is {weights!r}; expected 'int8', or None for float32")
    if weights is not None and device.type != "cpu":
        raise ValueError(
            f"weights is {weights!r}, which is computed on a CPU, and device is {device}: leave "
            "weights out, or choose the CPU"
        )


def _load_own(folder: Path, device: torch.device | str, *, int8: bool) -> tuple[GPT, Tokenizer]:
    _require_files(folder)
    require_written(
        folder / WEIGHTS, {name: load_json(folder / name) for name in (CONFIG, TOKENIZER)}
    )
    config = _load_config(folder / CONFIG)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    _require_one_model(folder, config, tokenizer)
    _require_fit(folder / WEIGHTS, config)
    with torch.device("meta"):  # without initial weights
        model = GPT(config)
    load_weights = _load_int8 if int8 else _load_weights
    model.load_state_dict(load_weights(folder / WEIGHTS, model, device), assign=True)
    return model.eval(), tokenizer


def require_no_model(folder: Path, corpus: str | Path | None) -> None:
    """Raise CheckpointError if a folder has files that a new model would replace.

    A tokenizer equal to that of the corpus may stay.
    """
    if holds_model(folder):
        raise CheckpointError(
            f"{folder} already holds a model; train into another folder, go on with its training "
            "run by resume=True, or replace it by overwrite=True"
        )
    is_corpus = corpus is not None and folder.exists() and folder.samefile(corpus)
    names = (CONFIG, TRAINING) if is_corpus else (CONFIG, TOKENIZER, TRAINING)
    lost = [name for name in names if (folder / name).exists()]
    if lost:
        raise CheckpointError(
            f"{folder} holds {' and '.join(lost)}, which would be lost; train into another folder, "
            "or with overwrite=True"
        )


def load_training(folder: str | Path | None = None) -> dict[str, Any]:
    """Return the record of a model's training, from `training.json`.

    Raises:
        CheckpointError: if the folder has no such file, or it is damaged.

    Example:
        >>> from regard.gpt import load_training
        >>> sorted(load_training())[:3]
        ['baselines', 'bits_per_byte', 'config']
    """
    path = (SHIPPED if folder is None else Path(folder)) / TRAINING
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {TRAINING}: its training is unknown")
    return load_json(path)


def _load_gpt2(folder: Path, device: torch.device | str, *, int8: bool) -> tuple[GPT, Tokenizer]:
    model, tokenizer = read_gpt2(folder, int8=int8), read_gpt2_tokenizer(folder)
    _require_one_model(folder, model.config, tokenizer)
    return model.to(device), tokenizer


def _require_one_model(folder: Path, config: GPTConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and {CONFIG} says "
            f"vocab_size={config.vocab_size}: the files belong to different models"
        )


def _require_same(folder: Path, config: GPTConfig, tokenizer: Tokenizer) -> None:
    """Compare contents, not bytes, since earlier versions formatted the files differently."""
    is_model = (folder / CONFIG).exists()
    is_same: Callable[[Path], bool]
    for path, is_same in (
        (folder / WEIGHTS, lambda _: is_model),
        (folder / TRAINING, lambda _: is_model),
        (folder / CONFIG, lambda path: _load_config(path) == config),
        (folder / TOKENIZER, lambda path: load_tokenizer(path).to_json() == tokenizer.to_json()),
    ):
        with suppress(CheckpointError):  # a damaged or foreign file counts as different
            if not path.exists() or is_same(path):
                continue
        raise CheckpointError(
            f"{folder} holds another {path.name}, which would be lost; save to another folder, or "
            "with overwrite=True"
        )


def _require_files(folder: Path) -> None:
    missing = [name for name in (CONFIG, TOKENIZER, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} is not a model: it has no {', '.join(missing)}; give a folder that "
            "`regard train` wrote, or none for the model that comes with regard"
        )


def _load_config(path: Path) -> GPTConfig:
    try:
        return GPTConfig(**load_json(path))
    except (TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} does not describe a GPT: {error}") from None


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file, of whichever kind; `CheckpointError` where it is damaged."""
    kind = CharTokenizer if load_json(path).get("type") == "characters" else BPETokenizer
    try:
        return kind.from_json(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _require_fit(path: Path, config: GPTConfig) -> None:
    """Compare sizes with the file's header, before memory is allocated for the model."""
    shapes = read_shapes(path)
    layers = count_layers(shapes)
    if layers != config.layers:
        raise CheckpointError(
            f"{path} does not fit {CONFIG}: it has {layers} layers, expected {config.layers}"
        )
    learned = config.positions == "learned"
    _require_shapes(
        path,
        {name: shapes[name] for name in ("wpe.weight", "wte.weight") if name in shapes},
        {
            "wte.weight": (config.vocab_size, config.dim),
            **({"wpe.weight": (config.context, config.dim)} if learned else {}),
        },
    )


def _load_weights(path: Path, model: GPT, device: torch.device | str) -> dict[str, torch.Tensor]:
    shapes = _shapes(model.state_dict())
    _require_shapes(path, read_shapes(path), shapes)
    state = load_into_huge_pages(shapes, read_each(path))
    return {name: weight.to(device) for name, weight in state.items()}


def _load_int8(path: Path, model: GPT, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return the state dict for a model on the meta device, with int8 matrices."""
    _require_shapes(path, read_shapes(path), _shapes(model.state_dict()))
    to_int8(model)
    state = int8_state(model, read_each(path))
    return {name: tensor.to(device) for name, tensor in state.items()}


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _require_shapes(
    path: Path, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes:
            why = f"{name} is missing"
        elif name not in expected:
            why = f"it has {name}, which such a model does not have"
        elif shapes[name] != expected[name]:
            why = f"{name} has shape {shapes[name]}, expected {expected[name]}"
        else:
            continue
        raise CheckpointError(f"{path} does not fit {CONFIG}: {why}")
