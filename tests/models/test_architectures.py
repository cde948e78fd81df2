"""Architectures of transformers as small random models: recorded right, every equation holds."""

import pytest

from architectures import VERIFIED, examine


def some(kind):
    """All of a kind; three in four of them take part in make thorough."""
    return [
        pytest.param(name, marks=[pytest.mark.thorough] * (number % 4 != 0))
        for number, name in enumerate(VERIFIED[kind])
    ]


@pytest.mark.parametrize("name", some("causal"))
def test_a_causal_model_is_recorded_and_proved(name):
    result = examine(name, "causal")
    assert result is not None
    assert (result.tier, result.why) == ("resolves", "")


@pytest.mark.parametrize("name", some("encoder"))
def test_an_encoder_is_recorded_and_proved(name):
    result = examine(name, "encoder")
    assert result is not None
    assert (result.tier, result.why) == ("resolves", "")


def test_as_many_are_verified_as_the_docs_say():
    assert len(VERIFIED["causal"]) >= 40
    assert len(VERIFIED["encoder"]) >= 10
