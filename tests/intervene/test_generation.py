"""Generation with a cache, changed, token for token as if each text were read from its start.

Over a generation each call reads the text's newest tokens, and what earlier calls made of earlier
ones stays in the cache. So a number from the end means, in every call, the end of the text as it is
then: −1 among the queries is the token being read, and −1 among the keys the same one.
"""

import pytest
import torch
from record.models.classes import CASES
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.gemma_4 import gemma_4
from support.gemma_4 import generate as generate_shared
from support.gemma_4 import prompt as gemma_prompt
from support.gpt_variants import VARIANTS
from support.written_models import in_our_gpt, transformers_model

from regard.gpt import GPT, Sampling, generate

PROMPT, NEW = 6, 7  # both beyond the window of 5 that some layers have
EDITS = {
    "hide the prompt's tokens": [edit("knock_out", layers=1, keys=slice(1, 4))],
    "hide a new token": [edit("knock_out", layers=0, keys=8)],
    "hide from later queries": [
        edit("knock_out", layers=1, keys=[3, 5], queries=slice(7, 11), heads=[0, 2])
    ],
    "hide from the latest": [edit("knock_out", queries=-1, keys=slice(-3, -1))],
    "hide the latest from itself": [edit("knock_out", layers=1, keys=-1, heads=slice(0, 4))],
    "hide the fourth but last": [edit("knock_out", layers=0, keys=-4)],
    "add": [
        edit("steer", layers=1, keys=slice(2, 9, 2), by=1.5),
        edit("steer", layers=0, keys=slice(-2, None), queries=slice(4, -1), by=-1.0),
        edit("steer", layers=0, keys=slice(-2, None), queries=[-1], by=2.0),
    ],
    "sharpen": [edit("temper", layers=1, by=2.5)],
    "no heads": [edit("ablate", layers=1, heads=[1, 4]), edit("ablate", layers=0, heads=3)],
    "means": [edit("ablate", layers=0, heads=[1, 4], by="mean")],
    "together": [
        edit("ablate", layers=1, heads=5),
        edit("knock_out", layers=[0, 1], keys=slice(2, 5), queries=slice(7, None), heads=[0, 1]),
        edit("steer", layers=1, keys=[0, -1], by=0.8),
        edit("temper", layers=0, by=0.5),
    ],
}


def runs():
    """Each change in each model, and in each implementation with each cache, of some model."""
    for shift, name in enumerate(("gpt2", "llama", "mistral", "gemma2")):
        ways = [(how, cache) for cache in (None, "static") for how in CASES[name].implementations]
        for number, edits in enumerate(EDITS):
            how, cache = ways[(number + shift) % len(ways)]
            yield pytest.param(name, how, cache, edits, id=f"{name}-{how}-{cache}-{edits}")


def prompt(batch=1):
    torch.manual_seed(5)
    return torch.randint(3, 101, (batch, PROMPT))


def from_scratch(model, ids):
    """Logits of the tokens appended, of a changed model that reads the whole text at each."""
    logits = []
    for _ in range(NEW):
        with torch.no_grad():
            out = model(ids)
        last = (out.logits if hasattr(out, "logits") else out)[:, -1]
        logits.append(last)
        ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=-1)
    return ids, torch.stack(logits, 1)


def at_once(model, ids):
    """The same logits where the tokens are known: causal, so that one pass has them all."""
    with torch.no_grad():
        out = model(ids[:, :-1])
    return out.logits[:, PROMPT - 1 :]


def written_out(name, edits, ids):
    return at_once(transformers_model(CASES[name], ChangedAttention(edits, prompt=PROMPT)), ids)


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "how", "cache", "edits"), [*runs()])
def test_with_a_cache_as_without(name, how, cache, edits):
    model, ids = CASES[name].build(how), prompt(2)
    options = {} if cache is None else {"cache_implementation": cache}
    out = changed(
        model,
        EDITS[edits],
        lambda: model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        ),
    )
    logits = written_out(name, EDITS[edits], out.sequences)
    assert (written_out(name, (), out.sequences) - logits).abs().max() > 1e-3
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, rtol=0, atol=1e-5)
    assert torch.equal(out.sequences, torch.cat([ids, logits.argmax(-1)], -1))


@pytest.mark.each_once
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("name", ["gpt2", "rotary", "grouped", "window", "global", "all"])
def test_our_gpt_with_its_cache(name, edits, monkeypatch):
    torch.manual_seed(3)
    model, ids = GPT(VARIANTS[name]).eval(), prompt(2) % 29
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    with in_our_gpt(model, ChangedAttention(edits, prompt=PROMPT), monkeypatch):
        expected, _ = from_scratch(model, ids)
    greedy = Sampling(temperature=0.0)
    actual = changed(model, edits, lambda: generate(model, ids, tokens=NEW, sampling=greedy))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_a_model_that_leaves_out_queries_while_it_generates(how):
    """Of the prompt, layers that share keys have the last query alone; it has the same number."""
    model = gemma_4(how)
    edits = [
        edit("knock_out", layers=4, queries=slice(8, 11), keys=slice(2, 5)),
        edit("steer", layers=[2, 3], queries=[8, 10, 12], keys=slice(7, 10), by=2.0),
    ]
    options = {"return_dict_in_generate": True, "output_logits": True}
    out = changed(model, edits, lambda: generate_shared(model, gemma_prompt(), **options))
    logits = changed(model, edits, lambda: model(out.sequences[:, :-1]).logits[:, 8:])
    assert (model(out.sequences[:, :-1]).logits[:, 8:] - logits).abs().max() > 1e-3
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, rtol=0, atol=1e-5)


def test_a_prompt_that_goes_on_from_the_cache_leaves_out_queries_amid_the_text():
    model = gemma_4()
    edits = [
        edit("knock_out", layers=4, queries=slice(8, 19), keys=slice(2, 15, 3)),
        edit("steer", layers=3, queries=[10, 18, 20], keys=slice(15, 18), by=2.0),
    ]
    options = {"return_dict_in_generate": True, "output_logits": True}

    def in_two_turns():
        first = generate_shared(model, gemma_prompt(), **options)
        text = torch.cat([first.sequences, gemma_prompt(4)], dim=-1)
        return generate_shared(model, text, past_key_values=first.past_key_values, **options)

    out = changed(model, edits, in_two_turns)
    logits = changed(model, edits, lambda: model(out.sequences[:, :-1]).logits[:, 18:])
    assert (model(out.sequences[:, :-1]).logits[:, 18:] - logits).abs().max() > 1e-3
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, rtol=0, atol=1e-5)


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize(("name", "how"), [("gpt2", "sdpa"), ("llama", "eager")])
def test_padding_on_the_left_counts(name, how, cache):
    case, ids, padding = CASES[name], prompt(2), 2
    edits = [
        edit("knock_out", layers=1, keys=[3, 4], heads=[0, 1, 2]),
        edit("ablate", layers=0, heads=4),
        edit("steer", layers=0, keys=slice(2, 4), queries=slice(5, None), by=1.5),
    ]
    shifted = [
        edit("knock_out", layers=1, keys=[1, 2], heads=[0, 1, 2]),
        edit("ablate", layers=0, heads=4),
        edit("steer", layers=0, keys=slice(0, 2), queries=slice(3, None), by=1.5),
    ]
    keep = torch.ones(2, PROMPT, dtype=torch.int64)
    keep[1, :padding] = 0
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    options |= {"eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    options |= {} if cache is None else {"cache_implementation": cache}
    model = case.build(how)
    out = changed(model, edits, lambda: model.generate(ids * keep, attention_mask=keep, **options))
    for row, (text, stated) in enumerate([(ids[:1], edits), (ids[1:, padding:], shifted)]):
        attention = ChangedAttention(stated, prompt=text.shape[1])
        expected, logits = from_scratch(transformers_model(case, attention), text)
        actual = torch.stack(out.logits, 1)[row : row + 1]
        torch.testing.assert_close(actual, logits, rtol=0, atol=1e-5)
        assert torch.equal(out.sequences[row, -NEW:], expected[0, -NEW:])


@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_a_decoder_with_a_source(how):
    case, source = CASES["t5"], prompt(2)
    edits = [
        edit("knock_out", kind="cross", layers=0, keys=[1, -1]),
        edit("steer", kind="cross", layers=1, queries=slice(2, 4), keys=slice(2, 4), by=2.0),
        edit("knock_out", layers=1, queries=slice(3, None), keys=[0, 2]),
        edit("ablate", kind="encoder", layers=1, heads=[0, 1, 2]),
    ]
    written = transformers_model(case, ChangedAttention(edits, prompt=1))
    ids = torch.zeros(2, 1, dtype=torch.int64)
    for _ in range(NEW):
        with torch.no_grad():
            logits = written(source, decoder_input_ids=ids).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=-1)
    model = case.build(how)
    options = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    out = changed(model, edits, lambda: model.generate(source, **options))
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, rtol=0, atol=1e-5)
    assert torch.equal(out.sequences, ids)
