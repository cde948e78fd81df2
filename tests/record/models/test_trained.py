"""Training with regard's attention, and while it is recorded: every gradient is eager attention's.

Some models add what they learn to their scores by way of the mask.
"""

import copy

import pytest
import torch
import transformers as hf
from record.models.classes import randomize
from record.models.inputs import GROUPED, SIZES

import regard
from regard.record import use_in_transformers

SWIN = hf.SwinConfig(
    image_size=20,
    patch_size=2,
    embed_dim=14,
    depths=[2, 1],
    num_heads=[2, 7],
    window_size=5,
    drop_path_rate=0.0,
)
PARAKEET = hf.ParakeetEncoderConfig(
    **SIZES,
    num_mel_bins=24,
    subsampling_conv_channels=7,
    dropout=0.0,
    dropout_positions=0.0,
    layerdrop=0.0,
    activation_dropout=0.0,
    attention_dropout=0.0,
)


def picture():
    return {"pixel_values": torch.randn(2, 3, 20, 20)}


def text():
    return {"input_ids": torch.randint(3, 101, (2, 13))}


def sound():
    return {"input_features": torch.randn(2, 61, 24), "attention_mask": torch.ones(2, 61)}


LEARNED = {
    "swin": (hf.SwinModel, SWIN, picture, ("relative_position_bias_table",)),
    "doge": (hf.DogeModel, hf.DogeConfig(**GROUPED), text, ("dt_proj.weight", "self_attn.A")),
    "parakeet": (hf.ParakeetEncoder, PARAKEET, sound, ("relative_k_proj.weight", "bias_v")),
}


def padded_sound():
    arguments = sound()
    arguments["attention_mask"][1, 29:] = 0
    return arguments


def gradients(name, how, inputs=None, weigh=None):
    """The gradients of a model's parameters, by name; `weigh` chooses rows of its loss."""
    kind, config, of_name, _ = LEARNED[name]
    inputs = inputs or of_name
    use_in_transformers()
    torch.manual_seed(0)
    implementation = "regard" if how == "regard" else "eager"
    model = kind._from_config(copy.deepcopy(config), attn_implementation=implementation)
    randomize(model).eval()  # without dropout; gradients flow all the same
    torch.manual_seed(1)
    arguments = inputs()

    def learn():
        hidden = model(**arguments).last_hidden_state
        weights = torch.randn_like(hidden) * (1 if weigh is None else weigh(model, arguments))
        (hidden * weights).sum().backward()

    if how == "recorded":
        with regard.record(model) as recording:
            learn()
        assert not any(pattern.problem.query.requires_grad for pattern in recording)
    else:
        learn()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("how", ["regard", "recorded"])
@pytest.mark.parametrize("name", LEARNED)
def test_parameters_in_the_mask_are_trained(name, how):
    ours, eager = gradients(name, how), gradients(name, "eager")
    assert ours.keys() == eager.keys()
    for place in LEARNED[name][3]:
        assert any(parameter.endswith(place) and eager[parameter].any() for parameter in eager)
    check_near(ours, eager)


def check_near(ours, eager):
    for parameter, expected in eager.items():
        # Sums of hundreds of terms, each rounded at 1e-7 a step through two layers.
        near = 1e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(ours[parameter], expected, rtol=0, atol=near, msg=parameter)


def test_with_padding_gradients_are_those_of_eager_attention_where_the_loss_reads_no_padded_row():
    def real_rows(model, arguments):
        mask = model._get_output_attention_mask(arguments["attention_mask"], target_length=8)
        return mask[..., None]

    ours, eager = (
        gradients("parakeet", how, padded_sound, real_rows) for how in ("regard", "eager")
    )
    check_near(ours, eager)
