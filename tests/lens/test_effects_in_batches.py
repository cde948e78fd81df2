"""Effects of models that make something else of a batch are those of runs on one text each."""

import pytest
import torch
import torch.nn.functional as F
from record.models.classes import randomize
from torch import nn

import regard
from regard import Error
from regard.intervene import Intervention

hf = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def seeded_and_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def one_by_one(model, inputs, target, changes):
    """What each change does to the number, by hand."""
    unchanged, values = target(model(**inputs)), []
    for change in changes:
        with regard.intervene(model) as intervention:
            change(intervention)
            values.append((target(model(**inputs)) - unchanged).reshape(()))
    return torch.stack(values).double()


def assert_heads(model, inputs, target, **options):
    effects = regard.lens.effects(model, inputs, target, **options)
    changes = [
        lambda change, layer=layer, head=head: Intervention.ablate(change, layers=layer, heads=head)
        for (layer, head), value in zip(effects.places, effects.values.flatten(), strict=True)
        if not value.isnan()
    ]
    expected = one_by_one(model, inputs, target, changes)
    assert expected.abs().max() > 1e-4
    found = effects.values.flatten()
    torch.testing.assert_close(found[~found.isnan()], expected, atol=2e-5, rtol=1e-4)


def assert_keys(model, inputs, target, spans):
    effects = regard.lens.effects(model, inputs, target, over=spans)
    changes = [
        lambda change, first=first, stop=stop: Intervention.knock_out(
            change, keys=slice(first, stop), queries=slice(stop, None)
        )
        for first, stop in spans
    ]
    expected = one_by_one(model, inputs, target, changes)
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(effects.values, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_channels_may_be_entries_of_the_batch(channels):
    config = hf.PatchTSTConfig(
        num_input_channels=channels, context_length=35, patch_length=7, patch_stride=7, d_model=20,
        num_hidden_layers=2, num_attention_heads=5, ffn_dim=11, prediction_length=4,
    )  # fmt: skip
    model = randomize(hf.PatchTSTForPrediction(config)).eval()
    inputs = {"past_values": torch.randn(1, 35, channels)}

    def target(output):
        return output.prediction_outputs[:, 1, channels - 1]

    assert_heads(model, inputs, target)
    assert_heads(model, inputs, target, batch_size=3)
    assert_keys(model, inputs, target, [(0, 1), (1, 3), (2, 4)])


def test_channels_in_the_batch_go_with_gradients():
    config = hf.PatchTSTConfig(
        num_input_channels=3, context_length=35, patch_length=7, patch_stride=7, d_model=20,
        num_hidden_layers=2, num_attention_heads=5, ffn_dim=11, prediction_length=4,
    )  # fmt: skip
    model = randomize(hf.PatchTSTForPrediction(config)).eval()
    inputs = {"past_values": torch.randn(1, 35, 3)}

    def target(output):
        return output.prediction_outputs[:, 1, 2]

    with torch.enable_grad():
        given = regard.lens.effects(model, inputs, target, method="gradient")
        expected = regard.lens.effects(model, lambda m: m(**inputs), target, method="gradient")
        torch.testing.assert_close(given.values, expected.values)
        checks = given.check(4).true, expected.check(4).true
    for one, other in zip(*checks, strict=True):
        assert one.name == other.name
        assert one.value == pytest.approx(other.value, abs=2e-5)


@pytest.mark.parametrize("window", [4, pytest.param(8, marks=pytest.mark.thorough)])
def test_windows_may_be_entries_of_the_batch(window):
    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=15, depths=[3], num_heads=[5],
        window_size=window, num_labels=7,
    )  # fmt: skip
    model = randomize(hf.SwinForImageClassification(config)).eval()
    assert_heads(model, {"pixel_values": torch.randn(1, 3, 16, 16)}, lambda out: out.logits[:, 3])


WIDTH, HEADS = 15, 3


class Layer(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.projection, self.attend = nn.Linear(WIDTH, 3 * WIDTH), attend

    def forward(self, x, bias):
        return self.attend(bias, *self.projection(x).chunk(3, dim=-1))


class Own(nn.Module):
    """Layers that call attention with tensors as a subclass lays them out."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(HEADS, 7 * 7)  # a batch of one has such a shape, too
        self.layers = nn.ModuleList(Layer(type(self).attend) for _ in range(3))

    def forward(self, x):
        bias = self.bias(torch.arange(HEADS)[None]).reshape(HEADS, 7, 7)
        for layer in self.layers:
            x = x + layer(x, bias)
        return x

    @staticmethod
    def attend(bias, *tensors):
        split = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in tensors)
        context = F.scaled_dot_product_attention(*split, attn_mask=bias)
        return context.transpose(1, 2).flatten(2)


class HeadsInTheBatch(Own):
    @staticmethod
    def attend(bias, *tensors):
        split = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in tensors)
        context = F.scaled_dot_product_attention(*(t.flatten(0, 1) for t in split))
        return context.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)


class BatchSecond(Own):
    @staticmethod
    def attend(bias, *tensors):
        split = (t.unflatten(-1, (HEADS, -1)).permute(2, 0, 1, 3) for t in tensors)
        return F.scaled_dot_product_attention(*split).permute(1, 2, 0, 3).flatten(2)


class Doubled(Own):
    @staticmethod
    def attend(bias, *tensors):
        split = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in tensors]
        both = (torch.cat([t, t.flip(2)]) for t in split)  # as with and without guidance
        plain, guided = F.scaled_dot_product_attention(*both).chunk(2)
        return (plain - 0.3 * guided).transpose(1, 2).flatten(2)


class OneAtATime(Own):
    @staticmethod
    def attend(bias, *tensors):
        if len(tensors[0]) != 1:
            raise ValueError("one text at a time")
        return Own.attend(bias, *tensors)


class Normalized(Own):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(7, track_running_stats=False)

    def forward(self, x):
        return super().forward(self.norm(super().forward(x)))


@pytest.mark.parametrize(
    "kind", [HeadsInTheBatch, BatchSecond, Doubled, Own, OneAtATime, Normalized]
)
def test_calls_of_other_shapes(kind):
    model, inputs = randomize(kind()).eval(), {"x": torch.randn(1, 7, WIDTH)}
    assert_heads(model, inputs, lambda y: y[:, -1, 0])
    assert_heads(model, inputs, lambda y: y[:, -1, 0], batch_size=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_activations_that_are_quantized_with_those_of_the_batch():
    quantization = pytest.importorskip("torch.ao.quantization")  # on its way out of torch
    if torch.backends.quantized.engine == "none":
        pytest.skip("torch was built without quantized kernels")
    own = randomize(Own()).eval()
    model, inputs = quantization.quantize_dynamic(own), {"x": torch.randn(1, 7, WIDTH)}
    assert_heads(model, inputs, lambda y: y[:, -1, 0])


class Halved(Own):
    """Its last layers read every other token alone."""

    def forward(self, x):
        bias = self.bias(torch.arange(HEADS)[None]).reshape(HEADS, 7, 7)
        for number, layer in enumerate(self.layers):
            x = x[:, ::2] if number == 1 else x
            x = x + layer(x, bias[:, : x.shape[1], : x.shape[1]])
        return x


def test_keys_of_layers_that_have_as_many():
    model, inputs = randomize(Halved()).eval(), {"x": torch.randn(1, 7, WIDTH)}
    effects = regard.lens.effects(model, inputs, lambda y: y[:, -1, 0], over="keys", layers=[1, 2])

    def hidden(key):
        return lambda change: Intervention.knock_out(
            change, keys=key, queries=slice(key + 1, None), layers=[1, 2]
        )

    expected = one_by_one(model, inputs, lambda y: y[:, -1, 0], [hidden(key) for key in range(3)])
    torch.testing.assert_close(effects.values[:3], expected, atol=2e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"they have \[4, 7\]; name those of the text in layers"):
        regard.lens.effects(model, inputs, lambda y: y[:, -1, 0], over="keys")


def test_a_target_may_be_of_one_text():
    model, inputs = randomize(Own()).eval(), {"x": torch.randn(1, 7, WIDTH)}
    assert_heads(model, inputs, lambda y: y.square().mean())


def test_what_is_wrong_with_each_run_is_still_said():
    model, inputs = randomize(Own()).eval(), {"x": torch.randn(1, 7, WIDTH)}
    by = {layer: torch.randn(2, 7, 3) for layer in range(9)}
    with pytest.raises(Error, match="the tensor's last axis is 3"):
        regard.lens.effects(model, inputs, lambda y: y[:, -1, 0], by=by)
