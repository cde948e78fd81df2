"""What a call leaves as it was: the model's modes, a cache that could not be used."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import regard
from regard.gpt import GPT, GPTCache, GPTConfig, Sampling, generate
from regard.nn import KVCache

CONFIG = GPTConfig(vocab_size=13, context=23, layers=2, heads=2, dim=14, initial_std=0.3)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])


def gpt(kind=GPT, **options):
    torch.manual_seed(7)
    return kind(GPTConfig(**{**vars(CONFIG), **options})).eval()


@pytest.mark.parametrize("training", [False, True])
def test_each_module_is_in_its_mode_again_after_generation(training):
    model = gpt().train(training)
    model.h[0].train(not training)
    before = [module.training for module in model.modules()]
    generate(model, IDS, tokens=2)
    assert [module.training for module in model.modules()] == before


class Merged(nn.Dropout):
    """As libraries of adapters do: what `train` and `eval` are called for is more than a flag."""

    is_merged = False

    def train(self, mode=True):
        self.is_merged = not mode
        return super().train(mode)


def test_a_module_with_a_train_of_its_own_has_it_called():
    model = gpt().train()
    model.h[0].drop = Merged()
    generate(model, IDS, tokens=2)
    assert not model.h[0].drop.is_merged
    model.eval()
    generate(model, IDS, tokens=2)
    assert model.h[0].drop.is_merged


def only_the_last_token(module, arguments, logits):
    return logits.index_fill(-1, torch.arange(12), -1e9)


class OnlyTheLastToken(GPT):
    def forward(self, ids, **options):
        return only_the_last_token(self, ids, super().forward(ids, **options))


def test_hooks_and_subclasses_count_in_generation():
    hooked = gpt()
    hooked.register_forward_hook(only_the_last_token)
    for model in (hooked, gpt(OnlyTheLastToken)):
        ids = generate(model, IDS, tokens=3, sampling=Sampling(temperature=0.0))
        assert ids[0, 7:].tolist() == [12, 12, 12]


def test_dropout_drops_where_it_is_in_training_mode_itself():
    model = gpt(dropout=0.5)
    expected = model(IDS)
    assert torch.equal(model(IDS), expected)
    for block in model.h:
        block.drop.train()
    assert not torch.equal(model(IDS), expected)
    with torch.no_grad():
        assert not torch.equal(model(IDS), expected)
    calls = []
    model.eval()
    model.h[1].drop.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(model(IDS), expected)
    assert len(calls) == 2


def test_a_mask_that_does_not_fit_leaves_the_cache_as_it_was():
    model, cache = gpt(), GPTCache(CONFIG)
    short = regard.documents(torch.zeros(5, dtype=torch.long))
    with torch.no_grad():
        model(IDS[:, :3], cache=cache)
        with pytest.raises(ValueError, match="ids covers 5 keys, but there are 7"):
            model(IDS[:, 3:], cache=cache, mask=short)
        assert [layer.length for layer in cache.layers] == [3, 3]
        rest = model(IDS[:, 3:], cache=cache)
        torch.testing.assert_close(rest, model(IDS)[:, 3:], rtol=1e-4, atol=1e-5)  # other sums


class Stopped(BaseException):
    """As KeyboardInterrupt, which no code is to take for an error of its own."""


@contextmanager
def interrupted(module):
    """Raise when the module has been called, wherever in a model it stands."""

    def stop(*_):
        raise Stopped

    hook = module.register_forward_hook(stop)
    try:
        with pytest.raises(Stopped):
            yield
    finally:
        hook.remove()


@pytest.mark.parametrize("place", ["h.0.attn", "h.1", "ln_f"])
@pytest.mark.parametrize("window", [None, 9])
def test_an_interrupted_call_leaves_the_cache_as_it_was(place, window):
    model = gpt(window=window)
    cache = GPTCache(model.config)
    with torch.no_grad():
        model(IDS[:, :3], cache=cache)
        with interrupted(model.get_submodule(place)):
            model(IDS[:, 3:5], cache=cache)
        assert [layer.length for layer in cache.layers] == [3, 3]
        rest = model(IDS[:, 3:], cache=cache)
        torch.testing.assert_close(rest, model(IDS)[:, 3:], rtol=1e-4, atol=1e-5)  # other sums


def test_a_cache_that_an_interrupted_call_has_evicted_from_is_refused_until_it_is_reset():
    model = gpt(window=2)
    cache = GPTCache(model.config)
    with torch.no_grad():
        model(IDS[:, :3], cache=cache)
        with interrupted(model.h[0]):
            model(IDS[:, 3:], cache=cache)
        with pytest.raises(ValueError, match="the cache is inconsistent: a previous"):
            model.next_logits(IDS[:, 3:4], cache)
        cache.reset()
        assert torch.equal(model(IDS, cache=cache), model(IDS))


def test_a_step_that_fails_in_a_hook_of_the_model_leaves_the_cache_as_it_was():
    model = gpt()
    cache = GPTCache(model.config)
    with torch.no_grad():
        model(IDS[:, :3], cache=cache)
        with interrupted(model):
            model.next_logits(IDS[:, 3:4], cache)
        assert cache.length == 3


def test_a_first_call_that_fails_binds_the_cache_to_no_batch():
    model = gpt()
    cache = GPTCache(model.config)
    with torch.no_grad():
        with interrupted(model.h[1]):
            model(IDS.repeat(2, 1), cache=cache)
        assert torch.equal(model(IDS, cache=cache), model(IDS))


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_interruption_while_a_window_moves_is_not_silent(monkeypatch, place):
    model = gpt(window=4)
    cache, ids = GPTCache(model.config), IDS.repeat(1, 2)[:, :9]
    own = KVCache._evict

    def evict(self):
        if place == "before":
            raise Stopped
        own(self)
        raise Stopped

    with torch.no_grad():
        for t in range(8):  # twice the window is kept
            model.next_logits(ids[:, t : t + 1], cache)
        with monkeypatch.context() as patch:
            patch.setattr(KVCache, "_evict", evict)
            with pytest.raises(Stopped):
                model.next_logits(ids[:, 8:], cache)
        logits = model.next_logits(ids[:, 8:], cache)
        torch.testing.assert_close(logits, model(ids)[:, -1], rtol=1e-4, atol=1e-5)  # other sums


def test_a_mask_is_refused_where_a_window_has_evicted_what_it_names():
    model, hidden = gpt(window=4), regard.masks.hide(0)
    cache = GPTCache(model.config)
    with torch.no_grad():
        expected = model(IDS.repeat(1, 2), mask=hidden)
        for t in range(8):  # twice the window is kept
            logits = model(IDS.repeat(1, 2)[:, t : t + 1], cache=cache, mask=hidden)
            torch.testing.assert_close(logits[:, 0], expected[:, t], rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match=r"layer 0, whose window is 4, no longer keeps all 9"):
            model(IDS[:, :1], cache=cache, mask=hidden)
        assert cache.length == 8


def test_no_sequences_get_as_many_tokens():
    assert generate(gpt(), IDS[:0], tokens=3).shape == (0, 10)
    assert generate(gpt(), IDS, tokens=0).shape == (1, 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda: generate(gpt(), IDS, tokens=3.0),
        lambda: regard.readouts.TopK(3.0),
        lambda: regard.readouts.Offsets(3.0),
    ],
)
def test_a_number_of_things_is_an_integer(call):
    with pytest.raises(TypeError, match=r"^(tokens|k|n) is a float; expected an int$"):
        call()
