"""A small GPT for study: model, tokenizers, corpus, training, checkpoints, generation.

`load()` returns the trained model that comes with the package.
"""

from typing import TYPE_CHECKING

from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard.gpt._link_effects import LinkEffects, link_effects
    from regard.gpt.bpe import BPETokenizer
    from regard.gpt.cache import GPTCache
    from regard.gpt.checkpoint import load, load_training, save
    from regard.gpt.config import GPTConfig, Sampling
    from regard.gpt.engine import Engine
    from regard.gpt.errors import CheckpointError, DivergedError, SaveError
    from regard.gpt.generate import (
        generate,
        generate_texts,
        stream,
        stream_text,
        stream_texts,
    )
    from regard.gpt.gpt2 import read_gpt2, write_gpt2
    from regard.gpt.ids import check_ids
    from regard.gpt.model import GPT
    from regard.gpt.parameter_count import ParameterCounts, parameter_counts
    from regard.gpt.tokenizer import CharTokenizer, Tokenizer
    from regard.gpt.training.callbacks import Callback, TensorBoard
    from regard.gpt.training.config import TrainConfig
    from regard.gpt.training.corpus import python_texts, read_texts, split_texts
    from regard.gpt.training.evaluate import evaluate
    from regard.gpt.training.history import HeadHistory, head_history
    from regard.gpt.training.metrics import Metrics
    from regard.gpt.training.packed_corpus import Corpus, open_corpus
    from regard.gpt.training.prepare import prepare
    from regard.gpt.training.result import TrainResult
    from regard.gpt.training.resume import recipe_of
    from regard.gpt.training.schedule import learning_rate
    from regard.gpt.training.train import train

__all__ = [
    "GPT",
    "BPETokenizer",
    "Callback",
    "CharTokenizer",
    "CheckpointError",
    "Corpus",
    "DivergedError",
    "Engine",
    "GPTCache",
    "GPTConfig",
    "HeadHistory",
    "LinkEffects",
    "Metrics",
    "ParameterCounts",
    "Sampling",
    "SaveError",
    "TensorBoard",
    "Tokenizer",
    "TrainConfig",
    "TrainResult",
    "check_ids",
    "evaluate",
    "generate",
    "generate_texts",
    "head_history",
    "learning_rate",
    "link_effects",
    "load",
    "load_training",
    "open_corpus",
    "parameter_counts",
    "prepare",
    "python_texts",
    "read_gpt2",
    "read_texts",
    "recipe_of",
    "save",
    "split_texts",
    "stream",
    "stream_text",
    "stream_texts",
    "train",
    "write_gpt2",
]

_HOMES = {
    "GPT": "model",
    "BPETokenizer": "bpe",
    "Callback": "training.callbacks",
    "CharTokenizer": "tokenizer",
    "CheckpointError": "errors",
    "Corpus": "training.packed_corpus",
    "DivergedError": "errors",
    "Engine": "engine",
    "GPTCache": "cache",
    "GPTConfig": "config",
    "HeadHistory": "training.history",
    "LinkEffects": "_link_effects",
    "Metrics": "training.metrics",
    "ParameterCounts": "parameter_count",
    "Sampling": "config",
    "SaveError": "errors",
    "TensorBoard": "training.callbacks",
    "Tokenizer": "tokenizer",
    "TrainConfig": "training.config",
    "TrainResult": "training.result",
    "check_ids": "ids",
    "evaluate": "training.evaluate",
    "generate": "generate",
    "generate_texts": "generate",
    "head_history": "training.history",
    "learning_rate": "training.schedule",
    "link_effects": "_link_effects",
    "load": "checkpoint",
    "load_training": "checkpoint",
    "open_corpus": "training.packed_corpus",
    "parameter_counts": "parameter_count",
    "prepare": "training.prepare",
    "python_texts": "training.corpus",
    "read_gpt2": "gpt2",
    "read_texts": "training.corpus",
    "recipe_of": "training.resume",
    "save": "checkpoint",
    "split_texts": "training.corpus",
    "stream": "generate",
    "stream_text": "generate",
    "stream_texts": "generate",
    "train": "training.train",
    "write_gpt2": "gpt2",
}
make_lazy(__name__, _HOMES)
