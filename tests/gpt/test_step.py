"""A step of generation in one native call: what it computes, and when the modules do instead."""

import copy
import gc
import weakref

import pytest
import torch
from support.cpu_paths import SETS
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig, Sampling, _step, generate, load, stream
from regard.gpt.layers import Embedding, Linear
from regard.gpt._step import step_logits, step_objection
from regard.gpt.cache import GPTCache
from regard.gpt.layers import SwiGLU

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

GPT2 = GPTConfig(vocab_size=53, context=23, layers=3, heads=3, dim=39)
# fmt: off
LATER = GPTConfig(
    vocab_size=61, context=23, layers=3, heads=6, dim=84, groups=2, positions="rotary", norm="rms",
    mlp="swiglu", bias=False, qk_norm=True, window=7, global_every=2,
)
# fmt: on
CONFIGS = pytest.mark.parametrize("config", [GPT2, LATER], ids=["gpt2", "later"])
PADDING = (2, 0, 5)
READ, LENGTH = 11, 19
SEQUENCES = 19  # more than any set multiplies together


def model_of(config, dtype=torch.float32):
    torch.manual_seed(5)
    model = GPT(config)
    for parameter in model.parameters():  # or biases were 0, gains 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def read(model, ids, padding=None):
    """A cache that the modules filled."""
    cache = GPTCache(model.config, padding=padding)
    model.next_logits(ids, cache)
    return cache


def copied(cache, model, rows):
    """A cache of some of the sequences, with the same bits."""
    part = GPTCache(model.config, padding=cache.layers[0].padding[rows])
    model.next_logits(torch.zeros(len(part.layers[0].padding), READ, dtype=torch.long), part)
    for to, one in zip(part.layers, cache.layers, strict=True):
        for memory, own in zip(to.memory, one.memory, strict=True):
            memory.copy_(own[rows])
    return part


@CONFIGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_what_the_modules_compute(config, dtype, instructions):
    model, padding = model_of(config, dtype), torch.tensor(PADDING)
    ids = torch.randint(config.vocab_size, (3, LENGTH))
    with torch.inference_mode():
        steps, modules = (read(model, ids[:, :READ], padding) for _ in range(2))
        exact = GPTCache(config, padding=padding)
        double = model_of(config, dtype).double()
        double.next_logits(ids[:, :READ], exact)
        for t in range(READ, LENGTH):
            logits = step_logits(model, ids[:, t : t + 1], steps)
            assert logits is not None
            with model.h[0].register_forward_hook(lambda *_: None):
                others = model.next_logits(ids[:, t : t + 1], modules)
            expected = double.next_logits(ids[:, t : t + 1], exact)
            # Some 40 roundings to the dtype follow each other in three layers, each of at most
            # half an ε of numbers that are a few times as large as the logits.
            scale = expected.abs().max() * torch.finfo(dtype).eps
            assert (logits.double() - expected).abs().max() < 20 * scale
            assert (logits.double() - others.double()).abs().max() < 20 * scale


@CONFIGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_threads_nor_the_sequences_beside_it_change_a_bit(
    config, dtype, threads, instructions
):
    model = model_of(config, dtype)
    ids = torch.randint(config.vocab_size, (SEQUENCES, LENGTH))
    padding = torch.arange(SEQUENCES) % 4
    threads(2)
    with torch.inference_mode():
        all_of_them = read(model, ids[:, :READ], padding)
        again = copied(all_of_them, model, slice(0, SEQUENCES))
        parts = [(0, 1), (7, 8), (2, 5), (6, SEQUENCES)]
        some = {rows: copied(all_of_them, model, slice(*rows)) for rows in parts}
        for t in range(READ, LENGTH):
            threads(2)
            whole = step_logits(model, ids[:, t : t + 1], all_of_them)
            threads(1)
            assert torch.equal(step_logits(model, ids[:, t : t + 1], again), whole)
            for rows, cache in some.items():
                part = slice(*rows)
                assert torch.equal(step_logits(model, ids[part, t : t + 1], cache), whole[part])


def test_the_shipped_model_writes_the_same_text():
    model, tokenizer = load()
    ids, greedy = torch.tensor(tokenizer.encode("The cat sat on the")), Sampling(temperature=0.0)
    steps = generate(model, ids, tokens=60, sampling=greedy)
    with model.h[0].register_forward_hook(lambda *_: None):
        modules = generate(model, ids, tokens=60, sampling=greedy)
    assert torch.equal(steps, modules)


def test_a_sequence_without_a_batch_has_logits_without_one():
    model = model_of(GPT2)
    ids = torch.tensor([3, 1, 4, 1, 5])
    with torch.inference_mode():
        cache, batch = read(model, ids[:4]), read(model, ids[None, :4])
        logits = step_logits(model, ids[4:], cache)
        assert logits.shape == (53,)
        assert torch.equal(logits, step_logits(model, ids[None, 4:], batch)[0])


def test_tokens_outside_the_vocabulary_and_a_full_cache_are_refused_before_anything_changes():
    model, ids = model_of(GPT2), torch.zeros(2, 22, dtype=torch.long)
    with torch.inference_mode():
        cache = read(model, ids)
        with pytest.raises(IndexError, match="ids holds 53; expected 0 to 52, the vocabulary"):
            model.next_logits(torch.tensor([[0], [53]]), cache)
        assert cache.length == 22
        model.next_logits(ids[:, :1], cache)
        with pytest.raises(ValueError, match="the cache holds 23 of at most 23 tokens"):
            model.next_logits(ids[:, :1], cache)


def has(path, value):
    """A change of a model, after which this is what is there."""

    def change(model):
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, value)

    if isinstance(value, nn.Module):
        value.eval()
    return change


def numbers(size):
    return nn.Parameter(torch.ones(size))


def test_what_has_to_see_the_modules_sees_them():
    model = model_of(GPT2)
    ids = torch.tensor([[3, 1, 4]])
    one = ids[:, :1]
    with torch.inference_mode():
        cache = read(model, ids)
        assert step_objection(model, one, cache) is None
        calls = []
        with model.h[1].mlp.register_forward_hook(lambda *_: calls.append(1)):
            assert step_objection(model, one, cache) == "h.1.mlp has hooks"
            model.next_logits(one, cache)
        assert len(calls) == 1
        with regard.record() as recording:
            assert "recording" in step_objection(model, one, cache)
            model.next_logits(one, cache)
        assert len(recording) == 3
        with torch.profiler.profile():
            assert "profiler" in step_objection(model, one, cache)
        with torch.autocast("cpu", torch.bfloat16):
            assert step_objection(model, one, cache) == "autocast is on"
    with torch.no_grad():
        assert "gradients" in step_objection(model, one, cache)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nn.Module.train, "the model is in training mode"),
        (nn.Module.double, "is torch.float64"),
        (has("h.0.mlp.c_fc", nn.Linear(39, 156)), "mlp.c_fc is a Linear"),
        (has("ln_f.forward", lambda x: x), "forward method of ln_f"),
        (has("h.2.attn.mask", regard.window(3)), "h.2.attn.mask"),
        (has("h.0.attn.heads", 1), "h.0.attn has other heads"),
        (has("h.0.mlp.c_fc", Linear(39, 31)), "h.0.mlp.c_fc has parameters of another shape"),
        (has("h.0.mlp.c_proj", Linear(331, 39)), "h.0.mlp.c_proj has parameters of another shape"),
        (has("h.1.ln_1.weight", numbers(5)), "h.1.ln_1 has parameters of another shape"),
        (has("h.1.attn.c_proj.bias", numbers(1)), "h.1.attn.c_proj has parameters of"),
        (has("h.2.mlp", SwiGLU(GPT2)), "h.2.mlp is a SwiGLU"),
        (has("h.2.attn.q_norm", nn.RMSNorm(13, 1e-5)), "h.2.attn normalizes queries or keys"),
        (has("h", nn.ModuleList()), "there are 0 layers, and the configuration has 3"),
        (has("ln_f.weight", numbers(5)), "ln_f has parameters of another width than 39"),
        (has("ln_f", nn.RMSNorm(39)), "ln_f leaves its eps to torch"),
        (has("wpe", Embedding(19, 39)), "more tokens than there are learned positions"),
        (has("wpe", None), "wpe is not as the configuration says"),
    ],
)
def test_a_model_that_changes_between_steps_is_computed_by_its_modules(change, reason):
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    with torch.inference_mode():
        cache = read(model, ids)
        assert step_logits(model, ids[:, :1], cache) is not None
        change(model)
        assert reason in step_objection(model, ids[:, :1], cache)
        assert step_logits(model, ids[:, :1], cache) is None


@CONFIGS
def test_the_model_is_read_once_for_all_steps_and_again_when_it_changed(config, monkeypatch):
    model, ids = model_of(config), torch.tensor([[3, 1, 4]])
    built = []
    weights = _step._weights
    monkeypatch.setattr(_step, "_weights", lambda *a: built.append(1) or weights(*a))
    with torch.inference_mode():
        cache = read(model, ids)
        for _ in range(3):
            assert step_logits(model, ids[:, :1], cache) is not None
        assert len(built) == 1
        model.h[1].ln_2 = copy.deepcopy(model.h[1].ln_2)
        before = step_logits(model, ids[:, :1], cache)
        assert len(built) == 2
        model.ln_f.eps = 0.5
        after = step_logits(model, ids[:, :1], cache)
        assert len(built) == 3
        assert not torch.allclose(before, after, rtol=1e-3)
        model.h[0].register_module("more", nn.Linear(2, 2))
        assert step_logits(model, ids[:, :1], cache) is None


def test_generation_compares_the_model_before_its_first_step_and_a_stream_before_each(monkeypatch):
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    compared = []
    objection, is_current = _step.objection_to_model, _step._Step.is_current
    monkeypatch.setattr(_step, "objection_to_model", lambda *a: compared.append(0) or objection(*a))
    monkeypatch.setattr(_step._Step, "is_current", lambda *a: compared.append(1) or is_current(*a))
    greedy = Sampling(temperature=0.0)
    whole = generate(model, ids, tokens=9, sampling=greedy)
    assert compared == [0]
    drawn = stream(model, ids, tokens=9, sampling=greedy)
    assert [int(next(drawn)) for _ in range(4)] == whole[0, 3:7].tolist()
    assert compared == [0, 0, 1, 1]
    model.wte.weight.data = model.wte.weight.flip(0)
    assert [int(token) for token in drawn] != whole[0, 7:].tolist()
    assert compared[4:] == [1, 0, 1, 1, 1, 1]


def test_what_is_known_of_a_cache_is_forgotten_with_it():
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    with torch.inference_mode():
        cache = read(model, ids)
        assert step_logits(model, ids[:, :1], cache) is not None
    step = weakref.ref(_step._STEPS[cache])
    del cache
    gc.collect()
    assert step() is None


def test_other_weights_and_other_caches_are_noticed():
    model, other = model_of(GPT2), model_of(LATER)
    ids = torch.tensor([[3, 1, 4]])
    with torch.inference_mode():
        cache, same = read(model, ids), read(model, ids)
        assert torch.equal(
            step_logits(model, ids[:, :1], cache), step_logits(model, ids[:, :1], same)
        )
        model.wte.weight = nn.Parameter(model.wte.weight + 1, requires_grad=False)
        after = step_logits(model, ids[:, :1], cache)
        with model.h[0].register_forward_hook(lambda *_: None):
            torch.testing.assert_close(after, model.next_logits(ids[:, :1], same))
        assert "another model's" in step_objection(other, ids[:, :1], cache)
        assert "33 sequences" in step_objection(model, ids[:, :1].expand(33, 1), cache)
        assert "2 tokens" in step_objection(model, ids[:, :2], cache)
        assert "is empty" in step_objection(model, ids[:, :1], GPTCache(GPT2))


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        (torch.zeros(2, 1), TypeError, "ids is torch.float32; expected a tensor of int64 or int32"),
        (torch.zeros(2, 1, dtype=torch.bool), TypeError, "ids is torch.bool"),
        ([[1], [2]], TypeError, "ids is list"),
        (torch.tensor(1), ValueError, r"ids has shape \(\); expected \(B, T\) or \(T,\)"),
        (torch.zeros(2, 1, 1, dtype=torch.long), ValueError, r"ids has shape \(2, 1, 1\)"),
        (torch.zeros(2, 0, dtype=torch.long), ValueError, r"\(2, 0\); expected at least one token"),
    ],
)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_ids_of_a_step_are_checked_as_those_of_a_call(ids, kind, message, mode):
    model = model_of(GPT2)
    with mode():
        cache = read(model, torch.tensor([[3, 1], [4, 1]]))
        with pytest.raises(kind, match=message):
            model.next_logits(ids, cache)
        assert cache.length == 2
