"""What a model is: a frozen dataclass that every place which needs a shape shares.

The Python interface, the command line, its help texts and the checkpoints read the same fields, so
that a default is written in one place. The defaults, with those of `TrainConfig`, are the recipe of
the model that ships with the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from regard.gpt._fields import option, require_count, require_number

GPT2Size = Literal["small", "medium", "large", "xl"]

# Layers, heads, dim: "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019),
# table 2. The head counts are those of the published models.
_GPT2_SIZES: dict[str, tuple[int, int, int]] = {
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a GPT, in the layout of GPT-2.

    Every field's `metadata["help"]` holds its one-line description.

    Raises:
        ValueError: a field is out of its range, or `dim` is not a multiple of `heads`.

    >>> GPTConfig(layers=2, heads=2, dim=64).head_dim
    32
    """

    vocab_size: int = option(1024, "V: number of different tokens")
    context: int = option(256, "T: most tokens that the model sees at once")
    layers: int = option(4, "number of blocks")
    heads: int = option(4, "H: attention heads of a block")
    dim: int = option(128, "E: width of the residual stream, a multiple of heads")
    dropout: float = option(
        0.0, "share of embeddings, attention weights and what a block adds, dropped in training"
    )
    bias: bool = option(default=True, text="biases in the linear layers and the layer norms")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "dim"):
            require_count(self, name, least=1)
        require_number(self, "dropout", least=0.0, below=1.0)
        if type(self.bias) is not bool:
            raise ValueError(f"GPTConfig.bias is {self.bias!r}; expected True or False")
        if self.dim % self.heads:
            raise ValueError(
                f"GPTConfig.dim is {self.dim} and does not divide by heads={self.heads}: every "
                f"head takes an equal share; choose dim={self.dim // self.heads * self.heads} or "
                f"dim={(self.dim // self.heads + 1) * self.heads}, or other heads"
            )

    @property
    def head_dim(self) -> int:
        """D: the width of one head's query, key and value."""
        return self.dim // self.heads

    @classmethod
    def gpt2(cls, size: GPT2Size = "small") -> Self:
        """The shape of one of the four published GPT-2 models.

        Args:
            size: ``"small"`` (124 M parameters), ``"medium"`` (355 M), ``"large"`` (774 M) or
                ``"xl"`` (1.6 G).

        Raises:
            ValueError: `size` is none of the four.

        Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019),
        table 2.

        >>> GPTConfig.gpt2("xl").layers
        48
        """
        if size not in _GPT2_SIZES:
            raise ValueError(f"size is {size!r}; expected one of {', '.join(_GPT2_SIZES)}")
        layers, heads, dim = _GPT2_SIZES[size]
        return cls(vocab_size=50257, context=1024, layers=layers, heads=heads, dim=dim, dropout=0.1)
