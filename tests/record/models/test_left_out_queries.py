"""A model that leaves out queries of layers that share keys, as Gemma 4 does while it generates."""

import pytest
import torch
from support.gemma_4 import NEW, PROMPT, gemma_4, generate, prompt

import regard
from regard.record import read_while_running

LAST = PROMPT + NEW - 1  # the last token is never attended from
ROWS = 3 * [range(LAST)] + 2 * [range(PROMPT - 1, LAST)]


def recorded_whole(model, ids):
    with torch.no_grad(), regard.record(model) as recording:
        model(ids[:, :-1])
    return recording


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_rows_have_their_numbers_in_the_text(how, tmp_path):
    model = gemma_4(how)
    with regard.record(model) as recording:
        ids = generate(model, prompt())
    recording.save(tmp_path)
    loaded = regard.load(tmp_path)
    assert [list(layer.rows) for layer in loaded.layers] == [[*rows] for rows in ROWS]
    for layer, rows, whole in zip(
        recording.layers, ROWS, recorded_whole(model, ids).layers, strict=True
    ):
        assert layer.rows == rows
        expected = whole.pattern.dense()[..., list(rows), :]
        torch.testing.assert_close(layer.pattern.dense(), expected, rtol=0, atol=1e-5)


def test_rows_are_chosen_by_these_numbers():
    model, chosen = gemma_4(), [3, PROMPT - 1, PROMPT + 2]
    with regard.record(model, rows=chosen) as recording:
        generate(model, prompt())
    assert [layer.rows for layer in recording.layers] == 3 * [(3, 8, 11)] + 2 * [(8, 11)]
    with regard.record(model, layers=[4], rows=chosen) as alone:
        generate(model, prompt())
    assert alone.layers[0].rows == (8, 11)
    assert torch.equal(alone[0].dense(), recording[4].dense())


def test_another_longer_prompt_begins_other_patterns():
    model = gemma_4()
    with (
        regard.record(model) as recording,
        read_while_running(model, regard.readouts.Max()) as run,
    ):
        generate(model, prompt())
        generate(model, prompt(PROMPT + 4), new=2)
    others = 3 * [range(PROMPT + 5)] + 2 * [range(PROMPT + 3, PROMPT + 5)]
    assert [layer.rows for layer in recording.layers] == ROWS + others
    assert [layer.rows for layer in run.layers] == ROWS + others


def test_after_a_prompt_read_elsewhere_rows_count_from_the_block():
    model, ids = gemma_4(), prompt()
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
        with regard.record(model) as recording:
            model(ids[:, :3], past_key_values=cache, logits_to_keep=1)
            model(ids[:, :1], past_key_values=cache, logits_to_keep=1)
    assert [layer.rows for layer in recording.layers] == 3 * [range(4)] + 2 * [range(2, 4)]


def test_a_prompt_that_goes_on_from_the_cache_leaves_out_queries_amid_the_text():
    model = gemma_4()
    with (
        regard.record(model) as recording,
        read_while_running(model, regard.readouts.Max()) as run,
    ):
        first = generate(model, prompt(), return_dict_in_generate=True)
        text = torch.cat([first.sequences, prompt(4)], dim=-1)
        ids = generate(model, text, past_key_values=first.past_key_values, new=3)
    rows = [*range(PROMPT - 1, LAST), *range(text.shape[-1] - 1, ids.shape[-1] - 1)]
    whole = recorded_whole(model, ids)
    for layer, read, other in zip(recording.layers, run.layers, whole.layers, strict=True):
        expected = other.pattern.dense()
        if layer.index > 2:
            assert layer.rows == read.rows == tuple(rows)
            expected = expected[..., rows, :]
        torch.testing.assert_close(layer.pattern.dense(), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(read.results[0], expected.amax(-1), rtol=0, atol=1e-5)
