"""The model's options, against their formulas in float64; and the cache, against no cache."""

from __future__ import annotations

import pytest
import torch
from support.gpt_formulas import made, written_out
from support.gpt_variants import VARIANTS

import regard
from regard.cli.model import head_steps
from regard.gpt import (
    GPT,
    BPETokenizer,
    CharTokenizer,
    GPTCache,
    GPTConfig,
    load,
    parameter_counts,
    save,
)
from regard.lens.circuits import ov, qk
from regard.models import LanguageModel
from regard.page.subjects import ModelSubject

LETTERS = "abcdefghijklmnopqrstuvwxyz,. "


@pytest.fixture(params=VARIANTS)
def config(request):
    return VARIANTS[request.param]


@pytest.fixture
def ids():
    return torch.randint(29, (2, 13), generator=torch.Generator().manual_seed(2))


def test_an_option_is_its_formula(config, ids):
    model = made(config)
    expected, _ = written_out(model, ids)
    # float32 rounds at 6e-8; three layers of sums over up to 144 terms lose less than three digits.
    torch.testing.assert_close(model(ids), expected.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.double()(ids), expected, rtol=1e-11, atol=1e-11)


def test_the_parameters_are_counted_as_the_model_has_them(config):
    counts = parameter_counts(config)
    with torch.device("meta"):
        sizes = {name: p.numel() for name, p in GPT(config).named_parameters()}
    assert counts.total == sum(sizes.values())
    assert counts.heads == sum(size for name, size in sizes.items() if ".attn." in name)
    assert counts.mlp == sum(size for name, size in sizes.items() if ".mlp." in name)
    assert counts.position_embedding == sizes.get("wpe.weight", 0)
    assert counts.unembedding == sizes.get("lm_head.weight", 0)


@pytest.mark.each_once
@pytest.mark.parametrize("cuts", [[9, 1, 1, 1, 1], [1, 5, 7], [13]], ids=str)
def test_cached_logits_are_the_uncached_ones(config, ids, cuts):
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        model, cache = made(config, dtype), GPTCache(config)
        parts = [model(part, cache=cache) for part in ids.split(cuts, dim=-1)]
        expected = model(ids)
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=tolerance, atol=tolerance)
        cache.reset()
        for part in ids.split(cuts, dim=-1):
            last = model.next_logits(part, cache)
        torch.testing.assert_close(last, expected[:, -1], rtol=tolerance, atol=tolerance)


def test_padded_sequences_come_out_as_alone(config, ids):
    model, padding = made(config, torch.float64), torch.tensor([4, 0])
    cache = GPTCache(config, padding=padding)
    parts = [model(part, cache=cache) for part in ids.split([8, 1, 1, 3], dim=-1)]
    logits = torch.cat(parts, dim=1)
    for row, start in enumerate(padding):
        alone = model(ids[row, start:])
        torch.testing.assert_close(logits[row, start:], alone, rtol=1e-11, atol=1e-11)


def test_patterns_of_a_cached_step_are_rows_of_the_whole(config, ids):
    model, cache = made(config, torch.float64), GPTCache(config)
    _, whole = model.with_patterns(ids)
    model(ids[:, :11], cache=cache)
    _, step = model.with_patterns(ids[:, 11:], cache=cache)
    for layer, (one, other) in enumerate(zip(step, whole, strict=True)):
        keys = one.shape[-1]
        assert keys <= 2 * (config.layer_window(layer) or 13)  # what lies behind it is not kept
        torch.testing.assert_close(one.dense(), other[:, :, 11:, -keys:], rtol=1e-11, atol=1e-11)
        assert other[:, :, 11:, : 13 - keys].sum() == 0


def test_a_cache_is_full_at_its_capacity(ids):
    config = VARIANTS["gpt2"]
    model, cache = made(config), GPTCache(config, capacity=5)
    model(ids[:, :4], cache=cache)
    with pytest.raises(ValueError, match="holds 4 of at most 5 tokens, and ids has 2 more"):
        model(ids[:, 4:6], cache=cache)
    for capacity in (0, 14):
        with pytest.raises(ValueError, match=f"capacity is {capacity}; expected 1 to 13"):
            GPTCache(config, capacity=capacity)


def test_gradients_reach_every_parameter(config, ids):
    model = made(config).train()
    model(ids).square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_autocast_and_half_precision_run(config, ids):
    model = made(config)
    expected = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model(ids)
    # bfloat16 has three digits; the largest logits stand at about 10.
    spread = 0.1 * expected.std()
    assert (cast.float() - expected).square().mean().sqrt() < spread
    half = model.bfloat16()(ids)
    assert (half.float() - expected).square().mean().sqrt() < spread


def test_tools_of_interpretation_take_every_variant(config, ids):
    model = made(config)
    _, patterns = model.with_patterns(ids[0])
    opened = LanguageModel(model, CharTokenizer(LETTERS), name="a model")
    for layer, head in ((0, 5), (2, 1)):
        steps = head_steps(opened, ids[0].tolist(), layer, head)
        expected = patterns[layer][head].dense()
        torch.testing.assert_close(steps.weights, expected, rtol=1e-4, atol=1e-5)
    assert ov(model, 1, 4).shape == (36, 36)
    if config.qk_norm:
        with pytest.raises(TypeError, match="q_norm, k_norm inside its attention"):
            qk(model, 1, 4)
    with regard.record(model) as recording:
        model(ids)
    torch.testing.assert_close(recording[2].dense()[0], patterns[2].dense(), rtol=1e-4, atol=1e-5)


def test_the_explorer_knows_every_variants_values(config):
    model = made(config)
    contexts = []
    model.h[1].attn.c_proj.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[0]))
    subject = ModelSubject(model, CharTokenizer(LETTERS), title="a model", text="as it was")
    run = subject.run(subject.about()["runs"][0])
    weights = run.layers[1].pattern.dense()  # (H, T, T)
    context = (weights @ torch.stack(run.values[1])).transpose(0, 1).flatten(1)  # (T, E)
    torch.testing.assert_close(context, contexts[-1], rtol=1e-4, atol=1e-5)


def test_a_variant_is_kept_and_loaded(tmp_path, ids):
    tokenizer = BPETokenizer.train(["ab"], vocab_size=256)
    config = GPTConfig(
        vocab_size=256, context=13, layers=1, heads=2, dim=8, positions="rotary", groups=1
    )
    model = made(config)
    save(tmp_path, model, tokenizer)
    save(tmp_path, model, tokenizer)  # it is the same model
    loaded, _ = load(tmp_path)
    assert loaded.config == config
    assert loaded(ids).equal(model(ids))


def test_first_norms_are_ones_and_first_biases_zeros(config):
    for name, parameter in GPT(config).named_parameters():
        if parameter.ndim < 2:
            assert parameter.eq(float(name.endswith("weight"))).all(), name
