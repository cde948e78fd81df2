"""The two configurations and the parameter counts."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, fields

import pytest
import torch

from regard.gpt import GPT, GPTConfig, TrainConfig, parameter_counts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, r"GPTConfig\.vocab_size is 0; expected a whole number >= 1"),
        ({"context": -3}, r"GPTConfig\.context is -3"),
        ({"layers": 2.0}, r"GPTConfig\.layers is 2\.0"),
        ({"heads": True}, r"GPTConfig\.heads is True"),
        ({"dim": 20, "heads": 3}, r"dim is 20 .* heads=3: .* dim=18 or dim=21"),
        ({"dropout": 1.0}, r"GPTConfig\.dropout is 1\.0; expected a number >= 0\.0 and < 1\.0"),
        ({"dropout": -0.1}, r"GPTConfig\.dropout is -0\.1"),
        ({"dropout": float("nan")}, r"GPTConfig\.dropout is nan"),
        ({"bias": 1}, r"GPTConfig\.bias is 1; expected True or False"),
        ({"qk_norm": None}, r"GPTConfig\.qk_norm is None; expected True or False"),
        ({"positions": "sine"}, r"positions is 'sine'; expected learned or rotary"),
        ({"norm": "batch"}, r"GPTConfig\.norm is 'batch'; expected layer or rms"),
        ({"mlp": "relu"}, r"GPTConfig\.mlp is 'relu'; expected gelu, swiglu or geglu"),
        ({"groups": 3}, r"groups is 3 and does not divide heads=4"),
        ({"groups": 0}, r"GPTConfig\.groups is 0; expected a whole number >= 1"),
        ({"window": 0}, r"GPTConfig\.window is 0; expected a whole number >= 1"),
        ({"hidden": 1.5}, r"GPTConfig\.hidden is 1\.5"),
        ({"initial_std": 0.0}, r"initial_std is 0\.0; expected a number > 0\.0"),
        ({"norm_eps": 0.0}, r"norm_eps is 0\.0; expected a number > 0\.0"),
        ({"rotary_base": -1.0}, r"rotary_base is -1\.0; expected a number > 0\.0"),
        ({"embedding_factor": 2**64}, r"embedding_factor is 18446744073709551616; expected a nu"),
        ({"score_softcap": 0.0}, r"GPTConfig\.score_softcap is 0\.0; expected a number > 0\.0"),
        ({"output_norms": 1}, r"GPTConfig\.output_norms is 1; expected True or False"),
        ({"window_rotary_base": 9.0, "window": 2}, r"base is 9\.0 without .* rotary positions"),
        ({"window_rotary_base": 9.0, "positions": "rotary"}, r"without layers that have a window"),
        ({"positions": "rotary", "dim": 12}, r"'rotary' and a head has 3 channels"),
        ({"global_every": 2}, r"global_every is 2 without a window"),
    ],
)
def test_a_gpt_config_names_the_field_that_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 10**400}, r"TrainConfig\.learning_rate is 1\d+; expected a number > 0"),
        (
            {"batch": 2**31},
            r"TrainConfig\.batch is \d+; expected a whole number >= 1 and <= 2147483647",
        ),
        ({"steps": 0}, r"TrainConfig\.steps is 0; expected a whole number >= 1"),
        ({"batch": 1.5}, r"TrainConfig\.batch is 1\.5"),
        ({"warmup": 11, "steps": 10}, r"warmup is 11 of steps=10"),
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0; expected a number > 0\.0"),
        ({"embedding_rate": 0.0}, r"embedding_rate is 0\.0; expected a number > 0\.0"),
        ({"learning_rate": float("inf")}, r"learning_rate is inf"),
        ({"learning_rate": "fast"}, r"learning_rate is 'fast'"),
        ({"clip": 0}, r"TrainConfig\.clip is 0;"),
        ({"final": 1.5}, r"TrainConfig\.final is 1\.5; expected a number >= 0\.0 and <= 1\.0"),
        ({"repeats": 1.0}, r"TrainConfig\.repeats is 1\.0"),
        ({"focus": -0.1}, r"TrainConfig\.focus is -0\.1; expected a number >= 0\.0 and <= 1\.0"),
        ({"validation": 0.0}, r"TrainConfig\.validation is 0\.0"),
        ({"seed": 2**63}, r"TrainConfig\.seed is \d+; expected a whole number >= 0 and <= \d+"),
        ({"tokenizer": "words"}, r"tokenizer is 'words'; expected bpe or char"),
    ],
)
def test_a_train_config_names_the_field_that_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**change)


@pytest.mark.parametrize("config", [GPTConfig(), TrainConfig()])
def test_configs_are_frozen_keyword_only_and_explain_every_field(config):
    with pytest.raises(FrozenInstanceError):
        config.seed = 1
    with pytest.raises(TypeError):
        type(config)(1)
    assert all(field.metadata["help"] for field in fields(config))
    assert type(config)(**asdict(config)) == config


def test_there_are_four_gpt2_sizes():
    with pytest.raises(ValueError, match="'huge'; expected one of small, medium, large, xl"):
        GPTConfig.gpt2("huge")


@pytest.mark.parametrize(
    ("size", "total"),
    [
        ("small", 124_439_808),
        ("medium", 354_823_168),
        ("large", 774_030_080),
        ("xl", 1_557_611_200),
    ],
)
def test_the_counts_of_gpt2_are_those_of_the_model(size, total):
    config = GPTConfig.gpt2(size)
    with torch.device("meta"):
        model = GPT(config)
    assert parameter_counts(config).total == total
    assert sum(parameter.numel() for parameter in model.parameters()) == total


@pytest.mark.parametrize("bias", [True, False])
def test_every_part_is_counted_as_the_model_has_it(bias):
    config = GPTConfig(vocab_size=37, context=13, layers=3, heads=5, dim=35, bias=bias)
    counts = parameter_counts(config)
    sizes = {name: p.numel() for name, p in GPT(config).named_parameters()}

    def part(*names):
        return sum(size for name, size in sizes.items() if any(n in name for n in names))

    assert counts.token_embedding == part("wte")
    assert counts.position_embedding == part("wpe")
    assert counts.heads == counts.query_key + counts.value_output == part("attn.")
    assert counts.mlp == part("mlp.")
    assert counts.norms == part("ln_")
    assert counts.total == part("")
    assert counts.query_key == part("c_attn") // 3 * 2
    assert counts.head == 4 * 35 * 7 + bias * 3 * 7
    output_biases = 3 * 35 * bias
    assert counts.heads == 3 * 5 * counts.head + output_biases


def test_the_counts_of_gpt3_by_part():
    # Table 2.1 of Brown et al. (2020): 96 layers, 96 heads of 128, width 12288; weights alone.
    counts = parameter_counts(
        GPTConfig(vocab_size=50257, context=2048, layers=96, heads=96, dim=12288, bias=False)
    )
    assert counts.token_embedding == 617_558_016
    assert counts.query_key == 2 * 14_495_514_624
    assert counts.value_output == 2 * 14_495_514_624
    assert counts.mlp == 2 * 57_982_058_496
    assert counts.head == 6_291_456


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 0), (50, 5), (999, 99), (1000, 100), (4000, 100)]
)
def test_the_default_warmup_fits_the_steps(steps, expected):
    assert TrainConfig(steps=steps).warmup == expected
    assert TrainConfig(steps=steps) == TrainConfig(steps=steps, warmup=expected)
    assert TrainConfig(steps=steps, warmup=1).warmup == 1


def test_a_warmup_longer_than_the_steps_is_refused():
    with pytest.raises(ValueError, match=r"warmup is 100 of steps=50 updates; .* leave it out"):
        TrainConfig(steps=50, warmup=100)
