"""Reads and writes GPT-2 in the file format of `transformers`.

A folder holds `config.json`, `model.safetensors` (or several files and an index) and the
tokenizer's files. Only JSON, text and safetensors are read, never a pickled `pytorch_model.bin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from regard._files import replace_files
from regard.gpt._gpt2_config import config_of, gpt2_config
from regard.gpt.bpe import BPETokenizer
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import CONFIG, INDEX, TOKENIZER, WEIGHTS, dump_json, load_json
from regard.gpt.hub import MERGES, VOCABULARY, model_folder
from regard.gpt.int8 import int8_state, to_int8
from regard.gpt.model import GPT
from regard.gpt.model_files import (
    count_layers,
    load_into_huge_pages,
    opened,
    read_shapes,
    require_weight,
)
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.unwrap import as_gpt, require_own_tokenizer, weights_to_write

_PREFIX = "transformer."
_UNEMBEDDING = "lm_head.weight"
_EMBEDDING = "wte.weight"
# Stored as `Conv1D`, ``(in, out)``, while `nn.Linear` has ``(out, in)``.
_TRANSPOSED = re.compile(r"h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
# Old files hold the causal mask and its fill value as buffers.
_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


def read_gpt2(path_or_name: str | Path, *, int8: bool = False) -> GPT:
    """Read GPT-2's weights from files of `transformers`: `config.json` and safetensors.

    The weights may lie in one file or in several with an index. Their names may begin with
    `transformer.`; a `Conv1D` stores the transpose of `nn.Linear`'s matrix, so all of these are
    transposed; an `lm_head` must equal the embedding, since the two are tied. Nothing pickled is
    ever read. With its tokenizer: `regard.gpt.load`.

    Args:
        path_or_name: a folder; or, where it does not exist, the name of a model on the Hugging Face
            hub, such as ``"openai-community/gpt2"``. If that library's cache lacks it, it is
            fetched through `huggingface_hub` (the extra `hub`), and stays there.
        int8: whether its matrices become int8, each as soon as it is read.

    Returns:
        The model, in evaluation mode and in float32 whatever precision the file has.

    Raises:
        CheckpointError: there is no such folder or model, no network, or a file that is missing or
            damaged; or the model is not a GPT-2, or has options that are not supported: the message
            names the field or the weight; so for one that is NaN, infinite or not of floating
            point.

    Example:
        >>> import tempfile
        >>> from regard.gpt import GPT, GPTConfig, read_gpt2, write_gpt2
        >>> model = GPT(GPTConfig(vocab_size=11, context=8, layers=1, heads=2, dim=4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_gpt2(model, folder)
        ...     again = read_gpt2(folder)
        >>> bool((again.wte.weight == model.wte.weight).all())
        True
    """
    folder = model_folder(path_or_name, fetch=True, parts=("weights",))
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} is not a model: it has no {CONFIG}")
    config = config_of(folder / CONFIG)
    files = _weight_files(folder)
    _require_fit(files, config.layers, folder)
    with torch.device("meta"):  # the weights are those of the files: none are drawn
        model = GPT(config)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    weights = _weights(files, expected, folder)
    if int8:
        to_int8(model)
        state = int8_state(model, weights)
    else:
        state = load_into_huge_pages(expected, weights)
    model.load_state_dict(state, assign=True)
    return model.eval()


def _weights(
    files: Mapping[Path, set[str] | None], expected: Mapping[str, tuple[int, ...]], folder: Path
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of these shapes, as we keep them and by our names, one after another."""
    missing = set(expected)
    tied: dict[str, Tensor] = {}
    for path, stored, weight in _read(files):
        name = stored.removeprefix(_PREFIX)
        if _BUFFER.fullmatch(name):
            continue
        require_weight(path, stored, weight)
        if name in (_UNEMBEDDING, _EMBEDDING):
            tied[name] = weight
        if name == _UNEMBEDDING:
            continue
        if _TRANSPOSED.fullmatch(name) and weight.ndim == 2:
            weight = weight.mT.contiguous()  # noqa: PLW2901 (the same weight, as we keep it)
        if expected.get(name) != tuple(weight.shape) or name not in missing:
            raise CheckpointError(_misfit(path, stored, weight, expected.get(name), folder))
        missing.remove(name)
        yield name, weight
    if missing:
        raise CheckpointError(
            f"{folder} lacks the weight {min(missing)} that its {CONFIG} asks for"
        )
    if len(tied) == 2 and not tied[_UNEMBEDDING].float().equal(tied[_EMBEDDING].float()):
        raise CheckpointError(
            f"{folder} has an {_UNEMBEDDING} that differs from {_EMBEDDING}; only models whose "
            "embeddings are tied are supported"
        )


def read_gpt2_tokenizer(path_or_name: str | Path) -> BPETokenizer:
    """Return the tokenizer of a GPT-2 as `transformers` keeps it.

    Args:
        path_or_name: as for `read_gpt2`. The folder holds `tokenizer.json`, or `vocab.json` and
            `merges.txt`.

    Raises:
        CheckpointError: as for `read_gpt2`; or there is no tokenizer, or one of another kind.
    """
    folder = model_folder(path_or_name, fetch=True, parts=("tokenizer",))
    vocabulary, merges = folder / VOCABULARY, folder / MERGES
    try:
        if (folder / TOKENIZER).is_file():
            return BPETokenizer.load(folder)
        if vocabulary.is_file() and merges.is_file():
            return BPETokenizer.from_files(vocabulary, merges)
    except ValueError as error:
        raise CheckpointError(f"{folder} has a tokenizer that can't be used: {error}") from None
    raise CheckpointError(
        f"{folder} has no tokenizer: neither {TOKENIZER}, nor {VOCABULARY} and {MERGES}"
    )


def write_gpt2(model: nn.Module, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write files that `GPT2LMHeadModel.from_pretrained` of `transformers` reads.

    Args:
        model: the model, as it is or wrapped.
        folder: the folder; made if it does not exist. Its files are replaced, the weights last.
        tokenizer: written too, for `AutoTokenizer.from_pretrained`; a `BPETokenizer`.

    Raises:
        ValueError: GPT-2 lacks an option of this model, or the tokenizer is another model's; the
            message names the field. Or the weights are int8, shards of FSDP, or not finite.
        TypeError: `model` is no GPT, or `transformers` can't read this kind of tokenizer.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from regard.gpt import GPT, GPTConfig, write_gpt2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_gpt2(GPT(GPTConfig(layers=1, heads=2, dim=4)), folder)
        ...     print(*sorted(path.name for path in Path(folder).iterdir()))
        config.json model.safetensors
    """
    folder, model = Path(folder), as_gpt(model)
    own = weights_to_write(model)
    contents = {folder / CONFIG: dump_json(gpt2_config(model.config))}
    if tokenizer is not None:
        contents |= _tokenizer_files(folder, tokenizer, model)
    weights = {
        _PREFIX + name: (weight.mT if _TRANSPOSED.fullmatch(name) else weight).contiguous()
        for name, weight in ((n, w.cpu()) for n, w in own.items())
    }
    contents[folder / WEIGHTS] = safetensors.torch.save(weights, metadata={"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    replace_files(contents)


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Return the files of weights, and the names that the index lists for each."""
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: None}
    if (folder / INDEX).is_file():
        places = load_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise CheckpointError(f"{folder / INDEX} is damaged: it has no weight_map")
        files: dict[Path, set[str] | None] = {}
        for name, file in places.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(f"{folder / INDEX} is damaged: {file!r} is not a file name")
            if not (folder / file).is_file():
                raise CheckpointError(f"{folder / file}, which {INDEX} names, is missing")
            listed = files.setdefault(folder / file, set())
            assert listed is not None, "it is one of these sets"
            listed.add(name)
        return files
    pickled = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickled:
        raise CheckpointError(
            f"{folder} has its weights pickled ({pickled[0]}), and reading a pickle runs "
            "any code in it; if you trust it, convert it once: transformers.GPT2LMHeadModel."
            "from_pretrained(folder).save_pretrained(folder)"
        )
    raise CheckpointError(f"{folder} is not a model: it has neither {WEIGHTS} nor {INDEX}")


def _read(files: Mapping[Path, set[str] | None]) -> Iterator[tuple[Path, str, Tensor]]:
    """One weight after another, so that no file is in memory twice."""
    for path, listed in files.items():
        with opened(path) as file:
            names = set(file.keys())
            if listed is not None and names != listed:
                odd = min(names ^ listed)
                raise CheckpointError(f"{path} and {INDEX} do not agree on the weight {odd}")
            for name in sorted(names):
                yield path, name, file.get_tensor(name)


def _require_fit(files: Mapping[Path, set[str] | None], layers: int, folder: Path) -> None:
    """Count layers in the files' headers, before a model is made."""
    count = sum(count_layers(read_shapes(path)) for path in files)
    if count != layers:
        raise CheckpointError(
            f"{folder} has {count} layers, and its {CONFIG} says n_layer={layers}"
        )


def _misfit(
    path: Path, name: str, weight: Tensor, expected: tuple[int, ...] | None, folder: Path
) -> str:
    if expected is None:
        return f"{path} holds the weight {name}, which a GPT-2 with a language head does not have"
    if expected == tuple(weight.shape):
        return f"{path} holds the weight {name} a second time"
    return (
        f"{path} has {name} of shape {tuple(weight.shape)} (as we keep it), but {folder / CONFIG} "
        f"requires {expected}"
    )


def _tokenizer_files(folder: Path, tokenizer: Tokenizer, model: GPT) -> dict[Path, bytes]:
    if not isinstance(tokenizer, BPETokenizer):
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__}, which transformers can't read; save "
            "without it, or save both with regard.gpt.save"
        )
    require_own_tokenizer(model, tokenizer)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.context,
        "clean_up_tokenization_spaces": False,
    }
    return {
        folder / TOKENIZER: tokenizer.to_json().encode(),
        folder / "tokenizer_config.json": dump_json(about),
    }
