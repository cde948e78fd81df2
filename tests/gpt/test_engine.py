"""An engine's steps: what they compute, which models have none, what it can't compute."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.cpu_paths import SETS
from torch import nn

import regard
from regard.backends import native
from regard.backends.native import _readouts
from regard.gpt import GPT, Engine, GPTCache, GPTConfig, Sampling, generate, load, stream
from regard.gpt.layers import Linear, SwiGLU

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

GPT2 = GPTConfig(vocab_size=53, context=23, layers=3, heads=3, dim=39)
# fmt: off
LATER = GPTConfig(
    vocab_size=61, context=23, layers=3, heads=6, dim=84, groups=2, positions="rotary", norm="rms",
    mlp="swiglu", bias=False, qk_norm=True, window=7, global_every=2,
    head_width=10, tied=False, rotary_frequencies=(0.9, 0.5, 0.11, 0.02, 0.003),
)
GEMMA = GPTConfig(
    vocab_size=61, context=23, layers=2, heads=4, dim=24, groups=1, positions="rotary", norm="rms",
    mlp="geglu", bias=False, head_width=16, embedding_factor=24**0.5,
)
GEMMA_3 = GPTConfig(
    vocab_size=61, context=23, layers=3, heads=4, dim=29, groups=2, positions="rotary", norm="rms",
    mlp="geglu", bias=False, head_width=14, embedding_factor=29**0.5, window=7, global_every=2,
    window_rotary_base=50.0, score_scale=0.4, score_softcap=1.5, logit_softcap=2.5,
    output_norms=True, qk_norm=True,
)
# fmt: on
CONFIGS = pytest.mark.parametrize(
    "config", [GPT2, LATER, GEMMA, GEMMA_3], ids=["gpt2", "later", "gemma", "gemma 3"]
)
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


@pytest.mark.each_once
@CONFIGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_what_the_modules_compute(config, dtype, instructions):
    model, padding = model_of(config, dtype), torch.tensor(PADDING)
    ids = torch.randint(config.vocab_size, (3, LENGTH))
    with torch.inference_mode():
        engine = Engine(model)
        steps, modules = (read(one, ids[:, :READ], padding) for one in (engine, model))
        exact = GPTCache(config, padding=padding)
        double = model_of(config, dtype).double()
        double.next_logits(ids[:, :READ], exact)
        for t in range(READ, LENGTH):
            logits = engine.next_logits(ids[:, t : t + 1], steps)
            others = model.next_logits(ids[:, t : t + 1], modules)
            expected = double.next_logits(ids[:, t : t + 1], exact)
            # Some 40 roundings to the dtype follow each other in three layers, each of at most
            # half an ε of numbers that are a few times as large as the logits.
            scale = expected.abs().max() * torch.finfo(dtype).eps
            assert (logits.double() - expected).abs().max() < 20 * scale
            assert (logits.double() - others.double()).abs().max() < 20 * scale


@pytest.mark.each_once
@CONFIGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_threads_nor_the_sequences_beside_it_change_a_bit(
    config, dtype, threads, instructions
):
    model = Engine(model_of(config, dtype))
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
            whole = model.next_logits(ids[:, t : t + 1], all_of_them)
            threads(1)
            assert torch.equal(model.next_logits(ids[:, t : t + 1], again), whole)
            for rows, cache in some.items():
                part = slice(*rows)
                assert torch.equal(model.next_logits(ids[part, t : t + 1], cache), whole[part])


def test_the_shipped_model_writes_the_same_text():
    model, tokenizer = load()
    ids, greedy = torch.tensor(tokenizer.encode("The cat sat on the")), Sampling(temperature=0.0)
    steps = generate(Engine(model), ids, tokens=60, sampling=greedy)
    assert torch.equal(steps, generate(model, ids, tokens=60, sampling=greedy))


def test_a_sequence_without_a_batch_has_logits_without_one():
    model = Engine(model_of(GPT2))
    ids = torch.tensor([3, 1, 4, 1, 5])
    with torch.inference_mode():
        cache, batch = read(model, ids[:4]), read(model, ids[None, :4])
        logits = model.next_logits(ids[4:], cache)
        assert logits.shape == (53,)
        assert torch.equal(logits, model.next_logits(ids[None, 4:], batch)[0])


def test_tokens_outside_the_vocabulary_and_a_full_cache_are_refused_before_anything_changes():
    model, ids = Engine(model_of(GPT2)), torch.zeros(2, 22, dtype=torch.long)
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


def test_steps_are_native_calls_and_prompts_are_read_by_modules(monkeypatch):
    calls, step = [], native.GPTStep.logits
    monkeypatch.setattr(
        native.GPTStep, "logits", lambda *args, **options: calls.append(1) or step(*args, **options)
    )
    engine, ids = Engine(model_of(GPT2)), torch.tensor([[3, 1, 4]])
    greedy = Sampling(temperature=0.0)
    whole = generate(engine, ids, tokens=9, sampling=greedy)
    assert len(calls) == 8
    drawn = stream(engine, ids, tokens=9, sampling=greedy)
    assert [int(token) for token in drawn] == whole[0, 3:].tolist()
    calls.clear()
    generate(engine, ids.expand(33, 3), tokens=4, sampling=greedy)  # more than a call takes
    assert not calls


def test_what_would_see_torchs_calls_is_refused():
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    engine = Engine(model)
    cache = read(engine, ids)
    with regard.record():
        model(ids)
        with pytest.raises(regard.Error, match=r"a recording.* the model itself"):
            engine.next_logits(ids[:, :1], cache)
    with pytest.raises(regard.Error, match="the model itself"):
        torch.func.vmap(lambda row: engine.next_logits(row, GPTCache(GPT2)))(ids)
    assert cache.length == 3


def test_a_recording_in_another_thread_is_none_of_its_business():
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    engine = Engine(model)
    expected = engine.next_logits(ids[:, :1], read(engine, ids))
    cache = read(engine, ids)
    with regard.record() as recording, ThreadPoolExecutor(1) as threads:
        model(ids)
        logits = threads.submit(engine.next_logits, ids[:, :1], cache).result()
    assert torch.equal(logits, expected)
    assert len(recording) == GPT2.layers


@pytest.mark.parametrize("where", ["wte", "h.2.ln_1"])
def test_an_engine_whose_weights_have_changed_refuses(where):
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    engine = Engine(model)
    cache = read(engine, ids)
    with torch.no_grad():
        model.get_submodule(where).weight.mul_(2)
    with pytest.raises(regard.Error, match=r"have changed .* make a new one: Engine\(model\)"):
        engine.next_logits(ids[:, :1], cache)
    assert cache.length == 3
    engine = Engine(model)
    model.get_submodule(where).weight = nn.Parameter(
        torch.zeros_like(model.get_submodule(where).weight)
    )
    with pytest.raises(regard.Error, match="have changed"):
        read(engine, ids)


READ_OUT = regard.readouts.Entropy(), regard.readouts.TopK(3), regard.readouts.Mass(0)


@pytest.mark.each_once
@CONFIGS
@pytest.mark.parametrize("padding", [None, PADDING])
def test_readings_are_those_of_a_recording(config, padding):
    """Of each token's pattern, whether it is read as a prompt or as a step; in a window too."""
    model = model_of(config)
    engine = Engine(model, read=READ_OUT)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(config.vocab_size, (3, LENGTH), generator=generator)
    hidden = None if padding is None else torch.tensor(padding)
    caches = [GPTCache(config, padding=hidden) for _ in range(2)]
    for part in (ids[:, :READ], *ids[:, READ:].split(1, dim=1)):
        logits = engine.next_logits(part, caches[0])
        with torch.no_grad(), regard.record(model, rows=-1) as recording:
            expected = model.next_logits(part, caches[1])
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        assert len(engine.readings) == config.layers
        for given, pattern in zip(engine.readings, recording, strict=True):
            entropy, (weights, _), first = given
            own_entropy, (own_weights, _), own_first = pattern.read(*READ_OUT)
            torch.testing.assert_close(entropy, own_entropy, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(weights, own_weights, rtol=1e-4, atol=1e-5)
            if caches[0].layers[0].window is None:  # else the first key is evicted in the end
                torch.testing.assert_close(first, own_first, rtol=1e-4, atol=1e-5)


class Both(regard.readouts.Readout):
    """What somebody wrote: over all heads, whose result has no axis of heads."""

    axes = ("query",)

    def add(self, state, block):
        state[block.heads, block.rows] += block.weights.square().sum(-1)

    def finish(self, state, sizes):
        return float(state.sum())


EVERY = (
    *(regard.readouts.Received(kind) for kind in ("sum", "mean", "max")),
    *(regard.readouts.Received("mean", grouped=True), regard.readouts.Entropy()),
    *(regard.readouts.TopK(3), regard.readouts.Distance(), regard.readouts.Max()),
    *(regard.readouts.Lag(1), regard.readouts.Offsets(4)),
)


@CONFIGS
@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_readings_of_kept_scores_are_those_of_patterns(config, padding, dtype):
    """A largest score is read of queries and keys, as are then all others."""
    model = model_of(config, dtype)
    of_scores = Engine(model, read=EVERY)
    of_patterns = Engine(model, read=[*EVERY, regard.readouts.MaxScore()])
    ids = torch.randint(config.vocab_size, (3, LENGTH), generator=torch.Generator().manual_seed(3))
    ids = ids[0] if padding is None else ids
    hidden = None if padding is None else torch.tensor(padding)
    caches = [GPTCache(config, padding=hidden) for _ in range(3)]
    for part in (ids[..., :READ], *ids[..., READ:].split(1, dim=-1)):
        with torch.no_grad(), regard.record(model, rows=-1) as recording:
            model.next_logits(part, caches[2])
        for engine, cache in zip((of_scores, of_patterns), caches, strict=False):
            engine.next_logits(part, cache)
        rounding = 1e-4 if dtype == torch.float32 else 0.05
        for one, (*other, score), own in zip(
            of_scores.readings, of_patterns.readings, recording, strict=True
        ):
            torch.testing.assert_close(list(one), other, rtol=1e-4, atol=1e-5)
            expected = own.read(regard.readouts.MaxScore())[0]
            torch.testing.assert_close(score, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("own", "passes"), [(False, 2), (True, 3)])
def test_layers_of_one_window_are_read_in_one_pass(own, passes, monkeypatch):
    model = model_of(LATER)  # two layers with a window, one without
    engine = Engine(model, read=[Both()] if own else READ_OUT)
    cache, calls, call = GPTCache(LATER), [], _readouts.call
    engine.next_logits(torch.arange(READ), cache)
    monkeypatch.setattr(_readouts, "call", lambda *given: calls.append(given) or call(*given))
    engine.next_logits(torch.tensor([3]), cache)
    assert len(calls) == passes
    assert len(engine.readings) == 3


def test_readings_of_a_single_token_and_of_no_readout():
    model, ids = model_of(GPT2), torch.tensor([5])
    engine = Engine(model, read=[regard.readouts.Entropy()])
    engine.next_logits(ids, GPTCache(GPT2))
    assert [entropy.tolist() for (entropy,) in engine.readings] == [[[0.0]] * GPT2.heads] * 3
    plain = Engine(model)
    plain.next_logits(ids, GPTCache(GPT2))
    assert plain.readings == ()
    with pytest.raises(TypeError, match="is not a readout"):
        Engine(model, read=["entropy"])
    many = GPTCache(GPT2)
    for _ in range(2):
        engine.next_logits(ids.expand(33, 1), many)  # more than a native call takes
    assert all(entropy.shape == (33, GPT2.heads, 1) for (entropy,) in engine.readings)


def test_autocast_and_gradients_change_nothing():
    engine, ids = Engine(model_of(GPT2)), torch.tensor([[3, 1, 4]])
    expected = engine.next_logits(ids[:, :1], read(engine, ids))
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        logits = engine.next_logits(ids[:, :1], read(engine, ids))
    assert torch.equal(logits, expected)
    assert not logits.requires_grad


class Other(GPT):
    pass


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nn.Module.double, "its weights are torch.float64, expected float32, bfloat16 or float16"),
        (lambda model: model.h[0].double(), "its weights have several dtypes"),
        (lambda model: model.to("meta"), "it is on meta, expected the CPU"),
        (has("h.0.mlp.c_fc", nn.Linear(39, 156)), "h.0.mlp.c_fc is a Linear, which a GPT does not"),
        (has("h.2.mlp", SwiGLU(GPT2)), "h.2.mlp is a SwiGLU"),
        (has("h.2.attn.q_norm", nn.RMSNorm(13, 1e-5)), "h.2.attn.q_norm is a RMSNorm"),
        (has("ln_f.forward", lambda x: x), "ln_f has hooks, or a forward method of its own"),
        (lambda model: model.register_forward_hook(print), "the model has hooks"),
        (has("h.0.mlp.c_fc", Linear(39, 31)), "weights are not those .*c_fc.weight"),
        (has("h.1.ln_1.weight", numbers(5)), "weights are not those .*ln_1.weight"),
        (has("h.1.attn.c_proj.bias", numbers(1)), "weights are not those .*c_proj.bias"),
        (has("wpe", None), "weights are not those .*wpe"),
    ],
)
def test_a_model_that_is_not_what_its_configuration_says_has_no_engine(change, reason):
    model = model_of(GPT2)
    change(model)
    with pytest.raises(ValueError, match=reason):
        Engine(model)


def test_other_classes_and_shapes_have_no_engine():
    assert Engine.objection(Other(GPT2)) == "it is a Other, expected a GPT"
    wide = GPTConfig(vocab_size=3, context=5, layers=1, heads=1, dim=257)
    assert "257 channels, expected at most" in Engine.objection(GPT(wide))
    many = GPTConfig(vocab_size=3, context=5, layers=1, heads=17, dim=17, groups=1)
    assert "heads share keys" in Engine.objection(GPT(many))
    with pytest.raises(TypeError, match="model is a Linear; expected a GPT"):
        Engine(nn.Linear(2, 3))


def test_the_model_stays_as_it_is_and_its_memory_is_shared():
    model, ids = model_of(GPT2).train(), torch.tensor([[3, 1, 4]])
    engine = Engine(nn.DataParallel(model))
    generate(engine, ids, tokens=2)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    own = dict(engine._model.named_parameters())
    assert all(own[name].data_ptr() == one.data_ptr() for name, one in model.named_parameters())


def test_weights_that_are_not_contiguous_are_copied():
    model, ids = model_of(GPT2), torch.tensor([[3, 1, 4]])
    for block in model.h:
        block.attn.c_proj.weight.data = block.attn.c_proj.weight.data.t().contiguous().t()
    engine = Engine(model)
    with torch.inference_mode():
        expected = model(torch.tensor([[3, 1, 4, 3]]))[:, -1]
    logits = engine.next_logits(ids[:, :1], read(engine, ids))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)  # sums of another order


def test_a_step_is_freed_with_its_cache():
    engine, ids = Engine(model_of(GPT2)), torch.tensor([[3, 1, 4]])
    cache = read(engine, ids)
    engine.next_logits(ids[:, :1], cache)
    step = weakref.ref(engine._steps[cache])
    del cache
    gc.collect()
    assert step() is None


def test_a_cache_that_was_reset_or_is_of_another_model_or_batch():
    engine, ids = Engine(model_of(GPT2)), torch.tensor([[3, 1, 4]])
    cache = read(engine, ids)
    first = engine.next_logits(ids[:, :1], cache)
    cache.rollback(0)  # frees its memory
    engine.next_logits(ids, cache)
    assert torch.equal(engine.next_logits(ids[:, :1], cache), first)
    with pytest.raises(ValueError, match=r"another batch's than ids of \(2, 1\)"):
        engine.next_logits(ids[:, :1].expand(2, 1), cache)
    later = model_of(LATER)
    with pytest.raises(ValueError, match="the cache is another model's"):
        Engine(later).next_logits(ids[:, :1], cache)
    half = read(Engine(model_of(GPT2, torch.bfloat16)), ids)
    with pytest.raises(ValueError, match="the cache is another model's"):
        engine.next_logits(ids[:, :1], half)


class Stopped(BaseException):
    """As KeyboardInterrupt, which no code is to take for an error of its own."""


def test_an_interrupted_step_leaves_the_cache_as_it_was(monkeypatch):
    engine, ids = Engine(model_of(GPT2)), torch.tensor([[3, 1, 4]])
    cache, other = read(engine, ids), read(engine, ids)

    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(native.GPTStep, "logits", stop)
        with pytest.raises(Stopped):
            engine.next_logits(ids[:, :1], cache)
    assert [layer.length for layer in cache.layers] == [3, 3, 3]
    one, two = (engine.next_logits(ids[:, :1], each) for each in (cache, other))
    assert torch.equal(one, two)


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
def test_ids_of_a_step_are_checked_as_those_of_a_call(ids, kind, message):
    engine = Engine(model_of(GPT2))
    cache = read(engine, torch.tensor([[3, 1], [4, 1]]))
    with pytest.raises(kind, match=message):
        engine.next_logits(ids, cache)
    assert cache.length == 2
