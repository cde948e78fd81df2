"""A GGUF whose matrices stay in its blocks: the logits of its numbers, or a refusal."""

import gguf
import numpy as np
import pytest
import torch
from support import small_models
from support.blocks import BLOCK_KINDS, drawn_blocks
from support.real import smollm2_file
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.gpt import CheckpointError, Engine, GPTCache, Sampling, generate
from regard.gpt.blocks import KINDS, blocks_of
from small_gguf import write_gguf

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 61,
}
GREEDY = Sampling(temperature=0.0)


def written(path, kept, **changed):
    """A GGUF of a random Llama; without the head where it is the embedding."""
    tokenizer = small_models.tokenizer("the cat sat on the mat, the dog sat on the cat")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SIZES | changed)).eval()
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    model.state_dict = lambda: state
    write_gguf(path, model, tokenizer, kept)
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def file(request, tmp_path_factory):
    """A random Llama whose matrices are in blocks of all kinds, those of a map in several."""
    path = tmp_path_factory.mktemp("blocks") / "any.gguf"
    draw = torch.Generator().manual_seed(11)
    kinds = iter(BLOCK_KINDS * 9)

    def kept(name, weight):
        if weight.ndim == 1:
            return (1 + 0.3 * torch.randn(weight.shape, generator=draw)).numpy(), None
        ((kind, rows),) = drawn_blocks(next(kinds), *weight.shape, draw).parts
        return rows.numpy(), gguf.GGMLQuantizationType(kind)

    return written(path, kept, tie_word_embeddings=request.param)


def test_the_logits_are_those_of_the_dequantised_model(file):
    model = regard.models.open(file, weights="blocks")
    expected = regard.models.open(file)
    assert model.module.weights == "blocks"
    matrices = blocks_of(model.module)
    assert len(matrices["h.0.attn.c_attn"].parts) == 3
    assert {kind for one in matrices.values() for kind, _ in one.parts} == {*BLOCK_KINDS}
    ids = torch.arange(47) * 31 % model.vocab_size
    with torch.no_grad():
        logits = expected(ids)
        torch.testing.assert_close(model(ids), logits, rtol=0, atol=float(1e-5 * logits.std()))
    assert all(check.holds for check in model.checks)


def test_it_generates_by_an_engine_with_readouts(file):
    model = regard.models.open(file, weights="blocks")
    exact = regard.models.open(file).as_gpt().module
    engine = Engine(model.module, read=[regard.readouts.Entropy()])
    ids = torch.tensor([3, 1, 4, 1, 5])
    drawn = generate(engine, ids, tokens=17, sampling=GREEDY)
    assert [entropy.shape for (entropy,) in engine.readings] == [(1, 8, 1)] * 3
    with torch.no_grad():
        logits = exact(drawn)
    apart = logits.max(-1).values - logits.gather(-1, drawn.roll(-1)[:, None])[:, 0]
    assert (apart[len(ids) - 1 : -1] < 1e-3 * logits.std()).all()
    assert list(model.stream(ids.tolist(), tokens=17, sampling=GREEDY)) == drawn[5:].tolist()


def test_floating_point_matrices_stay_as_they_are(gguf_file):
    model = regard.models.open(gguf_file, weights="blocks")
    parts = [part for one in blocks_of(model.module).values() for part in one.parts]
    assert {KINDS[kind].name for kind, _ in parts} == {"F32", "F16"}
    ids = torch.arange(47) * 31 % model.vocab_size
    with torch.no_grad():
        expected = regard.models.open(gguf_file)(ids)
        torch.testing.assert_close(model(ids), expected, rtol=0, atol=float(1e-4 * expected.std()))


def test_what_cannot_be_is_refused(gguf_file, folder, tmp_path):
    with pytest.raises(ValueError, match="weights is 'blocks', which are those of a GGUF"):
        regard.models.open(folder, weights="blocks")
    with pytest.raises(ValueError, match=r"weights is 'blocks', .* GGUF, and the model that comes"):
        regard.models.open(weights="blocks")
    with pytest.raises(ValueError, match="are computed on a CPU, and device is cuda"):
        regard.models.open(gguf_file, weights="blocks", device="cuda")
    with pytest.raises(ValueError, match="dtype goes without weights"):
        regard.models.open(gguf_file, weights="blocks", dtype="bfloat16")
    with pytest.raises(regard.Error, match="has weights in blocks: open it with"):
        regard.models.open(gguf_file, weights="blocks").as_gpt(weights="int8")

    def kept(name, weight):
        if weight.ndim == 1:
            return weight.numpy(), None
        kind = gguf.GGMLQuantizationType.Q5_0
        return gguf.quantize(np.ascontiguousarray(weight.numpy()), kind), kind

    written(tmp_path / "five.gguf", kept)
    with pytest.raises(CheckpointError, match=r"weight in Q5_0, .* without weights=\"blocks\""):
        regard.models.open(tmp_path / "five.gguf", weights="blocks")


@pytest.mark.real
@pytest.mark.thorough
def test_smollm2_gives_the_logits_of_its_dequantised_blocks():
    model = regard.models.open(smollm2_file(), weights="blocks")
    exact = regard.models.open(smollm2_file()).as_gpt().module
    prompt = torch.tensor(model.read("The capital of France is").ids)
    drawn = generate(Engine(model.module), prompt, tokens=61, sampling=GREEDY)
    with torch.inference_mode():
        logits = exact(drawn)
        engine, cache = Engine(model.module), GPTCache(exact.config)
        steps = torch.stack([engine.next_logits(token[None], cache) for token in drawn])
    bound = 0.004 * logits.std(-1)
    assert ((steps - logits).abs().amax(-1) < bound).all()
    best = logits.topk(2).values
    sure = best[:, 0] - best[:, 1] > 2 * bound
    assert sure.sum() > 55
    assert torch.equal(steps.argmax(-1)[sure], logits.argmax(-1)[sure])
