"""A trained model, and the record of its training."""

from __future__ import annotations

import platform
import signal
from dataclasses import asdict, dataclass, field
from math import log
from typing import Any

import torch

from regard.gpt.model import GPT
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.packed_corpus import Corpus


@dataclass
class TrainState:
    """The progress of a training run, besides model and optimizer."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """A trained model and the record of its training.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer.
        signal: the signal that ended training early: SIGINT, which Ctrl-C sends, or SIGTERM; None
            if all updates were made.
        record: the content of `training.json`.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(folder, texts=["abc " * 200], gpt=gpt, config=config, console=quiet)
        >>> result.interrupted, result.tokenizer.decode(result.tokenizer.encode("cab"))
        (False, 'cab')
    """

    model: GPT
    tokenizer: Tokenizer
    signal: signal.Signals | None
    record: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended training early."""
        return self.signal is not None


def training_record(
    state: TrainState, corpus: Corpus, config: TrainConfig, *, interrupted: bool
) -> dict[str, Any]:
    """Return the content of `training.json`."""
    last = state.history[-1] if state.history else {"loss": None, "validation_loss": None}
    return {
        "step": state.step,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "interrupted": interrupted,
        "loss": last["loss"],
        "validation_loss": last["validation_loss"],
        "bits_per_byte": bits_per_byte(last["validation_loss"], corpus),
        "training_tokens": len(corpus.training),
        "validation_tokens": len(corpus.validation),
        "corpus": corpus.manifest["source"],
        "config": asdict(config),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "history": state.history,
    }


def bits_per_byte(loss: float | None, corpus: Corpus) -> float | None:
    """Convert a loss in nats per token to bits per byte of held-out text."""
    return None if loss is None else loss / log(2) / corpus.bytes_per_token
