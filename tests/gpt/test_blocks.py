"""Matrices in the blocks of a GGUF: their numbers, and a model that computes with them."""

import copy

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.blocks import drawn_blocks, pair_in_blocks
from support.cpu_paths import SETS

import regard
from regard.gpt import GPT, CharTokenizer, Engine, GPTCache, GPTConfig, save
from regard.gpt.blocks import KINDS, BlockEmbedding, Blocks, block_linear, to_blocks
from regard.gpt.layers import Linear

# fmt: off
CONFIG = GPTConfig(
    vocab_size=61, context=23, layers=2, heads=8, dim=256, groups=2, positions="rotary", norm="rms",
    mlp="swiglu", hidden=512, bias=True, tied=False,
)
# fmt: on
READ, LENGTH = 11, 17
needs_kernels = pytest.mark.skipif(not SETS, reason="needs the native library")


@pytest.mark.parametrize("kind", KINDS, ids=lambda number: KINDS[number].name)
def test_their_numbers_are_those_of_gguf_bit_by_bit(kind):
    form = gguf.GGMLQuantizationType(kind)
    assert form.name == KINDS[kind].name
    assert gguf.GGML_QUANT_SIZES[form] == (KINDS[kind].numbers, KINDS[kind].size)
    draw = torch.Generator().manual_seed(7)
    blocks = drawn_blocks(kind, 13, 3 * KINDS[kind].numbers, draw)
    assert blocks.shape == (13, 3 * KINDS[kind].numbers)
    ((_, rows),) = blocks.parts
    expected = gguf.dequantize(rows.numpy(), form)
    assert np.array_equal(blocks.dequantized().numpy(), expected)
    assert torch.equal(torch.cat(list(blocks.tiles())), blocks.dequantized())


def test_an_embedding_has_the_rows_of_its_tokens():
    blocks = drawn_blocks(14, 17, 512, torch.Generator().manual_seed(1))
    embedding = BlockEmbedding(blocks)
    ids = torch.tensor([[3, 16], [0, 3]])
    assert torch.equal(embedding(ids), blocks.dequantized()[ids])
    assert embedding.bfloat16()(ids).dtype == torch.bfloat16
    with pytest.raises(IndexError):
        embedding(torch.tensor([17]))


def test_a_product_of_many_vectors_dequantises_some_rows_at_a_time(monkeypatch):
    monkeypatch.setattr("regard.gpt.blocks._TILE", 7 * 64)  # of 7 rows of 64 inputs
    draw = torch.Generator().manual_seed(4)
    blocks = Blocks.joined([drawn_blocks(3, 20, 64, draw), drawn_blocks(8, 11, 64, draw)])
    x, bias = torch.randn(2, 67, 64, generator=draw), torch.randn(31, generator=draw)
    largest = []
    multiply = F.linear
    monkeypatch.setattr(F, "linear", lambda x, w: largest.append(len(w)) or multiply(x, w))
    result = block_linear(x, blocks, bias)
    assert largest == [7, 7, 6, 7, 4]
    expected = multiply(x.double(), blocks.dequantized().double(), bias.double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    assert block_linear(x.bfloat16(), blocks, bias).dtype == torch.bfloat16


def test_the_modules_compute_with_the_numbers_of_the_blocks():
    model, exact = pair_in_blocks(CONFIG)
    ids = torch.randint(61, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model.double()(ids), exact(ids))
    with regard.record() as recording:
        model.float()(ids)
    _, patterns = exact.with_patterns(ids)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(recording[1].dense().double(), patterns[1].dense(), **close)


@pytest.mark.each_once
@needs_kernels
def test_a_step_is_what_the_numbers_of_the_blocks_give(threads, instructions):
    model, exact = pair_in_blocks(CONFIG)
    ids = torch.randint(61, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    padding = torch.tensor([2, 0, 5])
    with torch.inference_mode():
        engine = Engine(model, read=[regard.readouts.Entropy()])
        steps, others, doubles = (GPTCache(CONFIG, padding=padding) for _ in range(3))
        for one, cache in ((engine, steps), (engine, others), (exact, doubles)):
            one.next_logits(ids[:, :READ], cache)
        errors = []
        for t in range(READ, LENGTH):
            threads(1)
            logits = engine.next_logits(ids[:, t : t + 1], steps)
            assert [entropy.shape for (entropy,) in engine.readings] == [(3, 8, 1)] * 2
            threads(3)
            assert torch.equal(engine.next_logits(ids[:, t : t + 1], others), logits)
            expected = exact.next_logits(ids[:, t : t + 1], doubles)
            errors.append((logits.double() - expected) / expected.std())
    # Inputs of nine maps are rounded to 16 bits: the results of each are off by some 3·2⁻¹⁷ of
    # their spread, those of all by three times as much. The products of the gate and its values
    # make one of a thousand logits differ by eight times the usual.
    differences = torch.stack(errors)
    assert differences.square().mean().sqrt() < 9 * 2**-17
    assert differences.abs().max() < 72 * 2**-17


@needs_kernels
def test_what_cannot_be_is_refused(tmp_path):
    model, _ = pair_in_blocks(CONFIG)
    assert (model.weights, model.has_int8_weights) == ("blocks", False)
    with pytest.raises(ValueError, match="weights in blocks, which can't be trained"):
        model.train()
    tokenizer = CharTokenizer("".join(map(chr, range(97, 97 + 61))))
    with pytest.raises(ValueError, match="weights in blocks, which are made as it is loaded"):
        save(tmp_path / "own", model, tokenizer)
    with pytest.raises(ValueError, match="weights in blocks on meta"):
        copy.deepcopy(model).to("meta").h[0].mlp(torch.randn(2, 256))
    assert "its other weights torch.bfloat16" in Engine.objection(copy.deepcopy(model).bfloat16())
    mixed = copy.deepcopy(model)
    mixed.h[1].attn.c_proj = Linear(256, 256)
    assert "h.1.attn.c_proj is no matrix in blocks" in Engine.objection(mixed)
    with pytest.raises(ValueError, match=r"wte is \(61, 256\), and its blocks .* \(3, 256\)"):
        to_blocks(GPT(CONFIG), {"wte": drawn_blocks(14, 3, 256, torch.Generator())})
