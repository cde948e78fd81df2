"""A model of transformers as a `GPT` of regard, which the kernels run as a whole.

Weights are taken over by the names that Llama gave them, which Mistral, Qwen, SmolLM, Gemma and
others kept. What neither a name nor the configuration says, the logits do: those of the copy must
equal the model's.

Axes: T tokens, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from regard.errors import Error
from regard.gpt import GPT, GPTConfig
from regard.gpt.blocks import BlockEmbedding, Blocks, blocks_of, to_blocks
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
    "self_attn.qkv_proj": ("attn.c_attn", 0),
    "self_attn.q_norm": ("attn.q_norm", 0),
    "self_attn.k_norm": ("attn.k_norm", 0),
    "self_attn.o_proj": ("attn.c_proj", 0),
    "post_attention_layernorm": ("ln_2", 0),
    "mlp.gate_proj": ("mlp.c_fc", 0),
    "mlp.up_proj": ("mlp.c_fc", 1),
    "mlp.gate_up_proj": ("mlp.c_fc", 0),
    "mlp.down_proj": ("mlp.c_proj", 0),
}
"""Modules of a block: ours, and the place of the rows of one that holds several."""
_BEFORE_MLP = "pre_feedforward_layernorm"
_OUTPUT_NORMS = {
    "post_attention_layernorm": ("ln_1_out", 0),
    _BEFORE_MLP: ("ln_2", 0),
    "post_feedforward_layernorm": ("ln_2_out", 0),
}
"""The same of a model that has a norm before the MLP which is not named for the attention."""
_OUTSIDE = {
    "model.embed_tokens.weight": "wte.weight",
    "model.norm.weight": "ln_f.weight",
    "model.norm.bias": "ln_f.bias",
    "lm_head.weight": "lm_head.weight",
}
_GELUS = "gelu_pytorch_tanh", "gelu_new"
"""Names of the tanh form."""
_BY_BASE = "default", "dynamic"
"""Kinds of rotary positions whose frequencies follow from a base, within a model's context."""
_STRETCHED = "linear", "llama3", "yarn"
"""Kinds that have other frequencies, and maybe a factor of queries and keys."""
_TOKENS = 97  # that both read, so that a rotation of the slowest channels is seen as well
_ERROR = 1e-3
"""Of a logit, in units of their standard deviation: float32 leaves 1e-5, another formula 0.1."""


@torch.no_grad()
def own_gpt(model: LanguageModel) -> GPT:
    """Copy a model's weights into a `GPT` that computes the same.

    Args:
        model: a `GPT`, which is returned as it is, or a model of transformers of Llama's shape:
            RMSNorm or LayerNorm, rotary positions (also stretched ones, as Llama 3 and YaRN have,
            and of a part of the channels), SwiGLU or GeGLU; queries and keys may have norms, or
            biases; what is special to Gemma 1 to 3. Where a part of the channels rotates, those of
            queries and keys change places, so that both halves of a head have as many of them.

    Raises:
        Error: for any other model; the message says what it has that a `GPT` lacks. Also for one
            in half precision, whose rounding hides whether the logits are equal.

    Example:
        >>> import regard
        >>> from regard.models.own_gpt import own_gpt
        >>> model = regard.models.open()
        >>> own_gpt(model) is model.module
        True
    """
    if isinstance(model.module, GPT):
        return model.module
    if model.module.dtype not in {torch.float32, torch.float64}:
        raise Error(
            f"{model.name} is in {str(model.module.dtype).removeprefix('torch.')}, whose rounding "
            "hides whether a GPT of regard computes the same: open it in float32"
        )
    config = text_config(model.module)
    state = _weights_of(model.module)
    places = _places(state)
    weights, blocks, unknown = _renamed(state, places)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if tied:
        weights.pop("lm_head.weight", None)
        blocks.pop("lm_head", None)
    embedding = weights.get("wte.weight", blocks.get("wte"))
    centres = "h.0.ln_1.bias" in weights
    epsilon = "layer_norm_eps" if centres else "rms_norm_eps"
    why = _objection(config, epsilon, unknown, embedding)
    if why is not None:
        raise Error(f"{model.name} is not of the shape of a GPT of regard: {why}")
    assert embedding is not None, "there is no objection"
    for path, part in model.module.named_modules():
        own, _ = places.get(f"{path}.weight", ("", 0))
        if own in weights and weights[own].ndim == 1 and not centres:
            weights[own] = _gains(part, weights[own])
    rotary, local = _rotary(config)
    frequencies = _take_rotation(model, weights, rotary)
    with torch.device("meta"):
        gpt = GPT(
            GPTConfig(
                vocab_size=embedding.shape[0],
                **_windows(config),
                layers=config.num_hidden_layers,
                heads=config.num_attention_heads,
                dim=config.hidden_size,
                groups=config.num_key_value_heads,
                hidden=config.intermediate_size,
                bias=centres or any(name.endswith("c_attn.bias") for name in weights),
                positions="rotary",
                rotary_base=rotary["rope_theta"],
                rotary_frequencies=frequencies,
                window_rotary_base=None if local == rotary else local["rope_theta"],
                head_width=_head_width(config),
                tied=tied,
                norm="layer" if centres else "rms",
                norm_eps=getattr(config, epsilon),
                output_norms="h.0.ln_1_out.weight" in weights,
                qk_norm="h.0.attn.q_norm.weight" in weights,
                score_scale=_score_scale(model.module, config),
                score_softcap=getattr(config, "attn_logit_softcapping", None),
                logit_softcap=getattr(config, "final_logit_softcapping", None),
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
        first = min(name for name, _ in ours.items() ^ shapes.items())
        here, there = (list(some[first]) if first in some else None for some in (ours, shapes))
        raise Error(
            f"{model.name} is not of the shape of a GPT of regard: {first}, as that names it, is "
            f"{here} and not {there}"
        )
    to_blocks(gpt, blocks)
    held = {name: part for name, part in gpt.state_dict().items() if not part.is_meta}
    gpt.load_state_dict(weights | held, assign=True)
    # Its tokens at which an answer ends.
    vars(gpt)["generation_config"] = getattr(model.module, "generation_config", None)
    _require_equal(gpt.eval(), model, min(_TOKENS, gpt.config.context))
    return gpt


def _rotary(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotation's parameters, and those of layers with a window, which may be others.

    transformers 5 puts them together, earlier ones side by side.
    """
    together = getattr(config, "rope_parameters", None)
    if together is None:
        whole = {"rope_theta": getattr(config, "rope_theta", None)}
        whole |= getattr(config, "rope_scaling", None) or {}
        local = getattr(config, "rope_local_base_freq", None)
        return whole, whole if local is None else {"rope_theta": local}
    whole, local = (together.get(f"{kind}_attention", together) for kind in ("full", "sliding"))
    return dict(whole or {}), dict(local or {})


def _windows(config: Any) -> dict[str, Any]:
    """The context, and the windows of a `GPT`.

    Where layers have windows by no rule of ours, the context is one window.
    """
    most, window = config.max_position_embeddings, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return {"context": most}
    limited = [kind == "sliding_attention" for kind in kinds or ()]
    every = limited.index(False) + 1 if False in limited else None
    if every and limited != [(layer + 1) % every > 0 for layer in range(len(limited))]:
        return {"context": min(most, window)}
    return {"context": most, "window": window, "global_every": every}


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
    state: Mapping[str, Tensor | Blocks], places: Mapping[str, tuple[str, int]]
) -> tuple[dict[str, Tensor], dict[str, Blocks], list[str]]:
    """Return the weights in float32 and the blocks of matrices, and the names without a place.

    Ours are the names of the weights, and of blocks the paths of their modules.
    """
    parts: dict[str, dict[int, Tensor | Blocks]] = {}
    unknown = []
    for name, weight in state.items():
        if name in places:
            own, place = places[name]
            parts.setdefault(own, {})[place] = weight
        else:
            unknown.append(name)
    weights, blocks = {}, {}
    for name, rows in parts.items():
        ordered = [rows[place] for place in sorted(rows)]
        if isinstance(ordered[0], Blocks):
            blocks[name.removesuffix(".weight")] = Blocks.joined(cast("list[Blocks]", ordered))
        else:
            weights[name] = torch.cat(cast("list[Tensor]", ordered)).float()
    return weights, blocks, unknown


def _places(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Our name of each weight that we know, and its place among those of that name."""
    inner = _NAMES | (_OUTPUT_NORMS if any(_BEFORE_MLP in name for name in names) else {})
    places = {}
    for name in names:
        block = _BLOCK.fullmatch(name)
        if block is not None and block[2] in inner:
            own, place = inner[block[2]]
            places[name] = f"h.{block[1]}.{own}.{block[3]}", place
        elif name in _OUTSIDE:
            places[name] = _OUTSIDE[name], 0
    return places


def _gains(norm: nn.Module, weight: Tensor) -> Tensor:
    """What a norm multiplies by, its weight or 1 + weight: what it makes of ones tells."""
    made = norm(torch.ones_like(weight)).float()
    both = torch.stack([weight, 1 + weight])
    return both[(both - made).abs().amax(-1).argmin()]


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None))


def _embedding_factor(module: Any) -> float:
    embedding = module.get_input_embeddings()
    if isinstance(embedding, BlockEmbedding):
        return embedding.factor
    return float(getattr(embedding, "scalar_embed_scale", 1.0))


def _channels(config: Any) -> int:
    """D: the channels of a head."""
    own = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(own)


def _head_width(config: Any) -> int | None:
    """The channels of a head where they are not an equal share of the stream's."""
    own = _channels(config)
    return None if own * config.num_attention_heads == config.hidden_size else own


def _take_rotation(
    model: LanguageModel, weights: dict[str, Tensor], rotary: dict[str, Any]
) -> tuple[float, ...] | None:
    """Return the frequencies of all pairs of channels, and change queries and keys to fit them.

    A `GPT` rotates each channel i with channel i + D/2: those that do not rotate become pairs of
    frequency 0. What YaRN multiplies rotated queries and keys by, they are multiplied by before.
    None: the frequencies are those of the base.
    """
    rotating = _of_rotation(model.module, "inv_freq")
    if rotating is None:
        return None
    frequencies = rotating.float()
    factor = float(_of_rotation(model.module, "attention_scaling", 1.0))
    config = text_config(model.module)
    width = _channels(config)
    turning, half = len(frequencies), width // 2
    if turning == half and factor == 1:
        return None if _kind(rotary) in _BY_BASE else tuple(frequencies.tolist())
    still = width - 2 * turning
    sizes = [turning, turning, still // 2, still // 2]
    parts = torch.arange(width, device=model.device).split(sizes)
    order = torch.cat([parts[0], parts[2], parts[1], parts[3]])
    factors = torch.where(order < 2 * turning, factor, 1.0)
    count = (config.num_attention_heads + config.num_key_value_heads) * width
    for layer in range(config.num_hidden_layers):
        name = f"h.{layer}.attn"
        norms = [f"{name}.{norm}.weight" for norm in ("q_norm", "k_norm")]
        norms = [norm for norm in norms if norm in weights]
        for norm in norms:
            weights[norm] = weights[norm][order] * factors
        if norms and turning == half:
            continue  # which stand where they stood, and the norms have the factor
        if f"{name}.c_attn.weight" not in weights:
            raise Error(
                f"{model.name} is not of the shape of a GPT of regard: its rotation changes "
                "queries and keys, whose matrix is in blocks"
            )
        for path in (f"{name}.c_attn.weight", f"{name}.c_attn.bias"):
            if path in weights:
                heads = weights[path][:count].unflatten(0, (-1, width))[:, order]
                if not norms:
                    heads = heads * factors.view(-1, *(1,) * (heads.ndim - 2))
                weights[path] = torch.cat([heads.flatten(0, 1), weights[path][count:]])
    return (*frequencies.tolist(), *(0.0,) * (half - turning))


def _of_rotation(module: Any, name: str, default: Any = None) -> Any:
    """A part of the module that rotates, of layers without a window where there are others."""
    rotation = getattr(module.model, "rotary_emb", None)
    return getattr(rotation, f"full_attention_{name}", getattr(rotation, name, default))


def _score_scale(module: Any, config: Any) -> float | None:
    """What scores are multiplied by, where it is not 1/√D."""
    usual = _channels(config) ** -0.5
    own = getattr(module.model.layers[0].self_attn, "scaling", usual)
    return None if own == usual else float(own)


def _kind(rotary: dict[str, Any]) -> str:
    return str(rotary.get("rope_type", rotary.get("type", "default")))


def _objection(config: Any, epsilon: str, unknown: list[str], embedding: object) -> str | None:
    """Say what the model has that a `GPT` lacks, as far as names and configuration tell."""
    if unknown or embedding is None:
        return f"it has {unknown[0] if unknown else 'no model.embed_tokens.weight'}"
    if not hasattr(config, epsilon):
        return f"its configuration has no {epsilon}, so its norms are others"
    rotary, local = _rotary(config)
    if "rope_theta" not in rotary or "rope_theta" not in local:
        return "some of its layers have no rotary positions"
    if _kind(rotary) not in {*_BY_BASE, *_STRETCHED}:
        return f"its rotary positions are of type {_kind(rotary)}"
    if local != rotary and (_kind(local) not in _BY_BASE or "window" not in _windows(config)):
        which = "which are not all but every n-th" if _kind(local) in _BY_BASE else _kind(local)
        return f"its layers with a window have other rotary positions: {which}"
    if local != rotary and any("partial_rotary_factor" in one for one in (rotary, local)):
        return "it rotates a part of the channels, and layers with a window by another base"
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
