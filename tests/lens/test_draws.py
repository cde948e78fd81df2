"""Effects are differences of runs, which a model with dropout makes differ by chance."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from record.models.classes import CASES
from support.interception import Stack
from torch import nn

import regard
from regard.gpt import GPT, CharTokenizer, GPTConfig, link_effects
from regard.gpt.stories import story

TARGET = regard.lens.Logit(7)
STORY = story(3)
TOKENIZER = CharTokenizer(STORY.text)


def gpt():
    torch.manual_seed(0)
    vocab = TOKENIZER.vocab_size
    config = GPTConfig(
        vocab_size=vocab, context=len(STORY.text), layers=2, heads=3, dim=12, dropout=0.3
    )
    return GPT(config)


IDS = torch.randint(20, (11,), generator=torch.Generator().manual_seed(0))
MEASURES = {
    "heads": lambda model: regard.lens.effects(model, IDS, TARGET).values,
    "keys": lambda model: regard.lens.effects(model, IDS, TARGET, over="keys").values,
    "gradient": lambda model: regard.lens.effects(model, IDS, TARGET, method="gradient").values,
    "passages": lambda model: (
        regard.lens.effects(
            model,
            IDS,
            regard.lens.Answer(slice(8, 11)),
            over=[(1, 3), (3, 6)],
            hidden_from="question",
        ).values
    ),
    "links": lambda model: link_effects(model, TOKENIZER, [STORY]).log_probability.heads.mean,
}


def messages(measure, *args):
    """What a measurement warns of, and that it names the line which called it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measure(*args)
    assert {warning.filename for warning in caught} <= {__file__}
    assert {warning.category for warning in caught} <= {RuntimeWarning}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", MEASURES)
def test_dropout_is_named_with_the_cure(name):
    (message,) = messages(MEASURES[name], gpt().train())
    assert "(dropout in training mode: drop, h.0.attn, h.0.drop and 2 more)" in message
    assert "call model.eval() first" in message


@pytest.mark.parametrize("name", MEASURES)
def test_without_dropout_there_is_no_warning(name):
    model = gpt()
    state = torch.get_rng_state()
    assert not messages(MEASURES[name], model.eval())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_check_warns_too():
    model = gpt()
    approximate = regard.lens.effects(model.eval(), IDS, TARGET, method="gradient")
    assert not messages(approximate.check, 3)
    model.train()
    (message,) = messages(approximate.check, 3)
    assert "call model.eval() first" in message


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_dropout_that_is_no_module(implementation):
    model = CASES["llama"].build(implementation).train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.25
    (message,) = messages(MEASURES["heads"], model)
    assert "model.layers.0.self_attn, model.layers.1.self_attn" in message


def test_a_part_in_training_mode():
    layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.2, batch_first=True).eval()
    layer.self_attn.train()
    inputs = {"src": torch.randn(1, 7, 12)}
    (message,) = messages(regard.lens.effects, layer, inputs, lambda y: y[:, -1, 4])
    assert "(dropout in training mode: self_attn)" in message


class Drawing(nn.Module):
    """A model that draws random numbers whatever its mode."""

    def __init__(self, use):
        super().__init__()
        self.stack, self.use = Stack(2), use

    def forward(self, x):
        return self.use(self.stack(x))


def seeded(x):
    torch.manual_seed(5)
    return F.dropout(x, 0.3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("use", "is_chance"),
    [
        (lambda x: F.dropout(x, 0.3), True),  # training=True is torch's default
        (lambda x: x + torch.randn(()), True),
        (lambda x: x if torch.rand(()) < 2 else -x, False),  # as LayerDrop draws in evaluation
        (seeded, False),
    ],
    ids=["dropout", "noise", "drawn and not used", "its own seed"],
)
def test_draws_of_a_model_without_dropout_modules(use, is_chance, training):
    model = Drawing(use).train(training)
    inputs = {"x": torch.randn(1, 7, 12)}
    found = messages(regard.lens.effects, model, inputs, lambda y: y[:, -1, 4])
    assert len(found) == is_chance
    for message in found:
        assert "(its results differ from run to run)" in message
