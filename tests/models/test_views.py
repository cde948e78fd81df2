"""Views of many architectures: what keys add to the answer is what `toward` gives, or refused."""

import pytest
from models.test_toward import IDS, Numbers

from architectures import build
from regard.errors import Error
from regard.lens import toward, views
from regard.models import LanguageModel


@pytest.mark.parametrize("name", ["gpt2", "llama", "granite", "cohere"])
def test_the_last_row_toward_the_answer_is_that_of_the_sum_of_its_parts(name):
    model = LanguageModel(build(name, "causal"), Numbers(), name=name)
    seen = views(model, IDS, 5)
    parts = toward(model, IDS, 5)
    blocks = [block.attention for block in model.places.blocks]
    largest = parts.sources.abs().max()
    for place, layer in enumerate(seen.layers):
        rows = seen.of("toward", place)[:, -1].double()
        exact = parts.sources[blocks.index(layer.name), : len(rows)]
        assert (rows - exact).abs().max() < 1e-4 * largest


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "bitnet", "qwen3_next"])
def test_what_is_not_one_scale_is_refused(name):
    seen = views(LanguageModel(build(name, "causal"), Numbers(), name=name), IDS, 5)
    with pytest.raises(Error, match="is not one scale"):
        seen.of("toward", 0)
    assert "is not one scale" in seen.objection("toward")
    assert seen.of("without", 0).shape == seen.of("weight", 0).shape
