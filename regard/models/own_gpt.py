"""A model of transformers as a `GPT` of regard, which the kernels run as a whole.

Weights are taken over by the names that Llama gave them, which Mistral, Qwen, SmolLM, Gemma and
others kept. What a name does not say, the logits do: those of the copy must equal the model's.

Axes: T tokens, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from regard.errors import Error
from regard.gpt import GPT, GPTConfig
from regard.gpt.blocks import Blocks, blocks_of, to_blocks
from regard.models.places import text_config

if TYPE_CHECKING:
    from regard.models.language_model import LanguageModel

__all__ = ["own_gpt"]

_BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_NAMES = {
    "input_layernorm": ("ln_1", 0),
    "self_attn.q_proj": ("attn.c_attn", 0),
    "self_attn.k_proj": ("attn.c_attn", 1),
    "self_attn.v_proj": ("attn.c_attn", 2),
    "self_attn.q_norm": ("attn.q_norm", 0),
    "self_attn.k_norm": ("attn.k_norm", 0),
    "self_attn.o_proj": ("attn.c_proj", 0),
    "post_attention_layernorm": ("ln_2", 0),
    "mlp.gate_proj": ("mlp.c_fc", 0),
    "mlp.up_proj": ("mlp.c_fc", 1),
    "mlp.down_proj": ("mlp.c_proj", 0),
}
"""Modules of a block: ours, and the place of the rows of one that holds several."""
_OUTSIDE = {
    "model.embed_tokens.weight": "wte.weight",
    "model.norm.weight": "ln_f.weight",
    "lm_head.weight": "lm_head.weight",
}
_GELUS = "gelu_pytorch_tanh", "gelu_new"
"""Names of the tanh form."""
_STRETCHED = "linear", "llama3"
"""Kinds of rotary positions that differ from Llama's by their frequencies alone."""
_TOKENS = 97  # that both read, so that a rotation of the slowest channels is seen as well
_ERROR = 1e-3
"""Of a logit, in units of their standard deviation: float32 leaves 1e-5, another formula 0.1."""


@torch.no_grad()
def own_gpt(model: LanguageModel) -> GPT:
    """Copy a model's weights into a `GPT` that computes the same.

    Args:
        model: a `GPT`, which is returned as it is, or a model of transformers of Llama's shape:
            RMSNorm, rotary positions (also stretched ones, as Llama 3 has), SwiGLU or GeGLU;
            queries and keys may have norms, or biases; token embeddings may be scaled, and norms
            multiply by 1 + weight, as the first Gemma does.

    Raises:
        Error: for any other model; the message says what it has that a `GPT` lacks.

    Example:
        >>> import regard
        >>> from regard.models.own_gpt import own_gpt
        >>> model = regard.models.open()
        >>> own_gpt(model) is model.module
        True
    """
    if isinstance(model.module, GPT):
        return model.module
    config = text_config(model.module)
    rotary = _rotary(config)
    weights, blocks, unknown = _renamed(_weights_of(model.module))
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if tied:
        weights.pop("lm_head.weight", None)
        blocks.pop("lm_head", None)
    embedding = weights.get("wte.weight", blocks.get("wte"))
    why = _objection(rotary, unknown, embedding)
    if why is not None:
        raise Error(f"{model.name} is not of the shape of a GPT of regard: {why}")
    assert embedding is not None, "there is no objection"
    for path, part in model.module.named_modules():
        own, _ = _place(f"{path}.weight") or ("", 0)
        if own in weights and weights[own].ndim == 1:
            weights[own] = _gains(part, weights[own])
    window = getattr(config, "sliding_window", None)
    context = min(filter(None, (config.max_position_embeddings, window)))
    with torch.device("meta"):
        gpt = GPT(
            GPTConfig(
                vocab_size=embedding.shape[0],
                context=context,
                layers=config.num_hidden_layers,
                heads=config.num_attention_heads,
                dim=config.hidden_size,
                groups=config.num_key_value_heads,
                hidden=config.intermediate_size,
                bias=any(name.endswith("c_attn.bias") for name in weights),
                positions="rotary",
                rotary_base=rotary["rope_theta"],
                rotary_frequencies=_frequencies(model.module, rotary),
                head_width=_head_width(config),
                tied=tied,
                norm="rms",
                norm_eps=config.rms_norm_eps,
                qk_norm="h.0.attn.q_norm.weight" in weights,
                mlp="geglu" if _activation(config) in _GELUS else "swiglu",
                embedding_factor=_embedding_factor(model.module),
            )
        )
    shapes = {name: weight.shape for name, weight in gpt.state_dict().items()}
    for name, shape in shapes.items():
        if name.endswith(".bias") and name not in weights:
            weights[name] = torch.zeros(shape, device=model.device)
    ours = {name: weight.shape for name, weight in weights.items()}
    ours |= {f"{path}.weight": matrix.shape for path, matrix in blocks.items()}
    if ours != shapes:
        raise Error(f"{model.name} has weights of other shapes than a GPT of regard of its size")
    to_blocks(gpt, blocks)
    held = {name: part for name, part in gpt.state_dict().items() if not part.is_meta}
    gpt.load_state_dict(weights | held, assign=True)
    # Its tokens at which an answer ends.
    vars(gpt)["generation_config"] = getattr(model.module, "generation_config", None)
    _require_equal(gpt.eval(), model, min(_TOKENS, context))
    return gpt


def _rotary(config: Any) -> dict[str, Any]:
    """The rotation's parameters, which transformers 5 puts together and others side by side."""
    together = getattr(config, "rope_parameters", None)
    if together is not None:
        return dict(together)
    scaling = getattr(config, "rope_scaling", None) or {}
    return {"rope_theta": getattr(config, "rope_theta", None)} | dict(scaling)


def _weights_of(module: nn.Module) -> dict[str, Tensor | Blocks]:
    """Its weights by their names; a matrix in blocks counts as one weight."""
    blocks = blocks_of(module)
    state = {
        name: weight
        for name, weight in module.state_dict().items()
        if name.rpartition(".")[0] not in blocks or name.endswith(".bias")
    }
    return state | {f"{path}.weight": matrix for path, matrix in blocks.items()}


def _renamed(
    state: Mapping[str, Tensor | Blocks],
) -> tuple[dict[str, Tensor], dict[str, Blocks], list[str]]:
    """Return the weights in float32 and the blocks of matrices, and the names without a place.

    Ours are the names of the weights, and of blocks the paths of their modules.
    """
    parts: dict[str, dict[int, Tensor | Blocks]] = {}
    unknown = []
    for name, weight in state.items():
        place = _place(name)
        if place is None:
            unknown.append(name)
        else:
            parts.setdefault(place[0], {})[place[1]] = weight
    weights, blocks = {}, {}
    for name, rows in parts.items():
        ordered = [rows[place] for place in sorted(rows)]
        if isinstance(ordered[0], Blocks):
            blocks[name.removesuffix(".weight")] = Blocks.joined(cast("list[Blocks]", ordered))
        else:
            weights[name] = torch.cat(cast("list[Tensor]", ordered)).float()
    return weights, blocks, unknown


def _place(name: str) -> tuple[str, int] | None:
    """Our name of a weight, and its place among those of that name."""
    block = _BLOCK.fullmatch(name)
    if block is not None and block[2] in _NAMES:
        own, place = _NAMES[block[2]]
        return f"h.{block[1]}.{own}.{block[3]}", place
    return (_OUTSIDE[name], 0) if name in _OUTSIDE else None


def _gains(norm: nn.Module, weight: Tensor) -> Tensor:
    """What a norm multiplies by, its weight or 1 + weight: what it makes of ones tells."""
    made = norm(torch.ones_like(weight)).float()
    both = torch.stack([weight, 1 + weight])
    return both[(both - made).abs().amax(-1).argmin()]


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None))


def _embedding_factor(module: Any) -> float:
    return float(getattr(module.get_input_embeddings(), "scalar_embed_scale", 1.0))


def _head_width(config: Any) -> int | None:
    """The channels of a head where they are not an equal share of the stream's."""
    own = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return None if own * config.num_attention_heads == config.hidden_size else int(own)


def _frequencies(module: Any, rotary: dict[str, Any]) -> tuple[float, ...] | None:
    """Those of a model that stretches its positions, which transformers keeps in a buffer."""
    if _kind(rotary) == "default":
        return None
    return tuple(module.model.rotary_emb.inv_freq.float().tolist())


def _kind(rotary: dict[str, Any]) -> str:
    return str(rotary.get("rope_type", rotary.get("type", "default")))


def _objection(rotary: dict[str, Any], unknown: list[str], embedding: object) -> str | None:
    """Say what the model has that a `GPT` lacks, as far as names and configuration tell."""
    if unknown or embedding is None:
        return f"it has {unknown[0] if unknown else 'no model.embed_tokens.weight'}"
    if _kind(rotary) not in {"default", *_STRETCHED}:
        return f"its rotary positions are of type {_kind(rotary)}"
    if rotary.get("partial_rotary_factor", 1) != 1:
        return "it rotates a part of the channels"
    return None


def _require_equal(gpt: GPT, model: LanguageModel, tokens: int) -> None:
    """Compare logits, which show what neither a name nor the configuration tells."""
    ids = torch.arange(tokens, device=model.device) * 31 % model.vocab_size
    expected, own = model(ids).float(), gpt(ids)
    error = float((own - expected).abs().max() / expected.std())
    if not error <= _ERROR:
        raise Error(
            f"{model.name} is not of the shape of a GPT of regard: with its weights a logit is off "
            f"by {error:.2g} of their standard deviation, so it computes something else"
        )
