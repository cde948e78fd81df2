"""The recipe of training, a frozen dataclass that the API, the CLI and checkpoints share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.gpt._fields import (
    option,
    require_choice,
    require_count,
    require_flag,
    require_number,
)
from regard.gpt.utf8 import normalized

Precision = Literal["auto", "float32", "bfloat16"]
Compile = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a GPT is trained. Every field's `metadata["help"]` holds its one-line description.

    Raises:
        ValueError: a field is out of its range.

    >>> TrainConfig(steps=10, warmup=2).batch
    8
    >>> TrainConfig(steps=4000).warmup, TrainConfig(steps=50).warmup
    (100, 5)
    """

    tokenizer: Literal["bpe", "char"] = option(
        "bpe", "bpe: byte-level BPE trained on the text; char: one token a character"
    )
    steps: int = option(4000, "number of updates")
    batch: int = option(
        8, "sequences that pass through the model at once, each of the model's context"
    )
    accumulate: int = option(1, "passes whose gradients are added up for one update")
    learning_rate: float = option(3e-3, "highest learning rate, reached after the warm-up")
    embedding_rate: float = option(
        1.0, "learning rate of the embeddings, as a share of all others'"
    )
    schedule: Literal["cosine", "wsd"] = option(
        "cosine",
        "how the learning rate falls: half a cosine; wsd: it stays, then falls in a straight line",
    )
    decay: float = option(0.2, "of schedule wsd: share of the updates, the last, in which it falls")
    final: float = option(0.05, "learning rate at the end, as a share of the highest")
    warmup: int = option(
        None,
        "updates over which the learning rate rises linearly; none: a tenth of steps, but 100 at "
        "most",
    )
    optimizer: Literal["adamw", "muon"] = option(
        "adamw", "adamw; or muon for the matrices of the blocks, with adamw for the rest"
    )
    weight_decay: float = option(0.1, "decay of weights of two dimensions, and of no others")
    beta1: float = option(0.9, "AdamW's decay of the gradient's running mean")
    beta2: float = option(0.95, "AdamW's decay of the squared gradient's running mean")
    clip: float = option(1.0, "largest norm of the gradient; longer ones are scaled down to it")
    repeats: float = option(
        0.0,
        "share of the sequences that are a random span of tokens, repeated: induction heads form "
        "sooner, and the text is learned more slowly",
    )
    ramp: float = option(
        0.45, "share of the updates over which windows double thrice, from an eighth of the context"
    )
    focus: float = option(
        0.0,
        "share of the updates, the first, in which a token counts a tenth in the loss unless it is "
        "rare in the text and stands in the same document before",
    )
    document_mask: bool = option(
        default=False, text="keep attention within a document, where a window holds more than one"
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "of the matrix products; auto: bfloat16 where this processor gains from it"
    )
    compile: Literal["auto", "on", "off"] = option(
        "auto", "torch.compile; auto: off, since it gains little on a CPU"
    )
    validation: float = option(
        0.05, "share of the text held out, to measure the loss on 65,536 tokens of it at most"
    )
    evaluate_every: int = option(200, "updates between two validations, each with a checkpoint")
    keep_every: int = option(
        0, "keep the checkpoint of every update that this divides; 0: the latest checkpoint alone"
    )
    record_every: int = option(
        0, "updates between two recordings of what the heads do on a probe text; 0: none"
    )
    probe: str = option(
        "", "that text; without it, the start of what is held out, twice over for induction heads"
    )
    log_every: int = option(
        10, "on a GPU, updates between two readings of the loss, for which it is waited for"
    )
    seed: int = option(0, "fixes the split, the first weights, the batches and the dropout")

    def __post_init__(self) -> None:
        require_choice(self, "tokenizer", "bpe", "char")
        require_choice(self, "schedule", "cosine", "wsd")
        require_choice(self, "optimizer", "adamw", "muon")
        require_choice(self, "precision", "auto", "float32", "bfloat16")
        require_choice(self, "compile", "auto", "on", "off")
        require_flag(self, "document_mask")
        for name in ("steps", "batch", "accumulate", "evaluate_every", "log_every"):
            require_count(self, name, least=1)
        if self.warmup is None:  # the default is resolved here, so that the recipe records it
            object.__setattr__(self, "warmup", min(100, self.steps // 10))
        for name in ("warmup", "keep_every", "record_every"):
            require_count(self, name, least=0)
        require_count(self, "seed", least=0, most=2**63 - 1)  # the range of torch's generators
        for name in ("learning_rate", "embedding_rate", "clip"):
            require_number(self, name, above=0.0)
        require_number(self, "weight_decay", least=0.0)
        for name in ("final", "ramp", "decay", "focus"):
            require_number(self, name, least=0.0, most=1.0)
        for name in ("beta1", "beta2", "repeats"):
            require_number(self, name, least=0.0, below=1.0)
        require_number(self, "validation", above=0.0, below=1.0)
        probe = normalized(self.probe) if type(self.probe) is str else None
        if probe is None or (self.probe and not probe):
            raise ValueError(f"TrainConfig.probe is {self.probe!r}; expected a text")
        object.__setattr__(self, "probe", probe)  # as the text that it is trained on is read
        self._require_fit()

    def _require_fit(self) -> None:
        if self.warmup > self.steps:
            raise ValueError(
                f"TrainConfig.warmup is {self.warmup} of steps={self.steps} updates; "
                "expected at most as many; leave it out for a tenth of them"
            )
        if self.keep_every % self.evaluate_every:
            raise ValueError(
                f"TrainConfig.keep_every is {self.keep_every} and checkpoints come every "
                f"evaluate_every={self.evaluate_every} updates; expected a multiple of that, or 0"
            )
