"""Try every architecture of text of the installed transformers, and write docs/models.md.

``python tools/architectures.py`` makes a small model of each with random weights, records a run,
compares the weights with those of eager attention, and checks the equations of its places. Each
gets a tier: *verified* (all of that holds, and tests/models checks it in continuous integration),
*resolves* (it holds here), *partly* (recorded weights are right, and an equation fails or is not
known) or *refused* (it can't be recorded).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import regard
from regard.models.places import find_places, run_once
from regard.models.proof import prove
from regard.record import RecordError

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TOKENS = 7
_NEAR = 2e-5
"""Largest difference of weights: float32 activations near 1, rounded some hundred times."""
_SHOWN = 200  # characters of a reason
_LARGEST = 20_000_000
"""Weights of a model that counts as small."""
Tier = Literal["verified", "resolves", "partly", "refused", "not built"]

VERIFIED: dict[str, tuple[str, ...]] = {
    "causal": (
        *("gpt2", "gpt_bigcode", "gpt_neox", "opt", "biogpt", "ctrl"),
        *("llama", "mistral", "mixtral", "ministral3", "smollm3", "seed_oss", "nanochat"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"),
        *("gemma", "gemma2", "gemma3_text", "vaultgemma", "gpt_oss", "llama4_text"),
        *("olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "stablelm"),
        *("cohere", "cohere2", "granite", "granitemoe", "starcoder2", "falcon"),
        *("glm4", "deepseek_v3", "lfm2", "exaone4", "helium", "persimmon", "bitnet"),
    ),
    "encoder": (
        *("bert", "roberta", "camembert", "xlm-roberta", "distilbert", "electra", "ernie"),
        *("modernbert", "nomic_bert", "eurobert"),
    ),
}
"""What tests/models examines; they cover grouped and shared keys, windows, chunks, norms of queries
and behind W_O, parallel blocks, gates, softcaps, scales, sink logits, experts, latent keys, hybrids
and norms of sums."""

_HEAD = """# Which models

`regard.models.open(name)`, every command and the page take a causal language model or an encoder
of `transformers`, a GGUF, a model of Ollama, or one of regard. Which modules embed, add to the
residual stream, norm and unembed is found by running the model once over a few tokens, not by its
name; and what was found is proved: residuals add up, logits are the unembedding of the last
residual, and recorded weights × values × W_O are what attention added.

This page is what `python tools/architectures.py` found with transformers {version}: a small model
of each class with random weights, its recorded weights compared with those of eager attention, and
its equations checked. {count} classes were tried. Models of pictures or sound beside text are
refused by `open`. So is an encoder with a decoder (T5, BART and their kin), since it reads one text
and writes another, where a command and the page have one: it is loaded with transformers and
[recorded from Python](record.md#encoders-decoders-and-pictures).
A model in bfloat16 is checked as strictly as its rounding allows.

```python
import regard

model = regard.models.open()  # or "HuggingFaceTB/SmolLM2-135M", a folder, "model.gguf", "smollm2"
for check in model.checks:
    print(check.name, "holds" if check.holds else check.why)
print(model.places.norm, model.places.blocks[0].attention_adds)
```

```text
residuals holds
logits holds
attention holds
ln_f h.0.attn
```
"""

# What a configuration calls its sizes; each is set where its class has the field.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 6),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"), 56),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id",), 1),
    **dict.fromkeys(("eos_token_id",), 2),
    "vocab_size": 101,
    "head_dim": 8,
    "embedding_size": 48,
    "word_embed_proj_dim": 48,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 56,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "qk_head_dim": 16,
    "mamba_n_heads": 12,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "first_k_dense_replace": 1,
    "sliding_window": 5,
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found of one architecture."""

    name: str
    """Of the class."""
    kind: Literal["causal", "encoder"]
    tier: Tier
    why: str = ""
    layers: str = ""
    """Blocks with weights, of all of them."""


def architectures() -> Iterator[tuple[str, Literal["causal", "encoder"]]]:
    """Yield the type and kind of each model of text alone."""
    from transformers.models.auto import modeling_auto as known

    causal = known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    for name, kind in sorted({**causal, **masked}.items()):
        shown = kind[0] if isinstance(kind, (list, tuple)) else kind
        if name in causal and (name not in masked or "Causal" in shown or "LMHead" in shown):
            yield name, "causal"
        if name in masked:
            yield name, "encoder"


def build(name: str, kind: str, implementation: str | None = None) -> nn.Module:
    """Make a small model of a type with random weights that give patterns far from uniform."""
    try:
        return _build(name, kind, implementation, groups=2)
    except Exception:  # noqa: BLE001 - each class raises its own
        return _build(name, kind, implementation, groups=6)  # those without groups of heads


def _build(name: str, kind: str, implementation: str | None, *, groups: int) -> nn.Module:
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    torch.manual_seed(0)
    config = _small(CONFIG_MAPPING[name], groups)
    if kind == "causal" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    make = AutoModelForCausalLM if kind == "causal" else AutoModel
    with torch.device("meta"):
        size = sum(p.numel() for p in make.from_config(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"its small configuration has {size / 1e6:.0f} million weights")
    module: nn.Module = make.from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) / 10)
    with torch.no_grad():
        module.eval()(**inputs(kind))
    return module


def _small(kind: Any, groups: int) -> Any:
    """Return a small configuration: its own defaults, with the sizes that it has."""
    plain = kind()
    sizes = _SIZES | {"num_key_value_heads": groups, "num_kv_heads": groups}
    own = {name: size for name, size in sizes.items() if getattr(plain, name, None) is not None}
    while True:
        try:
            return kind(**own)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            # A size that the class derives from others, or does not take.
            named = [name for name in own if re.search(rf"\b{name}\b", str(error))]
            if not named:
                raise
            del own[named[0]]


def inputs(kind: str) -> dict[str, Any]:
    """Return the arguments of a run over a few tokens."""
    ids = torch.arange(TOKENS)[None] * 13 % 97 + 3
    own = {"use_cache": False} if kind == "causal" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **own}


@torch.no_grad()
def eager_error(name: str, kind: str, recording: regard.Recording) -> float | None:
    """Return the largest difference to eager weights; None for a model that gives none out."""
    module = build(name, kind, "eager")
    output = module(**inputs(kind), output_attentions=True)
    attentions = [one for one in output.attentions or () if one is not None and one.ndim == 4]
    ours = [layer.pattern.dense() for layer in recording.of_kind().layers]
    if len(attentions) != len(ours):
        return None
    return max(
        float((one - other).abs().max()) for one, other in zip(ours, attentions, strict=True)
    )


def examine(name: str, kind: Literal["causal", "encoder"]) -> Result | None:
    """Try one architecture; None for an encoder with a decoder, which reads two texts."""
    try:
        module = build(name, kind)
        if getattr(module.config, "is_encoder_decoder", False):
            return None
    except Exception as error:  # noqa: BLE001 - each class raises its own
        return Result(name=name, kind=kind, tier="not built", why=_short(error))
    shown = type(module).__name__
    try:
        run = run_once(module, inputs(kind))
    except RecordError as error:
        why = str(error).partition("; ")[0]  # without the cure
        return Result(name=shown, kind=kind, tier="refused", why=why)
    except Exception as error:  # noqa: BLE001 - likewise
        return Result(name=shown, kind=kind, tier="not built", why=_short(error))
    places = find_places(module, run, {})
    checks = [one for one in prove(module, run, places) if kind == "causal" or one.name != "logits"]
    failed = [str(one) for one in checks if not one.holds]
    try:
        difference = eager_error(name, kind, run.recording)
        if difference is None:
            failed.append("eager attention gives out no weights to compare with")
        elif difference > _NEAR:
            failed.append(
                f"weights differ from those that eager attention gives out: {difference:.1e}"
            )
    except Exception as problem:  # noqa: BLE001 - likewise
        failed.append(f"eager attention: {_short(problem)}")
    attending = sum(block.attention is not None for block in places.blocks)
    return Result(
        name=shown,
        kind=kind,
        tier="partly" if failed else "resolves",
        why="; ".join(failed),
        layers=f"{attending}/{len(places.blocks)}",
    )


def _short(error: Exception) -> str:
    text = " ".join(str(error).partition(" You can install ")[0].split()) or type(error).__name__
    return text if len(text) < _SHOWN else text[: _SHOWN - 1] + "…"


_TITLES: dict[Tier, str] = {
    "verified": "Verified",
    "resolves": "Resolves",
    "partly": "Partly",
    "refused": "Refused",
    "not built": "Not built",
}
_SAY: dict[Tier, str] = {
    "verified": "All of it holds, in continuous integration too (`tests/models`).",
    "resolves": "All of it holds where this page was made.",
    "partly": "It opens and is recorded, but not all could be shown; the reason says what.",
    "refused": "Its attention can't be recorded.",
    "not built": "The command made no small model of it, so that nothing is known here; that says "
    "nothing about the model.",
}


def page(results: Sequence[Result], version: str) -> str:
    """Return docs/models.md."""
    ours = {result.name: result for result in results}
    lines = [_HEAD.format(version=version, count=len(ours))]
    for tier, title in _TITLES.items():
        own = sorted((r for r in ours.values() if r.tier == tier), key=lambda r: r.name.lower())
        lines.append(f"\n## {title}: {len(own)}\n\n{_SAY[tier]}\n")
        if tier in {"verified", "resolves"}:
            for kind in ("causal", "encoder"):
                names = [_shown(r) for r in own if r.kind == kind]
                if names:
                    lines.append(f"{kind.capitalize()}: {', '.join(names)}.\n")
        else:
            lines += ["| class | why |", "| --- | --- |"]
            lines += [f"| {_shown(r)} | {r.why.replace('|', '/')} |" for r in own]
    return "\n".join(lines).rstrip() + "\n"


def _shown(result: Result) -> str:
    """Return the name, and of a hybrid how many of its blocks have weights."""
    with_weights, _, count = result.layers.partition("/")
    hybrid = f" ({with_weights} of {count} blocks have weights)" if with_weights != count else ""
    return f"`{result.name}`{hybrid if result.tier != 'not built' else ''}"


def main() -> int:
    """Examine all, print them, and write the page."""
    warnings.simplefilter("ignore")
    import transformers
    from transformers.utils import logging

    logging.set_verbosity(logging.CRITICAL)
    results = []
    for name, kind in architectures():
        result = examine(name, kind)
        if result is None:
            continue
        if result.tier == "resolves" and name in VERIFIED[kind]:
            result = replace(result, tier="verified")
        print(f"{result.tier:10} {kind:8} {result.name:36} {result.layers:6} {result.why}")
        results.append(result)
    PAGE.write_text(page(results, transformers.__version__), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
