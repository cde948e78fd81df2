"""What no change concerns keeps its bits, and everything is as before when a block ends."""

import contextlib
import threading

import pytest
import torch
from intervene.test_transformers import inputs
from record.models.classes import CASES
from support.changed_attention import ChangedAttention, edit
from support.interception import Stack, check_nothing_left_behind, encoder
from support.written_models import in_torch
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig, Sampling
from regard.gpt.generate import stream

SDPA = ["gpt2", "llama", "mistral", "t5", "vit"]


def output(model, name):
    return model(**inputs(name))[0]


@pytest.mark.parametrize("name", SDPA)
def test_a_block_without_changes_keeps_every_bit(name):
    model = CASES[name].build("sdpa")
    expected = output(model, name)
    with regard.intervene(model):
        assert torch.equal(output(model, name), expected)
    assert torch.equal(output(model, name), expected)


@pytest.mark.parametrize("name", SDPA)
def test_layers_before_the_changed_one_keep_every_bit(name):
    model = CASES[name].build("sdpa")
    expected = model(**inputs(name), output_hidden_states=True)
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=0)
        actual = model(**inputs(name), output_hidden_states=True)
    which = "decoder_hidden_states" if name == "t5" else "hidden_states"
    one, other = (getattr(out, which) for out in (expected, actual))
    assert all(torch.equal(*pair) for pair in zip(one[:2], other[:2], strict=True))
    assert not torch.equal(one[-1], other[-1])


def test_a_generation_without_changes_keeps_every_bit():
    model = CASES["mistral"].build("sdpa")
    options = {"max_new_tokens": 5, "output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(**inputs("mistral"), do_sample=False, **options)
    with regard.intervene(model):
        actual = model.generate(**inputs("mistral"), do_sample=False, **options)
    assert all(torch.equal(*pair) for pair in zip(actual.logits, expected.logits, strict=True))


@pytest.mark.parametrize(("name", "how"), [("gpt2", "sdpa"), ("llama", "eager"), ("t5", "eager")])
def test_afterwards_everything_is_as_before(name, how):
    model = CASES[name].build(how)
    expected = output(model, name)
    with regard.intervene(model) as change:
        change.ablate(layers=1)
        assert not torch.allclose(output(model, name), expected)
    assert torch.equal(output(model, name), expected)
    configs = {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")}
    assert configs == {how}


class Failing(nn.Module):
    error = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x


@pytest.mark.parametrize("error", [RuntimeError("failed"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("where", ["block", "module"])
def test_errors_pass_and_nothing_is_left(error, where):
    model, x = nn.Sequential(Stack(), Failing(), Stack()), torch.randn(2, 7, 12)
    expected = model(x)
    model[1].error = error if where == "module" else None
    with pytest.raises(type(error)) as caught, regard.intervene(model) as change:  # noqa: PT012 - the last call alone raises
        change.ablate(layers=3)
        change.ablate(layers=99)
        model(x)
        raise error
    assert caught.value is error
    check_nothing_left_behind()
    model[1].error = None
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("error", [RuntimeError("failed"), KeyboardInterrupt()])
def test_a_run_after_an_error_inside_the_block_is_changed_alike(error):
    model, x = nn.Sequential(Stack(), Failing(), Stack()), torch.randn(2, 7, 12)
    edits = [edit("ablate", layers=3, heads=1), edit("knock_out", layers=1, keys=2)]
    with in_torch(ChangedAttention(edits)):
        expected = model(x)
    model[1].error = error
    with regard.intervene(model) as change:
        for each in edits:
            each.state(change)
        with contextlib.suppress(type(error)):
            model(x)
        model[1].error = None
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)


def test_blocks_of_one_model_in_each_other():
    model, x = Stack(3), torch.randn(2, 7, 12)
    outer = [edit("knock_out", layers=1, keys=slice(1, 3)), edit("ablate", layers=0, heads=1)]
    inner = [edit("steer", layers=1, keys=3, by=1.0), edit("ablate", layers=2, heads=0)]
    expected = {}
    for name, edits in {"outer": outer, "both": outer + inner, "none": []}.items():
        with in_torch(ChangedAttention(edits)):
            expected[name] = model(x)
    plain = model(x)
    with regard.intervene(model) as change:
        for each in outer:
            each.state(change)
        torch.testing.assert_close(model(x), expected["outer"], rtol=0, atol=1e-5)
        with regard.intervene(model) as further:
            for each in inner:
                each.state(further)
            torch.testing.assert_close(model(x), expected["both"], rtol=0, atol=1e-5)
        torch.testing.assert_close(model(x), expected["outer"], rtol=0, atol=1e-5)
    assert torch.equal(model(x), plain)


def test_the_outer_block_changes_first():
    model, x = Stack(1), torch.randn(2, 1, 7, 12)
    with regard.record(model) as recording:
        model(x[1])
    with regard.intervene(model) as outer, regard.intervene(model) as inner:
        outer.patch(pattern=recording[0], layers=0)
        inner.knock_out(keys=slice(0, 2), queries=slice(3, None))
        with regard.record(model) as actual:
            model(x[0])
    weights = recording[0].dense()
    weights[..., 3:, :2] = 0
    exact = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(actual[0].dense(), exact, rtol=0, atol=1e-6)


def test_blocks_of_two_models():
    models, x = (Stack(), encoder().eval()), torch.randn(2, 7, 12)
    edits = [edit("ablate", layers=0, heads=1)], [edit("knock_out", layers=1, keys=[2, 5])]
    expected = []
    for model, each in zip(models, edits, strict=True):
        with in_torch(ChangedAttention(each)):
            expected.append(model(x).detach())
    plain = [model(x) for model in models]
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for model, each in zip(models, edits, strict=True):
            each[0].state(stack.enter_context(regard.intervene(model)))
        actual = [model(x) for model in models]
    for one, other, unchanged in zip(actual, expected, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        assert not torch.allclose(one, unchanged)
    for model, unchanged in zip(models, plain, strict=True):
        assert torch.equal(model(x), unchanged)


def test_another_model_and_another_thread_keep_their_bits():
    model, other, x = Stack(), Stack(), torch.randn(2, 7, 12)
    expected, actual = (model(x), other(x)), []
    with regard.intervene(model) as change:
        change.ablate()
        actual.append(other(x))
        thread = threading.Thread(target=lambda: actual.append(model(x)))
        thread.start()
        thread.join()
        assert not torch.allclose(model(x), expected[0])
    assert torch.equal(actual[0], expected[1])
    assert torch.equal(actual[1], expected[0])


def test_a_generator_that_is_closed_early():
    model = GPT(GPTConfig(vocab_size=11, context=16, layers=2, heads=2, dim=12)).eval()
    ids = torch.randint(0, 11, (1, 4))
    expected = model(ids)

    def tokens():
        with regard.intervene(model) as change:
            change.ablate(layers=0)
            yield from stream(model, ids, tokens=9, sampling=Sampling(temperature=0.0))

    running = tokens()
    next(running), next(running)
    running.close()
    check_nothing_left_behind()
    assert torch.equal(model(ids), expected)


def test_an_error_of_a_change_leaves_nothing_and_the_model_works():
    model, x = Stack(), torch.randn(2, 7, 12)
    expected = model(x)
    with pytest.raises(regard.Error), regard.intervene(model) as change:  # noqa: PT012 - the last call alone raises
        change.ablate(heads=99)
        model(x)
    check_nothing_left_behind()
    assert torch.equal(model(x), expected)


def test_parameters_gradients_and_training_mode_are_untouched():
    model, x = Stack(dropout=0.5).train(), torch.randn(2, 7, 12)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with regard.intervene(model) as change:
        change.knock_out(keys=1)
        model(x).sum().backward()
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is not None for p in model.parameters())
