"""Conversion between GPT-2's `config.json` of `transformers` and `GPTConfig`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.gpt.config import GPTConfig
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import load_json

# Our field, theirs, and the default of theirs if the file lacks it.
_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("vocab_size", "vocab_size", 50257),
    ("context", "n_positions", 1024),
    ("layers", "n_layer", 12),
    ("heads", "n_head", 12),
    ("dim", "n_embd", 768),
    ("hidden", "n_inner", None),
    ("norm_eps", "layer_norm_epsilon", 1e-5),
    ("initial_std", "initializer_range", 0.02),
)
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_DROPPED = 0.1  # default of each of them
# Other fields that change the computation: the only supported value, which is also the default.
_FIXED: dict[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "quantization_config": None,
}
_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")  # two names of the tanh form
# Our fields that GPT-2 does not have.
_GPT2: dict[str, Any] = {
    "bias": True,
    "positions": "learned",
    "head_width": None,
    "tied": True,
    "groups": None,
    "qk_norm": False,
    "window": None,
    "norm": "layer",
    "mlp": "gelu",
    "embedding_factor": 1.0,
    "output_norms": False,
    "score_scale": None,
    "score_softcap": None,
    "logit_softcap": None,
}


def config_of(path: Path) -> GPTConfig:
    """Read a `config.json`; fields that GPT-2 of `transformers` ignores are ignored here, too.

    Raises:
        CheckpointError: it is not GPT-2's, damaged, or has a value that is not supported.
    """
    content = load_json(path)
    kind = content.get("model_type")
    if kind != "gpt2":
        raise CheckpointError(f"{path} has model_type {kind!r}; only gpt2 is supported")
    for name, supported in _FIXED.items():
        if (value := content.get(name, supported)) != supported:
            raise CheckpointError(
                f"{path} has {name}={value!r}, which is not supported; only {supported!r} is"
            )
    activation = content.get("activation_function", _ACTIVATIONS[0])
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path} has activation_function={activation!r}, which is not supported; only "
            f"{' and '.join(_ACTIVATIONS)} are"
        )
    dropouts = {name: content.get(name, _DROPPED) for name in _DROPOUTS}
    if len(set(map(repr, dropouts.values()))) > 1:
        listed = ", ".join(f"{name}={value!r}" for name, value in dropouts.items())
        raise CheckpointError(
            f"{path} has {listed}, but this model drops one share everywhere, in training only; "
            "make the three equal"
        )
    values = {ours: content.get(theirs, default) for ours, theirs, default in _FIELDS}
    try:
        return GPTConfig(**values, dropout=dropouts[_DROPOUTS[0]])
    except ValueError as error:
        raise CheckpointError(f"{path} does not describe a GPT-2: {error}") from None


def gpt2_config(config: GPTConfig) -> dict[str, Any]:
    """Return the content of a model's `config.json`.

    Raises:
        ValueError: GPT-2 lacks an option of the model.
    """
    for name, fixed in _GPT2.items():
        value = getattr(config, name)
        if value != fixed and not (name == "groups" and value == config.heads):
            raise ValueError(
                f"GPTConfig.{name} is {value!r}, and a GPT-2 of transformers has {fixed!r} there; "
                "keep this model with regard.gpt.save"
            )
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": _ACTIVATIONS[0],
        **{theirs: getattr(config, ours) for ours, theirs, _ in _FIELDS},
        **dict.fromkeys(_DROPOUTS, config.dropout),
        **{name: value for name, value in _FIXED.items() if value is not None},
        "bos_token_id": None,
        "eos_token_id": None,
    }
