"""Weights kept as int8: how far they are from the model's own, and what computes with them."""

import copy
import weakref
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from support.cpu_paths import SETS

import regard
from regard.gpt import (
    GPT,
    CharTokenizer,
    CheckpointError,
    Engine,
    GPTCache,
    GPTConfig,
    Sampling,
    evaluate,
    generate,
    load,
    save,
    stories,
    write_gpt2,
)
from regard.gpt.int8 import Int8Matrix, int8_linear, quantized, to_int8
from regard.gpt.int8 import _quantize as quantize
from regard.lens import circuits
from regard.page import ModelSubject, PageError, report

GPT2 = GPTConfig(vocab_size=53, context=23, layers=3, heads=3, dim=39)
# fmt: off
LATER = GPTConfig(
    vocab_size=61, context=23, layers=3, heads=6, dim=84, groups=2, positions="rotary", norm="rms",
    mlp="swiglu", bias=False, qk_norm=True, window=7, global_every=2,
    head_width=10, tied=False, rotary_frequencies=(0.9, 0.5, 0.11, 0.02, 0.003),
)
# fmt: on
CONFIGS = pytest.mark.parametrize("config", [GPT2, LATER], ids=["gpt2", "later"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
READ, LENGTH = 11, 19
GREEDY = Sampling(temperature=0.0)
needs_kernels = pytest.mark.skipif(not SETS, reason="needs the native library")


def model_of(config):
    torch.manual_seed(5)
    model = GPT(config).eval()
    for parameter in model.parameters():  # or biases were 0, gains 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def pair(config, dtype=torch.float32):
    """A model with int8 weights, and one in float64 that holds the same numbers."""
    model = model_of(config)
    int8 = copy.deepcopy(model)
    to_int8(int8)
    int8.to(dtype)
    exact = copy.deepcopy(model).to(dtype).double()
    for name, module in int8.named_modules():
        if isinstance(module, Int8Matrix):
            weight = module.int8_weight.double() * module.scale.double()[:, None]
            exact.get_submodule(name).weight.data = weight
    return int8, exact


def size_of(model):
    """Bytes of all that a model holds."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def test_no_number_moves_by_more_than_half_a_scale():
    torch.manual_seed(1)
    weight = torch.randn(17, 131) * torch.logspace(-20, 20, 17)[:, None]
    weight[3] = 0
    int8, scale = quantized(weight)
    assert (int8.dtype, scale.dtype) == (torch.int8, torch.float32)
    # The division is rounded, by half an ε of a quotient of up to 127.
    apart = (weight.double() - int8 * scale.double()[:, None]).abs()
    assert (apart <= scale.double()[:, None] * (0.5 + 127 * 2**-24)).all()
    assert (int8.abs().amax(1) == torch.tensor([127] * 3 + [0] + [127] * 13)).all()
    assert scale[3] == 0
    assert torch.equal(Int8Matrix(weight).dequantized(), int8 * scale[:, None])


@CONFIGS
@DTYPES
def test_the_modules_compute_with_the_rounded_weights(config, dtype):
    int8, exact = pair(config, dtype)
    ids = torch.randint(config.vocab_size, (2, LENGTH))
    expected = exact(ids)
    # Some 40 roundings to the dtype follow each other in three layers, each of at most half an ε of
    # numbers that are a few times as large as the logits; in halves, most of them twice.
    close = 40 * expected.abs().max() * torch.finfo(dtype).eps
    logits = int8(ids)
    assert logits.dtype == dtype
    assert (logits.double() - expected).abs().max() < close
    assert int8.double()(ids).dtype == torch.float64
    if dtype == torch.float32:
        torch.testing.assert_close(int8.double()(ids), expected)


@pytest.mark.each_once
@needs_kernels
@CONFIGS
@DTYPES
def test_a_step_is_what_the_modules_compute(config, dtype, instructions):
    int8, exact = pair(config, dtype)
    ids = torch.randint(config.vocab_size, (3, LENGTH))
    padding = torch.tensor([2, 0, 5])
    with torch.inference_mode():
        steps, modules, doubles = (GPTCache(config, padding=padding) for _ in range(3))
        engine = Engine(int8)
        for model, cache in ((engine, steps), (int8, modules), (exact, doubles)):
            model.next_logits(ids[:, :READ], cache)
        for t in range(READ, LENGTH):
            logits = engine.next_logits(ids[:, t : t + 1], steps)
            assert logits.dtype == dtype
            others = int8.next_logits(ids[:, t : t + 1], modules)
            expected = exact.next_logits(ids[:, t : t + 1], doubles)
            close = 40 * expected.abs().max() * torch.finfo(dtype).eps  # as above
            assert (logits.double() - expected).abs().max() < close
            assert (logits.double() - others.double()).abs().max() < close


@needs_kernels
@CONFIGS
def test_neither_threads_nor_the_sequences_beside_it_change_a_bit(config, threads, instructions):
    int8, _ = pair(config)
    engine = Engine(int8)
    ids = torch.randint(config.vocab_size, (8, 7))

    with torch.inference_mode():
        read = GPTCache(config)
        int8.next_logits(ids[:, :1], read)

        def logits(rows):
            cache = GPTCache(config)
            int8.next_logits(ids[rows, :1], cache)
            for layer, own in zip(cache.layers, read.layers, strict=True):
                for memory, bits in zip(layer.memory, own.memory, strict=True):
                    memory.copy_(bits[rows])  # those of one and the same prompt
            return torch.stack(
                [engine.next_logits(ids[rows, t : t + 1], cache) for t in range(1, 7)]
            )

        threads(1)
        whole = logits(slice(0, 8))
        threads(3)
        for rows in (slice(0, 8), slice(7, 8), slice(2, 5)):
            assert torch.equal(logits(rows), whole[:, rows])


def test_a_product_of_many_vectors_holds_some_rows_as_floats(monkeypatch):
    monkeypatch.setattr("regard.gpt.int8._TILE", 7 * 31)  # of 7 rows of 31 inputs
    x, weight, bias = torch.randn(2, 13, 31), torch.randn(53, 31), torch.randn(53)
    int8, scale = quantized(weight)
    largest = []
    multiply = F.linear
    monkeypatch.setattr(F, "linear", lambda x, w, b: largest.append(len(w)) or multiply(x, w, b))
    result = int8_linear(x, int8, scale, bias)
    assert largest == [7] * 7 + [4]
    expected = multiply(x.double(), int8 * scale.double()[:, None], bias.double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_of_some_vectors_each_is_what_it_is_alone(instructions):
    x, bias = torch.randn(3, 7, 131), torch.randn(53)
    int8, scale = quantized(torch.randn(53, 131))
    with torch.inference_mode():
        together = int8_linear(x, int8, scale, bias)
        for row in range(3):
            for place in range(7):
                alone = int8_linear(x[row, place], int8, scale, bias)
                assert torch.equal(alone, together[row, place])
    torch.testing.assert_close(int8_linear(x, int8, scale, bias), together.clone())


def test_half_precision_does_not_overflow_before_the_scale():
    x = torch.full((9, 1009), 8.0, dtype=torch.float16)
    int8, scale = quantized(torch.full((3, 1009), 2.0**-6))
    assert torch.equal(int8_linear(x, int8, scale, None), torch.full((9, 3), 126.125).half())
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(
            int8_linear(x.float(), int8, scale, None), int8_linear(x, int8, scale, None)
        )


def test_gradients_of_activations_go_through():
    int8, exact = pair(GPT2)
    x = torch.randn(2, 5, 39, requires_grad=True)
    (gradient,) = torch.autograd.grad(int8.h[1](x).square().sum(), x)
    double = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(exact.h[1](double).square().sum(), double)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-4)


def test_loading_as_int8_takes_a_quarter_and_computes_alike():
    model, tokenizer = load()
    int8, _ = load(weights="int8")
    matrices = [p for p in model.parameters() if p.ndim == 2]  # it has no learned positions
    numbers, rows = sum(p.numel() for p in matrices), sum(map(len, matrices))
    assert size_of(int8) == size_of(model) - 3 * numbers + 4 * rows
    assert int8.has_int8_weights
    assert not model.has_int8_weights
    assert (int8.dtype, int8.device) == (torch.float32, torch.device("cpu"))
    assert int8(torch.tensor([1, 2])).dtype == torch.float32
    ids = torch.tensor(tokenizer.encode("The cat sat on the mat. The cat sat"))
    assert tokenizer.decode([int(int8(ids)[-1].argmax())]) == " on"


def test_perplexity_on_stories_that_it_did_not_read_is_within_half_a_percent():
    model, tokenizer = load()
    int8, _ = load(weights="int8")
    texts = [[*tokenizer.encode(story.text), tokenizer.end] for story in stories.stories(0, 12)]
    ids = torch.tensor(list(chain.from_iterable(texts)))
    apart = evaluate(int8, ids, end=tokenizer.end) - evaluate(model, ids, end=tokenizer.end)
    assert abs(apart) < 0.005  # nats: what perplexities differ by, as a share


@needs_kernels
def test_it_generates_by_steps_and_by_modules_the_same_text():
    int8, tokenizer = load(weights="int8")
    ids = torch.tensor(tokenizer.encode("The cat sat on the"))
    engine = Engine(int8)
    steps = generate(engine, ids, tokens=30, sampling=GREEDY)
    assert torch.equal(generate(int8, ids, tokens=30, sampling=GREEDY), steps)
    together = generate(engine, ids.expand(9, -1), tokens=30, sampling=GREEDY)
    assert torch.equal(together, steps.expand(9, -1))


def test_it_is_recorded_and_changed_like_any_other():
    int8, exact = pair(GPT2)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with regard.record() as recording:
        int8(ids)
    _, patterns = exact.with_patterns(ids)
    assert len(recording) == 3
    # float32 beside float64, after two layers: some tens of roundings of numbers near 1.
    close = {"rtol": 1e-5, "atol": 40 * 2**-24}
    torch.testing.assert_close(recording[2].dense().double(), patterns[2].dense(), **close)
    with regard.intervene(int8) as change:
        change.ablate(layers=1, heads=2)
        changed = int8(ids)
    with regard.intervene(exact) as change:
        change.ablate(layers=1, heads=2)
        torch.testing.assert_close(changed.double(), exact(ids), rtol=1e-4, atol=1e-4)


def test_scales_stay_in_float32_and_the_state_holds_all_that_is_needed():
    int8, _ = pair(LATER)
    other = model_of(LATER)
    to_int8(other)
    other.wte.scale.zero_()
    other.load_state_dict(int8.state_dict())
    ids = torch.tensor([3, 1, 4])
    assert torch.equal(other(ids), int8(ids))
    scales = int8.wte.scale.clone()
    int8.bfloat16()
    assert (int8.dtype, int8.wte(ids).dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(int8.wte.scale, scales)
    assert int8.to("meta").wte.scale.is_meta


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="weights is 'int4'; expected 'int8', or None for float32"):
        load(weights="int4")
    with pytest.raises(ValueError, match="weights is 'int8', which is computed on a CPU"):
        load(weights="int8", device="cuda")
    int8, tokenizer = load(weights="int8")
    with pytest.raises(ValueError, match="weights in int8, which can't be trained"):
        int8.train()
    assert not int8.training
    with pytest.raises(ValueError, match="weights in int8, which are made as it is loaded"):
        save(tmp_path / "own", int8, tokenizer)
    with pytest.raises(ValueError, match="weights in int8, which are made as it is loaded"):
        write_gpt2(int8, tmp_path / "theirs")
    with pytest.raises(ValueError, match="int8 weights on meta"):
        copy.deepcopy(int8).to("meta").h[0].mlp(torch.randn(2, 128))
    with pytest.raises(IndexError):
        int8.next_logits(torch.tensor([-1]), GPTCache(int8.config))
    with pytest.raises(TypeError, match="model has weights in int8"):
        circuits.qk(int8, 0, 0)
    with pytest.raises(PageError, match="the model has weights in int8"):
        report(ModelSubject(int8, tokenizer, title="t"), tmp_path / "page.html", live=True)


@pytest.mark.parametrize("by_transformers", [False, True])
def test_while_it_is_loaded_no_two_matrices_are_floating_point(
    tmp_path, monkeypatch, by_transformers
):
    model = model_of(GPT2)
    tokenizer = CharTokenizer("".join(map(chr, range(97, 97 + GPT2.vocab_size))))
    save(tmp_path, model, tokenizer, dtype=torch.float16)
    if by_transformers:
        write_gpt2(model, tmp_path)
        monkeypatch.setattr("regard.gpt.checkpoint.read_gpt2_tokenizer", lambda _: tokenizer)
    seen = []

    def watched(weight, *rest):
        # That of the embeddings is kept until its file was read, in case it holds an lm_head.
        alive = {name for name, before in seen if before() is not None}
        assert alive <= ({"wte.weight"} if by_transformers else set())
        seen.append((rest[-1], weakref.ref(weight)))
        quantize(weight, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("regard.gpt.int8._quantize", watched)
        int8, _ = load(tmp_path, weights="int8")
    assert len(seen) == 4 * GPT2.layers + 1
    expected = copy.deepcopy(load(tmp_path)[0])
    to_int8(expected)
    assert int8.state_dict().keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(int8.state_dict()[name], tensor), name
    assert not any(p.requires_grad for p in int8.parameters())


def test_a_damaged_file_is_refused_before_its_numbers_are_looked_at(tmp_path):
    model, tokenizer = load()
    save(tmp_path, model, tokenizer)
    file = tmp_path / "model.safetensors"
    contents = bytearray(file.read_bytes())
    contents[-2:] = b"\xff\xff"  # NaN, perhaps
    file.write_bytes(contents)
    with pytest.raises(CheckpointError, match="damaged: its tensors were changed"):
        load(tmp_path, weights="int8")
