"""What lenses cost beside the forward pass of their model, and beside what one would write oneself.

One would have the model store its weights, by eager attention, and take values by hooks; or have
TransformerLens keep them, where it is installed. The model is SmolLM2, of transformers, where its
weights are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import regard
from benchmarks.arguments import take_none
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved
from regard.errors import Error
from regard.gpt.stories import stories

if TYPE_CHECKING:
    from regard.models import LanguageModel

LENGTH, DOCUMENTS, LONG = 512, 2, 4096
TARGETS = {"toward": 1.5, "atlas": 1.5, "heads()": 0.25}
NEAR = 1e-3  # of the largest part: how far two ways to the same parts may lie apart


def lenses(report: Report) -> None:
    """Print the table."""
    if find_spec("transformers") is None:
        print("\nlenses: transformers is not installed")
        return
    try:
        model = regard.models.open("smollm2")
    except (Error, ModuleNotFoundError) as error:
        print(f"\nlenses: {str(error).splitlines()[0]}")
        return
    text = "".join(story.text for story in stories(0, 40 * DOCUMENTS))
    ids = torch.tensor(model.tokenizer.encode(text))[: LENGTH * DOCUMENTS].view(DOCUMENTS, LENGTH)
    report.table(
        f"lenses: SmolLM2, {LENGTH} tokens, beside the forward; processor time",
        *(("what", 34), ("ms", 9), ("of the forward", 16), ("half of the rounds", 18)),
    )
    require_same(model, ids[0])
    _rows(report, _toward(model, ids[0]))
    _rows(report, _atlas(model, ids))
    report.table(
        f"lenses: SmolLM2, {LONG} tokens, beside the forward; processor time",
        *(("what", 34), ("ms", 9), ("of the forward", 16), ("half of the rounds", 18)),
    )
    _rows(report, _heads(model))


def _rows(report: Report, tasks: dict[str, Callable[[], object]]) -> None:
    with torch.no_grad():
        measured = interleaved(tasks, clock=time.process_time)
    for name, seconds in measured.seconds.items():
        ratio = measured.ratio(name, "forward")
        cell = report.at_most(name, ratio.median, TARGETS.get(name))
        report.row(name, milliseconds(seconds), cell, f"{ratio.low:.2f} to {ratio.high:.2f}")


def _toward(model: LanguageModel, ids: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "forward": partial(model.module, ids[None]),
        "toward": partial(regard.lens.toward, model, ids, 0),
        "toward, by eager and hooks": partial(toward_by_hand, model.module, ids, 0),
    }


def _atlas(model: LanguageModel, ids: Tensor) -> dict[str, Callable[[], object]]:
    texts = [model.tokenizer.decode(document.tolist()) for document in ids]

    def forward() -> None:
        for document in ids:
            model.module(document[None])

    def by_hand() -> list[Tensor]:
        return [_read_by_hand(model.module, document) for document in ids]

    tasks: dict[str, Callable[[], object]] = {
        "forward": forward,
        "atlas": partial(regard.lens.atlas, model, texts, effects=0.0, probes=False),
        "three numbers, by eager": by_hand,
    }
    if find_spec("transformer_lens") is not None:
        tasks["three numbers, by TransformerLens"] = _by_transformer_lens(model, ids)
    return tasks


def _by_transformer_lens(model: Any, ids: Tensor) -> Callable[[], object]:
    from transformer_lens.model_bridge import TransformerBridge

    with TemporaryDirectory() as folder:  # it reads no model that is in memory
        model.module.save_pretrained(folder)
        model.tokenizer.inner.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, device="cpu")

    def read() -> list[Tensor]:
        read = []
        for document in ids:
            _, cache = bridge.run_with_cache(
                document[None], names_filter=lambda name: name.endswith("hook_pattern")
            )
            read.append(_numbers(cache.values()))
        return read

    return read


def _heads(model: LanguageModel) -> dict[str, Callable[[], object]]:
    text = "".join(story.text for story in stories(0, LONG // 70))
    ids = torch.tensor(model.tokenizer.encode(text))[:LONG]
    names = model.tokenizer.tokens(ids.tolist())
    with torch.no_grad(), regard.record(model.module, tokens=names) as recording:
        model.module(ids[None])
    return {
        "forward": partial(model.module, ids[None], logits_to_keep=1),
        "heads()": partial(regard.lens.heads, recording, progress=False),
    }


def require_same(model: LanguageModel, ids: Tensor) -> None:
    """Refuse to compare ways that give different parts.

    Raises:
        RuntimeError: if they do.
    """
    ours = regard.lens.toward(model, ids, 0).sources
    theirs = toward_by_hand(model.module, ids, 0)
    off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if off > NEAR:
        raise RuntimeError(f"toward by hand is off by {off:.1e} of the largest part")


def toward_by_hand(module: Any, ids: Tensor, token: int) -> Tensor:
    """What each head adds to the last position's logit of a token, by source, in a Llama.

    Returns:
        ``(layers, H, T)``.
    """
    values: list[Tensor] = []
    ends: list[Tensor] = []
    llama = module.model
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, value: values.append(value[0]))
        for layer in llama.layers
    ]
    hooks.append(
        llama.norm.register_forward_pre_hook(lambda _, given: ends.append(given[0][0, -1]))
    )
    try:
        with _eager(module):
            weights = module(ids[None], output_attentions=True).attentions
    finally:
        for hook in hooks:
            hook.remove()
    scale = torch.rsqrt(ends[0].square().mean() + llama.norm.variance_epsilon)
    direction = module.lm_head.weight[token] * llama.norm.weight * scale
    parts = []
    for layer, value, weight in zip(llama.layers, values, weights, strict=True):
        _, heads, _, length = weight.shape
        back = (layer.self_attn.o_proj.weight.T @ direction).view(heads, -1)  # (H, D)
        grouped = value.view(length, -1, back.shape[-1]).transpose(0, 1)  # (G, T, D)
        each = grouped.repeat_interleave(heads // len(grouped), 0)
        parts.append(weight[0, :, -1] * (each @ back[..., None])[..., 0])
    return torch.stack(parts)


def _read_by_hand(module: Any, ids: Tensor) -> Tensor:
    """Entropy, weight on the first token and on the previous one, means of each head."""
    with _eager(module):
        weights = module(ids[None], output_attentions=True).attentions
    return _numbers(weights)


def _numbers(weights: Iterable[Tensor]) -> Tensor:
    rows = []
    for weight in weights:
        entropy = torch.special.entr(weight[0]).sum(-1).mean(-1)
        previous = weight[0].diagonal(-1, -2, -1).mean(-1)
        rows.append(torch.stack([entropy, weight[0, :, :, 0].mean(-1), previous]))
    return torch.stack(rows)


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    own = module.config._attn_implementation  # noqa: SLF001 - there is no public name
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(own)


if __name__ == "__main__":
    take_none("benchmarks.lenses", "Measure what lenses cost beside the forward pass.")
    report = Report()
    lenses(report)
    report.summary()
