"""The readers of a user's files, and small files of each, for fuzz_readers.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import regard
from regard.errors import Error
from small_gguf import write_gguf

TEXT = "the cat sat on the mat, the dog sat on the cat — naïvely 你好.\n" * 9


@dataclass(frozen=True)
class Reader:
    """What makes small files in a folder, what reads them, and the errors by which it refuses."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    refuses: tuple[type[Exception], ...] = (Error, OSError)


def _recording(folder: Path) -> None:
    query, key = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 7, 3)
    mask = regard.causal() & regard.padding(torch.tensor([[0, 1, 1, 1, 1, 1, 1]]))
    with regard.record() as recording:
        regard.attention(query, key, key, mask=mask, sink=torch.randn(4))
        regard.attention(query, key, key, mask=regard.dense(torch.rand(5, 7) < 0.6))
    recording.save(folder)
    # As version 1, which has no checksums: they would refuse nearly everything at the door.
    index = json.loads((folder / "recording.json").read_bytes())
    del index["sha256"]
    (folder / "recording.json").write_text(json.dumps({**index, "version": 1}))


def _read_recording(folder: Path) -> None:
    for layer in regard.load(folder).layers:
        layer.pattern.read(regard.readouts.Entropy(), regard.readouts.TopK(2))


def _gpt(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    from regard.gpt import GPT, BPETokenizer, GPTConfig, save

    tokenizer = BPETokenizer.train([TEXT], vocab_size=280)
    size = tokenizer.vocab_size
    save(folder, GPT(GPTConfig(context=8, layers=1, heads=2, dim=4, vocab_size=size)), tokenizer)
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights)  # without checksums


def _read_gpt(folder: Path) -> None:
    from regard.gpt import load

    model, tokenizer = load(folder)
    model(torch.tensor([tokenizer.encode("the cat")[:3]]))


def _tokenizer(folder: Path) -> None:
    from regard.gpt import BPETokenizer

    (folder / "tokenizer.json").write_text(
        BPETokenizer.train([TEXT], vocab_size=280).to_json(), "utf-8"
    )


def _read_tokenizer(folder: Path) -> None:
    from regard.gpt.checkpoint import load_tokenizer

    load_tokenizer(folder / "tokenizer.json")


def _run(folder: Path) -> None:
    from rich.console import Console

    from regard.gpt import GPTConfig, TrainConfig, train

    config = TrainConfig(
        tokenizer="char", steps=3, warmup=1, batch=2, evaluate_every=2, record_every=2
    )
    shape = GPTConfig(context=8, layers=1, heads=2, dim=8)
    train(folder, texts=[TEXT], gpt=shape, config=config, console=Console(quiet=True))


def _read_run(folder: Path) -> None:
    from regard.gpt import load_training, recipe_of
    from regard.gpt.training.checkpoints import TrainingRunFolder
    from regard.page.training import training_of

    recipe_of(folder)
    load_training(folder)
    TrainingRunFolder.latest(folder).load()
    training = training_of(folder)
    assert training is not None
    training.describe()


def _corpus(folder: Path) -> None:
    from rich.console import Console

    from regard.gpt import prepare

    prepare(folder / "corpus", [TEXT], tokenizer="char", console=Console(quiet=True))


def _read_corpus(folder: Path) -> None:
    from regard.gpt import open_corpus

    corpus = open_corpus(folder / "corpus", verify=False)
    corpus.training[:9].tolist()
    _ = corpus.fingerprint, corpus.bytes_per_token


def _texts(folder: Path) -> None:
    (folder / "a.txt").write_text(TEXT, "utf-8")
    rows = [
        json.dumps({"text": line, "id": number}) for number, line in enumerate(TEXT.split("\n"))
    ]
    (folder / "b.jsonl").write_text("\n".join(rows))


def _read_texts(folder: Path) -> None:
    from regard.cli.text import read_text
    from regard.gpt import read_texts
    from regard.lens.head_atlas.corpus import Corpus

    for read in (lambda: read_text(None, folder / "a.txt"), lambda: read_texts(folder)):
        try:
            read()
        except Error:
            continue  # and the others read it too
    list(Corpus(folder))


def _recipe(folder: Path) -> None:
    (folder / "recipe.toml").write_text(
        '[gpt]\ncontext = 64\nlayers = 2\npositions = "rotary"\ndropout = 0.1\n\n'
        "[config]\nsteps = 100\nlearning_rate = 3e-4\nbatch = 8\n"
    )


def _read_recipe(folder: Path) -> None:
    from regard.cli.options import Overrides, read_fields
    from regard.gpt import GPTConfig, TrainConfig

    kinds: dict[str, Any] = {"gpt": GPTConfig, "config": TrainConfig}
    values = read_fields(folder / "recipe.toml", kinds)
    for kind in kinds.values():
        own = {name: value for name, value in values.items() if name in kind.__dataclass_fields__}
        Overrides(kind=kind, values=own, names={}).apply()


def _atlas(folder: Path) -> None:
    model = regard.models.open()
    atlas = regard.lens.atlas(model, [TEXT[:60], TEXT[20:90]], probes=False)
    atlas.save(folder)


def _read_atlas(folder: Path) -> None:
    atlas = regard.lens.Atlas.load(folder)
    atlas.frame()
    atlas.details(0, 0)


def _headvis(folder: Path) -> None:
    atlas = regard.lens.atlas(regard.models.open(), [TEXT[:40]], probes=False)
    regard.lens.export_headvis(atlas, folder, name="tiny", dataset="cats")
    for file in folder.rglob("heads/*.json"):
        if file.name != "L0H0.json":
            file.unlink()


def _read_headvis(folder: Path) -> None:
    (config,) = folder.rglob("config.json")
    tree = regard.lens.load_headvis(config.parent)
    tree.frame()
    tree.details(0, 0)


def _monitor(folder: Path) -> None:
    from regard.lens.monitor import JSONLinesWriter

    write = JSONLinesWriter(folder / "attention.jsonl")
    for update in range(9):
        write(update, {"attention/max_logit/3.5": 12.5 + update, "attention/entropy/0.1": 0.25})


def _read_monitor(folder: Path) -> None:
    from regard.lens.monitor import JSONLinesWriter

    JSONLinesWriter(folder / "attention.jsonl")(7, {"x": 1.0})


def _ollama(folder: Path) -> None:
    manifest = folder / "manifests" / "registry.ollama.ai" / "library" / "small" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:00ff", "size": 4}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    (folder / "blobs").mkdir()
    (folder / "blobs" / "sha256-00ff").write_bytes(b"GGUF")


def _read_ollama(folder: Path) -> None:
    from regard.models.sources import find

    os.environ["OLLAMA_MODELS"] = str(folder)
    find("ollama:small")


def _llama() -> tuple[Any, Any]:
    """Return a tiny Llama of transformers and its tokenizer."""
    import transformers as hf
    from tokenizers import Tokenizer

    from regard.gpt import BPETokenizer

    inner = Tokenizer.from_str(BPETokenizer.train([TEXT], vocab_size=270).to_json())
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=inner)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    config = hf.LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads)
    return hf.LlamaForCausalLM(config), tokenizer


def _pretrained(folder: Path) -> None:
    for one in _llama():
        one.save_pretrained(folder)


def _read_pretrained(folder: Path) -> None:
    regard.models.open(folder)


def _gguf(folder: Path) -> None:
    model, tokenizer = _llama()
    write_gguf(folder / "a.gguf", model, tokenizer, lambda _, weight: (weight.numpy(), None))


def _read_gguf(folder: Path) -> None:
    regard.models.open(folder / "a.gguf")


READERS = {
    "atlas": Reader(_atlas, _read_atlas),
    "corpus": Reader(_corpus, _read_corpus),
    "gguf": Reader(_gguf, _read_gguf),
    "gpt": Reader(_gpt, _read_gpt),
    # Its docstrings promise ValueError for a damaged file and KeyError for a head it has not.
    "headvis": Reader(_headvis, _read_headvis, (Error, OSError, ValueError, KeyError)),
    "monitor": Reader(_monitor, _read_monitor),
    "ollama": Reader(_ollama, _read_ollama),
    "pretrained": Reader(_pretrained, _read_pretrained),
    "recipe": Reader(_recipe, _read_recipe),
    "recording": Reader(_recording, _read_recording),
    "run": Reader(_run, _read_run),
    "texts": Reader(_texts, _read_texts),
    "tokenizer": Reader(_tokenizer, _read_tokenizer),
}
