"""A GPT to look into: model, tokenizers, corpus, training, checkpoints, sampling.

`load()` gives the trained model that comes with the package. This room needs the libraries of
the `gpt` extra: `pip install 'regard[gpt]'`.
"""

try:
    from regard.gpt.bpe import BPETokenizer
    from regard.gpt.checkpoint import CheckpointError, load, load_training, save
    from regard.gpt.config import GPTConfig
    from regard.gpt.corpus import CorpusError, python_texts, read_texts, split_texts
    from regard.gpt.counts import ParameterCounts, parameter_counts
    from regard.gpt.generate import generate, stream, stream_text
    from regard.gpt.model import GPT
    from regard.gpt.schedule import learning_rate
    from regard.gpt.tokenizer import CharTokenizer, Tokenizer
    from regard.gpt.train import Report, Training, evaluate, train
    from regard.gpt.train_config import TrainConfig
except ModuleNotFoundError as error:
    library = (error.name or "").partition(".")[0]
    if library not in {"rich", "safetensors", "tokenizers"}:
        raise
    message = f"regard.gpt needs the library {library}: pip install 'regard[gpt]'"
    raise ModuleNotFoundError(message, name=library) from None

__all__ = [
    "GPT",
    "BPETokenizer",
    "CharTokenizer",
    "CheckpointError",
    "CorpusError",
    "GPTConfig",
    "ParameterCounts",
    "Report",
    "Tokenizer",
    "TrainConfig",
    "Training",
    "evaluate",
    "generate",
    "learning_rate",
    "load",
    "load_training",
    "parameter_counts",
    "python_texts",
    "read_texts",
    "save",
    "split_texts",
    "stream",
    "stream_text",
    "train",
]
