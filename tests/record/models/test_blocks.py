"""Blocks on one eager model: however they overlap, each works, and nothing is left of them."""

import _thread
import copy
import pickle
import threading

import pytest
import torch
from record.models.classes import CASES
from record.models.inputs import Numbers

import regard
from regard.intercept import _transformers_models as _configurations

NEAR = 1e-5  # of two implementations, as in test_patterns.py
WAIT = 60  # seconds for another thread, which is there at once


def build(name):
    """An eager model, and texts without padding."""
    case = CASES[name]
    return case.build("eager"), case.call()[0]["input_ids"].clamp(min=3)


@pytest.fixture(params=["llama", "bert"])
def made(request):
    return build(request.param)


def names(model):
    """The implementations that the configurations of a model name."""
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    return {config._attn_implementation for config in configs}


def weights(model, ids):
    """The weights by the model itself."""
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions


def check(recording, expected):
    assert len(recording) == len(expected) > 0
    for pattern, exact in zip(recording, expected, strict=True):
        torch.testing.assert_close(pattern.dense(), exact, rtol=0, atol=NEAR)


def run(thread):
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


# Blocks that overlap


def test_a_recording_that_ends_inside_an_intervention(made):
    model, ids = made
    recorded, changed = regard.record(model), regard.intervene(model)
    with torch.no_grad():
        plain = model(ids)[0]
        recording, change = recorded.__enter__(), changed.__enter__()
        change.knock_out(layers=1, keys=0, queries=slice(1, None))
        both = model(ids)[0]
        recorded.__exit__(None, None, None)
        alone = model(ids)[0]
        changed.__exit__(None, None, None)
        after = model(ids)[0]
    assert bool(recording[1].dense()[..., 1:, 0].eq(0).all())
    assert torch.equal(alone, both)
    assert torch.equal(after, plain)
    assert not torch.allclose(both, plain, atol=1e-3)
    assert names(model) == {"eager"}


def test_an_intervention_that_ends_inside_a_recording(made):
    model, ids = made
    changed, recorded = regard.intervene(model), regard.record(model)
    changed.__enter__()
    recording = recorded.__enter__()
    changed.__exit__(None, None, None)
    with torch.no_grad():
        model(ids)
    recorded.__exit__(None, None, None)
    check(recording, weights(model, ids))
    assert names(model) == {"eager"}


def test_updates_of_two_monitors():
    """Of which the one to begin first ends first."""
    model, ids = build("llama")
    model.train()
    batches = [ids, ids.flip(-1), ids.roll(1, -1)]
    shares = [
        torch.stack(weights(model, batch))[..., 0].mean((1, 3)).flatten() for batch in batches
    ]
    first, second = regard.Monitor(model, every=1), regard.Monitor(model, every=1)
    first.begin()
    model(batches[0])
    second.begin()
    model(batches[1])
    first.end()
    model(batches[2])
    second.end()
    for monitor, seen in ((first, shares[:2]), (second, shares[1:])):
        actual = monitor.values("first_token")[0].float()
        torch.testing.assert_close(actual, sum(seen) / 2, rtol=0, atol=NEAR)
    assert names(model) == {"eager"}


def test_blocks_within_a_block(made):
    model, ids = made
    with torch.no_grad(), regard.record(model) as outer:
        with regard.record(model) as inner:
            model(ids)
        assert names(model) == {"regard"}
    expected = weights(model, ids)
    check(inner, expected)
    check(outer, expected)


# Threads


class Paused:
    """Has a model wait in the middle of one thread's forward pass."""

    def __init__(self, model):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.thread = None
        last = [module for module in model.modules() if hasattr(module, "layer_idx")][-1]
        self._handle = last.register_forward_pre_hook(self._wait)

    def _wait(self, module, args):
        if threading.current_thread() is self.thread:
            self.inside.set()
            assert self.go_on.wait(WAIT)


def test_a_block_that_ends_on_another_thread_meanwhile(made):
    model, ids = made
    expected = weights(model, ids)
    paused, others = Paused(model), []

    def other():
        with torch.no_grad(), regard.record(model) as recording:
            model(ids)
        others.append(recording)

    paused.thread = threading.Thread(target=other)
    with torch.no_grad(), regard.record(model) as recording:
        paused.thread.start()
        assert paused.inside.wait(WAIT)
        model(ids)
    paused.go_on.set()
    paused.thread.join(WAIT)
    check(recording, expected)
    check(others[0], expected)
    assert names(model) == {"eager"}


def test_an_abandoned_block_that_is_closed_while_another_begins(made, monkeypatch):
    """As the collector may do at any moment, so that this thread has the lock already."""
    model, ids = made
    abandoned, own_name, recordings = regard.record(model), _configurations.own_name, []

    def closing(config):
        monkeypatch.undo()
        abandoned.__exit__(None, None, None)
        return own_name(config)

    def both():
        abandoned.__enter__()
        model(ids)
        monkeypatch.setattr(_configurations, "own_name", closing)
        with torch.no_grad(), regard.record(model) as recording:
            model(ids)
        recordings.append(recording)

    run(threading.Thread(target=both, daemon=True))
    check(recordings[0], weights(model, ids))
    assert names(model) == {"eager"}


@pytest.mark.parametrize("when", ["begins", "ends"])
def test_a_thread_without_a_block_computes_as_ever(made, when):
    """Also if another thread's block begins, or ends, in the middle of its forward pass."""
    model, ids = made
    with torch.no_grad():
        expected = model(ids, output_attentions=True)
    paused, outs = Paused(model), []

    def other():
        with torch.no_grad():
            outs.append(model(ids, output_attentions=True))

    paused.thread = threading.Thread(target=other)
    if when == "begins":
        paused.thread.start()
        assert paused.inside.wait(WAIT)
    with torch.no_grad(), regard.record(model) as recording:
        model(ids)
        if when == "ends":
            paused.thread.start()
            assert paused.inside.wait(WAIT)
        else:
            paused.go_on.set()
            paused.thread.join(WAIT)
    paused.go_on.set()
    paused.thread.join(WAIT)
    check(recording, expected.attentions)
    assert torch.equal(outs[0][0], expected[0])
    for actual, exact in zip(outs[0].attentions, expected.attentions, strict=True):
        assert torch.equal(actual, exact)


def test_names_are_those_of_the_own_threads_text():
    model, ids = build("llama")
    other = threading.Thread(target=lambda: model(ids.flip(-1)))
    with torch.no_grad(), regard.record(model, tokens=Numbers()) as recording:
        model(ids)
        run(other)
    assert recording.tokens == tuple(tuple(map(str, text)) for text in ids.tolist())


def test_many_threads_at_once():
    model, ids = build("llama")
    count, rounds = 4, 5
    texts = [ids.roll(shift, -1) for shift in range(count)]
    expected = [weights(model, text) for text in texts]
    barrier, recordings = threading.Barrier(count), [[] for _ in range(count)]

    def work(place):
        barrier.wait(WAIT)
        for _ in range(rounds):
            with torch.no_grad(), regard.record(model) as recording:
                model(texts[place])
            recordings[place].append(recording)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert names(model) == {"eager"}
    for own, exact in zip(recordings, expected, strict=True):
        assert len(own) == rounds
        for recording in own:
            check(recording, exact)


class Named(torch.autograd.Function):
    """Asks a configuration for its implementation in the backward pass."""

    @staticmethod
    def forward(ctx, x, config, found):
        ctx.config, ctx.found = config, found
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.found.append(ctx.config._attn_implementation)
        return gradient, None, None


def test_a_thread_of_autograds_computes_checkpoints_again_as_they_were():
    """Autograd's threads for devices are none of Python's; one of the latter is another user's."""
    model, ids = build("llama")
    found, ended = [], threading.Event()

    def backward():
        results.pop().backward()
        ended.set()

    with regard.record(model):
        start = torch.ones(1, requires_grad=True)
        results = [Named.apply(start, model.config, found).sum() for _ in range(2)]
        _thread.start_new_thread(backward, ())
        assert ended.wait(WAIT)
        run(threading.Thread(target=backward))
        model(ids)
    assert found == ["regard", "eager"]


# What is left of a block


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda own: pickle.loads(pickle.dumps(own))])
def test_a_copy_that_is_made_inside(made, copied):
    model, ids = made
    with torch.no_grad():
        with regard.record(model):
            model(ids)
            other = copied(model)
            configs = [copied(model.config), copy.copy(model.config)]
        expected, out = (one(ids, output_attentions=True) for one in (model, other))
    assert names(other) == names(model) == {"eager"}
    assert [config._attn_implementation for config in configs] == ["eager"] * 2
    assert torch.equal(out[0], expected[0])
    check_equal(out.attentions, expected.attentions)


def check_equal(some, others):
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)


def test_a_copy_is_an_eager_model_inside_too(made):
    model, ids = made
    expected = weights(model, ids)
    with regard.record(model) as recording:
        model(ids)
        check_equal(weights(copy.deepcopy(model), ids), expected)
    assert len(recording) == len(expected)


def test_a_model_of_the_same_configuration_that_is_made_inside(made):
    model, ids = made
    with regard.record(model):
        model(ids)
        other = type(model)(model.config)
    assert names(model) == names(other) == {"eager"}
    assert len(weights(other, ids)) == len(weights(model, ids))


@pytest.mark.parametrize("how", ["sdpa", "flex_attention", "eager"])
def test_an_implementation_that_is_set_inside_stays(made, how):
    model, ids = made
    expected = weights(model, ids)
    with torch.no_grad():
        with regard.record(model) as recording:
            model.set_attn_implementation(how)
            model(ids)
        assert names(model) == {how}
        with regard.record(model) as later:
            model(ids)
    assert names(model) == {how}
    check(recording, expected)
    check(later, expected)


def test_an_implementation_that_is_set_inside_of_a_part():
    case = CASES["clip"]
    model, (arguments, _) = case.build("eager"), case.call()
    with torch.no_grad(), regard.record(model) as recording:
        model.set_attn_implementation({"vision_config": "sdpa"})
        model(**arguments)
    assert model.vision_model.config._attn_implementation == "sdpa"
    assert model.text_model.config._attn_implementation == "eager"
    assert len(recording) == sum(case.layers.values())


def test_the_class_of_configurations_is_as_before(made):
    model, ids = made
    kinds = type(model.config).__mro__
    before = [vars(kind).get("_attn_implementation") for kind in kinds]
    with regard.record(model):
        model(ids)
    assert [vars(kind).get("_attn_implementation") for kind in kinds] == before


@pytest.mark.parametrize("name", ["llama", pytest.param("bert", marks=pytest.mark.thorough)])
def test_compiled_models_are_not_compiled_anew(name):
    torch._dynamo.reset()
    model, ids = build(name)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        expected = compiled(ids)[0]
        with regard.record(model) as recording:
            model(ids)
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.equal(compiled(ids)[0], expected)
    check(recording, weights(model, ids))
