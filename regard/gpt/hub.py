"""A model's folder, by its path or by a name on the Hugging Face hub.

Models of the hub are in the cache of `huggingface_hub` (the extra `hub`), shared with other
programs. They are downloaded only on request, each file completely or not at all, and never
pickled ones.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Literal

from regard._extras import install
from regard.gpt._gpt2_config import config_of
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import CONFIG, INDEX, TOKENIZER, WEIGHTS, load_json

Part = Literal["weights", "tokenizer"]

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""A tokenizer in GPT-2's own two files."""
_TOKENIZERS = ({TOKENIZER}, {VOCABULARY, MERGES}, {"vocab.txt"}, {"tokenizer.model"})
"""The files of a tokenizer, the preferred ones first."""
_SECONDS = 10.0
"""Timeout of a request to the hub; the library has the same for a file's size."""
# The hub's own rule for names; its library takes too long to import to refuse a misspelt one.
_NAME = re.compile(r"(?!.*(--|\.\.))\w[\w.-]{,95}(/\w[\w.-]{,95})?(?<![.-])(?<!\.git)", re.ASCII)


def model_folder(
    path_or_name: str | Path,
    *,
    fetch: bool = False,
    parts: tuple[Part, ...] = ("weights", "tokenizer"),
    announce: Callable[[str], None] | None = None,
    revision: str | None = None,
    check: Callable[[Path], object] = config_of,
    beside: Sequence[str] = (),
) -> Path:
    """Return the folder of a model.

    Args:
        path_or_name: a folder or, if it does not exist, a name on the hub, such as
            ``"openai-community/gpt2"``, which is looked up in the hub's cache.
        fetch: whether to download a model that the cache lacks, with a progress bar per file; what
            an earlier download left is continued.
        parts: the parts that the folder must hold besides `config.json`.
        announce: called with the name and size of a download before it starts.
        revision: a branch, tag or commit on the hub; None is its main branch.
        check: raises a `CheckpointError` for the path of a `config.json` that is not wanted, before
            the weights are downloaded; by default for all but a GPT-2.
        beside: patterns of further files that are downloaded if they are there.

    Raises:
        CheckpointError: if there is neither such a folder nor a complete model of that name in the
            cache, or it can't be downloaded; the message names what is missing and the cure.
    """
    folder = Path(path_or_name)
    if folder.is_dir():
        return folder
    name = str(path_or_name)
    if folder.exists() or isinstance(path_or_name, Path) or not _NAME.fullmatch(name):
        raise _no_model(name, "is a file" if folder.exists() else "does not exist")
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError as missing:
        raise CheckpointError(
            f"there is no folder {name} here, and a model of the Hugging Face hub needs the "
            f"library {missing.name}: {install('hub')}"
        ) from None
    cached = None
    if Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir():
        from huggingface_hub import try_to_load_from_cache  # takes longer to import than to look

        cached = try_to_load_from_cache(name, CONFIG, revision=revision)
    lacking = "that model"
    if isinstance(cached, str):
        folder = Path(cached).parent
        check(folder / CONFIG)  # refuse another architecture before its weights are downloaded
        names = _missing(folder, parts)
        if not names:
            return folder
        lacking = f"its {', '.join(names)}"
    if fetch:
        return _fetched(name, parts, announce, revision, check, beside)
    raise CheckpointError(
        f"there is no folder {name} here, and the Hugging Face hub's cache "
        f"{constants.HF_HUB_CACHE} lacks {lacking}: fetch it once with fetch=True, or give the "
        "folder of a model"
    )


def _no_model(name: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{name} {problem}; expected a model's folder, such as `regard train` writes, or a name on "
        "the Hugging Face hub, such as openai-community/gpt2"
    )


def _missing(folder: Path, parts: Container[Part]) -> list[str]:
    """Return the files that a folder in the cache lacks."""
    present = {path.name for path in folder.iterdir() if path.is_file()}
    missing = []
    if "weights" in parts and WEIGHTS not in present:
        missing += sorted(_listed(folder) - present) if INDEX in present else [WEIGHTS]
    if "tokenizer" in parts and not any(kind <= present for kind in _TOKENIZERS):
        missing.append(TOKENIZER)
    return missing


def _listed(folder: Path) -> set[str]:
    """Return the files of weights that an index names; what is wrong with it, the reader says."""
    places = load_json(folder / INDEX).get("weight_map")
    return {str(file) for file in places.values()} if isinstance(places, dict) else set()


def _fetched(
    name: str,
    parts: Container[Part],
    announce: Callable[[str], None] | None,
    revision: str | None,
    check: Callable[[Path], object],
    beside: Sequence[str],
) -> Path:
    """Download the needed files into the cache, the configuration first, which is checked.

    Files are downloaded one by one in this thread, so that Ctrl-C takes effect immediately.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        # First, since without a network this fails immediately, while a download retries.
        listing = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=_SECONDS)
        sizes = {file.rfilename: file.size or 0 for file in listing.siblings or ()}
        _require_config(name, sizes)
        folder = Path(hf_hub_download(name, CONFIG, revision=revision)).parent
        check(folder / CONFIG)
        wanted = _tokenizer_files(name, sizes) if "tokenizer" in parts else []
        wanted += [
            file
            for file in sizes
            if file not in {CONFIG, *wanted} and any(fnmatch.fnmatch(file, one) for one in beside)
        ]
        if "weights" in parts:
            wanted += _weight_files(name, sizes)
        if announce is not None:
            total = sum(sizes[file] for file in wanted)
            announce(f"fetching {name} ({total / 1e6:,.1f} MB) into {HF_HUB_CACHE}")
        for file in wanted:
            hf_hub_download(name, file, revision=folder.name)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"there is no folder {name} here, and it could not be fetched from the Hugging Face "
            f"hub: {_reason(name, error)}"
        ) from error
    return folder


def _require_config(name: str, files: Container[str]) -> None:
    if CONFIG not in files:
        raise CheckpointError(
            f"{name} on the Hugging Face hub is no model of transformers: it lacks {CONFIG}"
        )


def _weight_files(name: str, files: Iterable[str]) -> list[str]:
    """Return the files of a repository that hold the weights, an index first."""
    if WEIGHTS in files:
        return [WEIGHTS]
    if INDEX in files:
        return [INDEX, *sorted(fnmatch.filter(files, "model-*.safetensors"))]
    pickled = sorted(fnmatch.filter(files, "pytorch_model*.bin"))
    cure = (
        f" but {pickled[0]}, and reading a pickle runs any code in it; if you trust it, convert it "
        f"once: transformers.AutoModelForCausalLM.from_pretrained({name!r}).save_pretrained(folder)"
    )
    raise CheckpointError(
        f"{name} on the Hugging Face hub has no {WEIGHTS}{cure if pickled else ''}"
    )


def _tokenizer_files(name: str, files: Iterable[str]) -> list[str]:
    for kind in _TOKENIZERS:
        if kind <= set(files):
            return sorted(kind, reverse=True)
    raise CheckpointError(
        f"{name} on the Hugging Face hub has no tokenizer: neither {TOKENIZER}, nor {VOCABULARY} "
        f"and {MERGES}"
    )


def _reason(name: str, error: Exception) -> str:
    """Return why the download failed, and the cure."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "the environment variable HF_HUB_OFFLINE forbids it; unset it"
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/{name}"
        return f"its owner asks for consent; give it on {page}, and log in with hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "it has no such model, or a private one; check the name, or log in: hf auth login"
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:  # such as a full disk
        return reason
    return f"{reason}; check the connection to the network"
