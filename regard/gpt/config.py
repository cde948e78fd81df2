"""Configurations of a model and of sampling, as frozen dataclasses.

The Python interface, the command line, its help texts and the checkpoints read the same fields, so
each default is defined once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, Self

from regard.gpt._fields import option, require_choice, require_count, require_flag, require_number

GPT2Size = Literal["small", "medium", "large", "xl"]

# Layers, heads, dim: "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019),
# table 2. The head counts are those of the published models.
_GPT2_SIZES: dict[str, tuple[int, int, int]] = {
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}

HAS_READ = (
    "This model has read little but made-up stories of a small world. Outside them it guesses."
)
"""Shown wherever the shipped model is shown."""


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The architecture of a GPT. The defaults are GPT-2's; the options are of later models.

    Every field's `metadata["help"]` holds its one-line description.

    Raises:
        ValueError: if a field is out of its range or contradicts another: `dim` is not a
            multiple of `heads` and no `head_width` is given, `heads` not of `groups`, the head
            dimension is odd with rotary positions, `rotary_frequencies` are not one a pair of
            channels, `global_every` is set without a `window`, or `window_rotary_base` without one
            or without rotary positions.

    Source: rotary positions: Su et al. 2021, arXiv:2104.09864. RMSNorm: Zhang and Sennrich 2019,
    arXiv:1910.07467. SwiGLU and GeGLU: Shazeer 2020, arXiv:2002.05202. Groups: Ainslie et al. 2023,
    arXiv:2305.13245. Windows: Beltagy et al. 2020, arXiv:2004.05150. QK-norm: Henry et al. 2020,
    arXiv:2010.04245; here with an RMSNorm and its gains in place of their one scale. Softcaps and
    norms of outputs: Gemma Team 2024, arXiv:2408.00118. A base of windows: 2025, arXiv:2503.19786.

    >>> GPTConfig(layers=2, heads=2, dim=64).head_dim
    32
    >>> later = GPTConfig(positions="rotary", norm="rms", mlp="swiglu", groups=2, bias=False)
    >>> later.hidden_dim, later.group_count
    (344, 2)
    """

    vocab_size: int = option(1024, "V: number of different tokens")
    context: int = option(512, "T: most tokens that the model sees at once")
    layers: int = option(4, "number of blocks")
    heads: int = option(4, "H: attention heads of a block")
    dim: int = option(128, "E: width of the residual stream, a multiple of heads")
    dropout: float = option(
        0.0, "share of embeddings, attention weights and block outputs that training drops"
    )
    initial_std: float = option(
        0.02,
        "standard deviation of the first weights; positions have half of it, matrices that write "
        "to the residual stream less",
    )
    bias: bool = option(default=True, text="biases in the linear layers and the layer norms")
    positions: Literal["learned", "rotary"] = option(
        "learned", "learned: a vector a position, as in GPT-2; rotary: rotate queries and keys"
    )
    rotary_base: float = option(
        10_000.0, "with rotary positions: the larger, the slower the slowest channels rotate"
    )
    rotary_frequencies: tuple[float, ...] | None = option(
        None,
        "radians a position by which each of the D/2 pairs of channels rotates; none: by the base",
        on_command=False,  # models that stretch their positions are read, none is trained so
    )
    window_rotary_base: float | None = option(
        None,
        "the rotary base of layers with a window; none: they rotate as the others do",
        on_command=False,  # as what follows from Gemma: it is read, none is trained so
    )
    head_width: int | None = option(
        None, "D: channels of a head; none: an equal share of dim, which then divides by heads"
    )
    groups: int | None = option(
        None, "G: key/value heads that the heads share evenly; none: one for each head"
    )
    qk_norm: bool = option(
        default=False, text="normalise each head's queries and keys before their product"
    )
    score_scale: float | None = option(
        None, "what queries times keys are multiplied by; none: 1/√D", on_command=False
    )
    score_softcap: float | None = option(
        None, "cap·tanh(score/cap) in place of a score; none: the score", on_command=False
    )
    logit_softcap: float | None = option(
        None, "the same of logits; none: the logits", on_command=False
    )
    window: int | None = option(
        None, "W: a position sees only the last W, its own included; none: all before it"
    )
    global_every: int | None = option(
        None, "with a window: every n-th layer sees the whole context; none: no layer does"
    )
    norm: Literal["layer", "rms"] = option("layer", "layer: LayerNorm; rms: RMSNorm, without bias")
    norm_eps: float = option(1e-5, "added to the variance by which a norm divides")
    output_norms: bool = option(
        default=False,
        text="normalise what attention and MLP add to the residual stream, too",
        on_command=False,
    )
    mlp: Literal["gelu", "swiglu", "geglu"] = option(
        "gelu", "gelu: GPT-2's, in its tanh form; swiglu; geglu: gated by that GELU"
    )
    tied: bool = option(
        default=True, text="make the logits by the token embeddings, not by a matrix of their own"
    )
    hidden: int | None = option(
        None, "width inside the MLP; none: 4 dim for gelu, else 8/3 dim rounded up to eights"
    )
    embedding_factor: float = option(
        1.0,
        "what token embeddings are multiplied by where they are read, not where logits are made",
        on_command=False,
    )

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "dim"):
            require_count(self, name, least=1)
        for name in ("head_width", "groups", "window", "global_every", "hidden"):
            if getattr(self, name) is not None:
                require_count(self, name, least=1)
        require_number(self, "dropout", least=0.0, below=1.0)
        for name in ("initial_std", "rotary_base", "norm_eps"):
            require_number(self, name, above=0.0)
        for name in ("window_rotary_base", "score_scale", "score_softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                require_number(self, name, above=0.0, most=1e9)
        require_number(self, "embedding_factor", above=0.0, most=1e6)
        for name in ("bias", "qk_norm", "output_norms", "tied"):
            require_flag(self, name)
        require_choice(self, "positions", "learned", "rotary")
        require_choice(self, "norm", "layer", "rms")
        require_choice(self, "mlp", "gelu", "swiglu", "geglu")
        self._require_fit()

    def _require_fit(self) -> None:
        if self.head_width is None and self.dim % self.heads:
            raise ValueError(
                f"GPTConfig.dim is {self.dim} and does not divide by heads={self.heads}: every "
                f"head takes an equal share; choose dim={self.dim // self.heads * self.heads} or "
                f"dim={(self.dim // self.heads + 1) * self.heads}, or other heads"
            )
        if self.heads % self.group_count:
            raise ValueError(
                f"GPTConfig.groups is {self.groups} and does not divide heads={self.heads}: every "
                "key/value head serves equally many heads; choose a divisor of heads"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"GPTConfig.positions is 'rotary' and a head has {self.head_dim} channels "
                "which make no pairs; choose an even number"
            )
        if self.rotary_frequencies is not None:
            self._require_frequencies()
        if self.window_rotary_base is not None and (
            self.window is None or self.positions != "rotary"
        ):
            raise ValueError(
                f"GPTConfig.window_rotary_base is {self.window_rotary_base} without layers that "
                "have a window and rotary positions; give both too, or leave it out"
            )
        if self.global_every is not None and self.window is None:
            raise ValueError(
                f"GPTConfig.global_every is {self.global_every} without a window, so every layer "
                "sees the whole context anyway; give a window too, or leave it out"
            )

    def _require_frequencies(self) -> None:
        frequencies = tuple(self.rotary_frequencies or ())  # a list, in a file
        object.__setattr__(self, "rotary_frequencies", frequencies)
        numbers = all(isinstance(one, float) and isfinite(one) for one in frequencies)
        if not numbers or len(frequencies) != self.head_dim // 2 or self.positions != "rotary":
            raise ValueError(
                f"GPTConfig.rotary_frequencies has {len(frequencies)} entries; expected one finite "
                f"number for each of the {self.head_dim // 2} pairs of a head's channels, with "
                "rotary positions"
            )

    @property
    def head_dim(self) -> int:
        """D: the width of one head's query, key and value."""
        return self.dim // self.heads if self.head_width is None else self.head_width

    @property
    def group_count(self) -> int:
        """G: the number of key/value heads; `heads` where `groups` is None."""
        return self.heads if self.groups is None else self.groups

    @property
    def hidden_dim(self) -> int:
        """The width inside the MLP; the default where `hidden` is None.

        Two thirds of it with a gate, where three matrices then are as large as GELU's two.
        """
        if self.hidden is not None:
            return self.hidden
        return 4 * self.dim if self.mlp == "gelu" else -(-self.dim // 3) * 8

    def layer_window(self, layer: int) -> int | None:
        """Return W of a layer, counted from 0; None if it sees the whole context.

        >>> [GPTConfig(window=64, global_every=2).layer_window(layer) for layer in range(4)]
        [64, None, 64, None]
        """
        every = self.global_every
        return None if every is not None and (layer + 1) % every == 0 else self.window

    def rotates_apart(self, layer: int) -> bool:
        """Whether a layer, counted from 0, rotates by `window_rotary_base`."""
        return self.window_rotary_base is not None and self.layer_window(layer) is not None

    @classmethod
    def gpt2(cls, size: GPT2Size = "small") -> Self:
        """Return the shape of one of the four published GPT-2 models.

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


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is sampled, in the order of the fields, as in `transformers`.

    1. `repetition_penalty` θ: the logit of every token in the sequence, prompt included, is
       divided by θ if it is positive and multiplied by it if not (Keskar et al. 2019,
       arXiv:1909.05858, section 4.1, for either sign).
    2. `temperature`: the logits are divided by it. 0 takes the likeliest token, the first one in
       case of ties; the later steps then have no effect.
    3. `top_k`: keep exactly the k likeliest tokens, the first ones in case of ties.
    4. `top_p`: of those, keep the fewest likeliest tokens whose probabilities sum to at least this
       (Holtzman et al. 2020, arXiv:1904.09751, section 3.1).
    5. `min_p`: of those, keep tokens at least this fraction as likely as the likeliest
       (Nguyen et al. 2024, arXiv:2407.01082).
    6. A token is drawn from the softmax over the remaining logits.

    The random numbers are a function of the seed, the step, and the number of equal prompts before
    this one in the batch: a text does not depend on other prompts, and copies of a prompt differ.

    Raises:
        ValueError: if a field is out of its range.

    >>> Sampling(temperature=0.7, top_p=0.9).min_p
    0.0
    """

    repetition_penalty: float = option(
        1.0, "above 1: tokens that the text already holds become less likely"
    )
    temperature: float = option(0.8, "below 1 sharper, above 1 flatter, 0 the likeliest token")
    top_k: int | None = option(None, "draw from exactly this number of likeliest tokens")
    top_p: float = option(1.0, "draw from the likeliest tokens that make up this probability")
    min_p: float = option(0.0, "draw from tokens at least this fraction as likely as the likeliest")
    seed: int | None = option(
        None, "the same seed draws the same text; none: one from torch's generator"
    )

    def __post_init__(self) -> None:
        require_number(self, "repetition_penalty", above=0.0)
        require_number(self, "temperature", least=0.0)
        if self.top_k is not None:
            require_count(self, "top_k", least=1)
        require_number(self, "top_p", above=0.0, most=1.0)
        require_number(self, "min_p", least=0.0, most=1.0)
        if self.seed is not None:
            require_count(self, "seed", least=0, most=2**63 - 1)
