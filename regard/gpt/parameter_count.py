"""The number of parameters of a GPT by part, from its config."""

from __future__ import annotations

from dataclasses import dataclass

from regard.gpt.config import GPTConfig


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """Parameters of a GPT by part; the parts add up to `total`.

    Attributes:
        token_embedding: V x E; by default it also makes the logits, and counts once.
        unembedding: V x E where the logits have a matrix of their own, else none.
        position_embedding: T x E, or none with rotary positions.
        query_key: the projections of queries and keys, of all heads and layers, with QK-norms.
        value_output: the projections of values, and those back to the residual stream.
        mlp: the matrices of every MLP and their biases.
        norms: two norms a block, or four with those of outputs, and the last one.
        head: one head of one layer: its query, key, value and output matrices and the first
            three's biases, with keys and values that it shares with other heads counted whole. The
            output bias and the QK-norms belong to a layer, not to a head.

    Example:
        >>> from regard.gpt import GPTConfig, parameter_counts
        >>> counts = parameter_counts(GPTConfig.gpt2("small"))
        >>> counts.heads, counts.mlp, counts.total
        (28348416, 56669184, 124439808)
    """

    token_embedding: int
    position_embedding: int
    unembedding: int
    query_key: int
    value_output: int
    mlp: int
    norms: int
    head: int

    @property
    def heads(self) -> int:
        """All attention of all layers."""
        return self.query_key + self.value_output

    @property
    def total(self) -> int:
        """The whole model."""
        embeddings = self.token_embedding + self.position_embedding + self.unembedding
        return embeddings + self.heads + self.mlp + self.norms


def parameter_counts(config: GPTConfig) -> ParameterCounts:
    """Count a GPT's parameters by part, without making the model.

    >>> from regard.gpt import GPTConfig
    >>> parameter_counts(GPTConfig.gpt2("small")).total
    124439808
    """
    e, d, bias = config.dim, config.head_dim, int(config.bias)
    heads, groups = config.heads, config.group_count
    projection = (e + bias) * d  # one head's queries, or keys, or values
    query_key = (heads + groups) * projection + 2 * d * config.qk_norm
    value_output = groups * projection + heads * d * e + bias * e
    wide = config.hidden_dim
    into = wide if config.mlp == "gelu" else 2 * wide
    norm = e if config.norm == "rms" else (1 + bias) * e
    return ParameterCounts(
        token_embedding=config.vocab_size * e,
        position_embedding=config.context * e if config.positions == "learned" else 0,
        unembedding=0 if config.tied else config.vocab_size * e,
        query_key=config.layers * query_key,
        value_output=config.layers * value_output,
        mlp=config.layers * ((e + bias) * into + (wide + bias) * e),
        norms=((4 if config.output_norms else 2) * config.layers + 1) * norm,
        head=3 * projection + d * e,
    )
