"""Models of transformers: from a folder, or from a GGUF, tensor by tensor.

The configuration and the tokenizer of a GGUF are read by transformers, its numbers dequantised by
gguf. transformers' own way to such a model holds the weights several times.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from regard._extras import catching_panics, needing
from regard.gpt import CheckpointError
from regard.gpt.folder import CONFIG, load_json
from regard.models.gguf_blocks import other_shape, place_blocks
from regard.models.memory import free_memory
from regard.models.places import text_config
from regard.models.stored import stored_tensors
from regard.models.text import PretrainedTokenizer

__all__ = ["load_gguf", "load_pretrained"]

_SHOWN = 200  # characters of their messages
_ROWS = 2**12  # rows of an embedding that are dequantised at a time
_SPARE = 1.2  # what a first run needs beside the weights, at least


def load_pretrained(
    folder: Path, *, dtype: torch.dtype, device: torch.device | str, device_map: Any
) -> tuple[nn.Module, PretrainedTokenizer]:
    """Load a causal model, or an encoder, and its tokenizer.

    Args:
        folder: a folder of transformers.
        dtype: of the weights; a quantised checkpoint has its own.
        device: where it computes.
        device_map: in place of it; see transformers.

    Raises:
        CheckpointError: for what is no model of text, lacks weights, needs code of its own or more
            memory than is free, or is damaged.
    """
    with needing("transformers"):
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig
        from transformers.utils import GENERATION_CONFIG_NAME
    _require_no_code(folder)
    with _reading(folder), _quiet():
        if device_map is not None:
            import_module("accelerate")  # by which transformers spreads a model
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kind = _class_for(config, folder)
        quantised = getattr(config, "quantization_config", None) is not None
        stored = {} if quantised else stored_tensors(folder)
        size = sum(prod(one.shape) for one in stored.values()) * dtype.itemsize
        layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if stored and layers > len(stored):  # they would be made for ever
            raise CheckpointError(
                f"{folder} is damaged: it says that it has more layers than its {len(stored)} "
                "tensors; fetch it again"
            )
        _require_memory(size, _name(dtype), folder)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        options = {
            "output_loading_info": True,
            "dtype": "auto" if quantised else dtype,
            **({} if device_map is None else {"device_map": device_map}),
        }
        if {one.dtype for one in stored.values()} <= {dtype}:  # then its pages are mapped
            module, about = kind.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                **options,
            )
        else:
            with torch.device("meta"):
                own = type(kind.from_config(deepcopy(config), trust_remote_code=False))
            module, about = own.from_pretrained(None, config=config, state_dict=stored, **options)
            if (folder / GENERATION_CONFIG_NAME).is_file():
                module.generation_config = GenerationConfig.from_pretrained(folder)
    # An encoder's pooler is not read, so that one without it is whole.
    missing = {name for name in about["missing_keys"] if not name.startswith("pooler.")}
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} weights, such as {min(missing)}: take the folder of a "
            "whole model"
        )
    names = PretrainedTokenizer(tokenizer, str(folder))
    return (module if device_map is not None else module.to(device)).eval(), names


def _require_no_code(folder: Path) -> None:
    """Refuse a model that transformers does not know, and that brings code of its own."""
    with needing("transformers"):
        from transformers import CONFIG_MAPPING
    config = load_json(folder / CONFIG)
    if "auto_map" in config and config["model_type"] not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{folder} holds a {config['model_type']!r}, which would run code from its repository, "
            "and none is run: load it yourself, if you trust it, and record it with regard.record"
        )


def _class_for(config: Any, folder: Path) -> Any:
    """Return the class that loads a model of text.

    Raises:
        CheckpointError: for a model of something else.
    """
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto import modeling_auto as known

    kind = type(config)
    name = (getattr(config, "architectures", None) or [""])[0]
    if any(getattr(config, part, None) is not None for part in ("vision_config", "audio_config")):
        raise CheckpointError(
            f"{folder} holds a {config.model_type!r}, which reads pictures or sound beside text; "
            "take a model of text alone, or record it with regard.record"
        )
    # Of some, such as Marian, the mappings have a decoder alone, which has no source.
    if getattr(config, "is_encoder_decoder", False) and "Causal" not in name:
        raise CheckpointError(
            f"{folder} holds a {config.model_type!r}, an encoder with a decoder, which reads one "
            "text and writes another: load it with AutoModelForSeq2SeqLM of transformers, and "
            "record it: with regard.record(model) as recording: model.generate(ids)"
        )
    is_encoder = kind in known.MODEL_FOR_MASKED_LM_MAPPING
    is_causal = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING
    if is_causal and (not is_encoder or "Causal" in name or "LMHead" in name):
        return AutoModelForCausalLM
    if is_encoder:
        return AutoModel
    raise CheckpointError(
        f"{folder} holds a {config.model_type!r}, which is no language model; take a causal one, "
        "such as a Llama, or an encoder, such as BERT"
    )


def _require_memory(needed: int, kept: str, what: Path) -> None:
    free = free_memory()
    if free is not None and needed * _SPARE > free:
        smaller = kept in {"float64", "float32"}
        cure = "give a smaller dtype, such as bfloat16" if smaller else "take a smaller model"
        raise CheckpointError(
            f"the weights of {what} take {needed / 1e9:.1f} GB in {kept}, and "
            f"{free / 1e9:.1f} GB are free: {cure}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load_gguf(
    file: Path, *, dtype: torch.dtype, device: torch.device | str, blocks: bool = False
) -> tuple[nn.Module, PretrainedTokenizer]:
    """Load a causal model from a GGUF, its weights dequantised one after another.

    Args:
        file: the file.
        dtype: of the weights.
        device: where it computes.
        blocks: whether matrices stay in the blocks of the file, as `BlockMatrix`.

    Raises:
        CheckpointError: for a file that is damaged or of an architecture that transformers does not
            know, if there is too little memory, and for blocks that are not computed as they are.
    """
    with needing("transformers"):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.initialization import no_init_weights
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            TensorProcessor,
            load_gguf_checkpoint,
        )
    with _reading(file), _quiet():
        reader = _reader(file)
        with _read_once(reader):
            parsed = load_gguf_checkpoint(str(file))
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        (architecture,) = (reader.fields["general.architecture"].contents(),)
        stored = [_Stored(tensor) for tensor in reader.tensors]
        del reader
        gc.collect()  # of its many small arrays, before the weights come
        if blocks:
            _require_memory(sum(one.size for one in stored), "blocks", file)
        else:
            size = sum(prod(one.shape) for one in stored) * dtype.itemsize
            _require_memory(size, _name(dtype), file)
        config = AutoConfig.for_model(**parsed["config"])
        if config.num_hidden_layers > len(stored):  # which would take for ever to make
            raise CheckpointError(
                f"{file} is damaged: it has {len(stored)} tensors and says that it has "
                f"{config.num_hidden_layers} layers; fetch it again"
            )
        with no_init_weights():
            module = AutoModelForCausalLM.from_config(config, dtype=dtype)
        module.tie_weights()
        processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=parsed["config"])
        names = _names(module, architecture, processor)
        parsed["tensors"] = {}
        if blocks:
            process = partial(processor.process, tensor_key_mapping=names, parsed_parameters=parsed)
            stored = place_blocks(module, stored, names, process, file)
        written = _write(module, stored, names, processor, parsed, file)
    tied = {id(p) for name, p in module.state_dict(keep_vars=True).items() if name in written}
    missing = {name for name, p in module.named_parameters() if id(p) not in tied}
    if missing:
        raise CheckpointError(f"{file} lacks {len(missing)} weights, such as {min(missing)}")
    return module.to(device).eval(), PretrainedTokenizer(tokenizer, str(file))


def _reader(file: Path) -> Any:
    """Return the fields and tensors of a GGUF.

    Raises:
        CheckpointError: for a file that ends before they do, or whose bytes are not what it says.
    """
    with needing("hub"):
        import numpy as np
        from gguf import READER_SUPPORTED_VERSIONS, GGUFReader

    class Reader(GGUFReader):
        """Reads an ordinary array: the hundred thousands of slices of a memmap take seconds."""

        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = np.asarray(mapped)

    try:
        return Reader(file)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError):
        with file.open("rb") as opened:
            version = int.from_bytes(opened.read(8)[4:], "little")
        size = file.stat().st_size
        if size >= 8 and version not in READER_SUPPORTED_VERSIONS:
            raise  # a format of another time, which is no damage
        raise CheckpointError(
            f"{file} is damaged: what its header says does not fit its {size:,} bytes, as of a "
            "download that did not end; fetch it again"
        ) from None


@contextmanager
def _read_once(reader: Any) -> Iterator[None]:
    """Let transformers take the fields that were read: it would read them twice, for seconds."""
    import gguf

    names = vars(gguf)
    own = names["GGUFReader"]
    names["GGUFReader"] = lambda _: reader
    try:
        yield
    finally:
        names["GGUFReader"] = own


def _names(module: nn.Module, architecture: str, processor: Any) -> dict[str, str]:
    """Return the name of a weight in the module for each name in a GGUF."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next((one for one, name in MODEL_ARCH_NAMES.items() if name == architecture), None)
    if kind is None:
        raise ValueError(f"gguf knows no architecture {architecture!r}")
    known = get_tensor_name_map(kind, text_config(module).num_hidden_layers)
    names: dict[str, str] = {}
    for own in module.state_dict():
        base, _, suffix = processor.preprocess_name(own).rpartition(".")
        stored = known.get_name(base)
        if stored is None:
            processor.perform_fallback_tensor_mapping(names, f".{suffix}", "", own)
        else:
            names[f"{stored}.{suffix}"] = own
    return names


class _Stored:
    """A tensor of a GGUF: its type, its shape, and where its bytes are."""

    def __init__(self, tensor: Any) -> None:
        self.name: str = tensor.name
        self.type = tensor.tensor_type
        self.shape = [int(size) for size in reversed(tensor.shape)]
        self.start, self.size = int(tensor.data_offset), int(tensor.n_bytes)

    def read(self, file: Path, first: int = 0, stop: int | None = None) -> Any:
        """Return dequantised rows, float32."""
        import numpy as np
        from gguf import dequantize

        data = self.read_bytes(file, first, stop)
        whole = len(data) == prod(self.shape[:-1])
        shape = [*self.shape[:-1], -1] if whole else [len(data), -1]
        values = dequantize(data.reshape(shape), self.type)
        return values.astype(np.float32, copy=False)

    def read_bytes(self, file: Path, first: int = 0, stop: int | None = None) -> Any:
        """Return rows as they are in the file, (R, bytes)."""
        import numpy as np

        rows = prod(self.shape[:-1])
        row = self.size // rows
        stop = rows if stop is None else stop
        data = np.fromfile(
            file, np.uint8, count=(stop - first) * row, offset=self.start + first * row
        )
        if len(data) != (stop - first) * row:
            raise ValueError(f"it ends within {self.name}")
        return data.reshape(-1, row)


@torch.no_grad()
def _write(
    module: nn.Module,
    stored: list[_Stored],
    names: Mapping[str, str],
    processor: Any,
    parsed: dict[str, Any],
    file: Path,
) -> set[str]:
    """Write a file's tensors into a module; return the names of its weights that were written."""
    targets = module.state_dict(keep_vars=True)
    written = set()
    for one in stored:
        if one.name in {"token_embd.weight", "output.weight"} and one.name in names:
            target = _target(targets, names[one.name], one.shape, file)
            for first in range(0, len(target), _ROWS):
                stop = min(first + _ROWS, len(target))
                target[first:stop] = torch.from_numpy(one.read(file, first, stop))
            written.add(names[one.name])
            continue
        result = processor.process(
            weights=one.read(file),
            name=one.name,
            tensor_key_mapping=names,
            parsed_parameters=parsed,
        )
        if result.name in names:
            values = torch.from_numpy(result.weights)
            _target(targets, names[result.name], list(values.shape), file).copy_(values)
            written.add(names[result.name])
    for name, values in parsed["tensors"].items():  # put together of several, such as experts
        _target(targets, name, list(values.shape), file).copy_(values)
        written.add(name)
    return written


def _target(targets: Mapping[str, Any], name: str, shape: list[int], file: Path) -> Tensor:
    target: Tensor = targets[name].data
    if list(target.shape) != shape:
        raise other_shape(file, name, shape, target.shape)
    return target


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report what the libraries raise for a path as a `CheckpointError` of one line."""
    try:
        with catching_panics():
            yield
    except (CheckpointError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{path} needs the library {error.name}: pip install {error.name}"
        ) from None
    except ImportError as error:  # of a checkpoint that another library quantised
        raise CheckpointError(f"{path} needs a library that is not installed: {error}") from None
    except Exception as error:  # for a damaged file they raise every kind, a bare one among them
        reason = shorten(str(error) or type(error).__name__, _SHOWN, placeholder=" …")
        raise CheckpointError(
            f"{path} holds no language model that transformers can read: {reason}; take one with "
            "its weights and tokenizer"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable progress bars and remarks of transformers inside the block."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
