"""Passages knocked out of models of transformers and of our own, beside masks written by hand."""

import pytest
import torch
from record.models.classes import randomize

import regard
from regard.gpt import load
from regard.gpt.stories import story
from regard.lens import passage_effects, token_offsets
from regard.lens.effect.hybrid import hybrid_note

hf = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LENGTH, ANSWER = 23, slice(19, 22)
SPANS = [(1, 5), (5, 7), (9, 14)]
SMALL = 2e-5  # rounding of float32 in three layers, between two orders of the same sums


def llama(implementation):
    config = hf.LlamaConfig(num_key_value_heads=2, **SIZES)
    model = hf.LlamaForCausalLM._from_config(config, attn_implementation=implementation)
    return randomize(model).eval()


@pytest.fixture
def ids():
    return torch.randint(2, 37, (LENGTH,), generator=torch.Generator().manual_seed(0))


def by_mask(model, ids, hidden, queries):
    """The answer's log-probability under a mask that is written out."""
    visible = torch.ones(LENGTH, LENGTH).tril().bool()
    for first, stop in hidden:
        visible[queries, first:stop] = False
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~visible, float("-inf"))
    with torch.no_grad():
        logits = model(ids[None], attention_mask=mask).logits[0].double()
    tokens = range(ANSWER.start, ANSWER.stop)
    return sum(float(logits[t - 1].log_softmax(-1)[ids[t]]) for t in tokens)


@pytest.mark.parametrize(("hidden_from", "start"), [("question", 14), ("answer", 18)])
def test_effects_are_those_of_a_mask_that_is_written_out(ids, hidden_from, start):
    model = llama("sdpa")
    effects = passage_effects(model, ids, SPANS, ANSWER, hidden_from=hidden_from)
    queries = slice(start, None)
    assert effects.hidden_from == (start, ANSWER.stop - 1)
    unchanged = by_mask(model, ids, [], queries)
    assert effects.unchanged == pytest.approx(unchanged, abs=SMALL)
    for value, span in zip(effects.values.tolist(), SPANS, strict=True):
        assert value == pytest.approx(by_mask(model, ids, [span], queries) - unchanged, abs=SMALL)
    without = by_mask(model, ids, SPANS, queries) - unchanged
    assert effects.without_any == pytest.approx(without, abs=SMALL)
    assert min(map(abs, [*effects.values.tolist(), without])) > 100 * SMALL


def gemma2():
    config = hf.Gemma2Config(num_key_value_heads=2, head_dim=6, sliding_window=5, **SIZES)
    return randomize(hf.Gemma2ForCausalLM._from_config(config, attn_implementation="eager")).eval()


def gpt2():
    config = hf.GPT2Config(vocab_size=37, n_embd=24, n_layer=2, n_head=4, n_positions=40)
    return randomize(hf.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")).eval()


@pytest.mark.parametrize("make", [lambda: llama("eager"), gemma2, gpt2])
def test_a_context_that_is_read_once_gives_what_reading_all_of_it_gives(ids, make):
    model = make()
    effects = passage_effects(model, ids[None], SPANS, ANSWER)
    with regard.record(model) as recording, torch.no_grad():
        model(ids[None])
    expected = regard.lens.passages(recording, SPANS, ANSWER, sinks=())
    shares = passage_effects(model, ids, SPANS, ANSWER, sinks=()).weights.shares
    torch.testing.assert_close(shares, expected.shares, rtol=0, atol=1e-6)
    tokens = torch.arange(ANSWER.start, ANSWER.stop)

    def whole(*spans):
        with torch.no_grad(), regard.intervene(model) as change:
            for span in spans:
                change.knock_out(keys=slice(*span), queries=slice(14, None))
            logits = model(ids[None]).logits[0].double().log_softmax(-1)
        return float(logits[tokens - 1, ids[tokens]].sum())

    assert effects.unchanged == pytest.approx(whole(), abs=SMALL)
    for value, span in zip(effects.values.tolist(), SPANS, strict=True):
        assert value == pytest.approx(whole(span) - whole(), abs=SMALL)
    assert effects.without_any == pytest.approx(whole(*SPANS) - whole(), abs=SMALL)


def test_the_passage_with_the_fact_is_needed_most_by_the_model_that_comes_with_regard():
    model, tokenizer = load()
    text = story(5373).text  # which asks at its end where a thing is
    prompt, answer = text[: text.rindex(" cellar.")], " cellar"
    document = prompt[: prompt.rindex("\n\n")]
    ids = tokenizer.encode(prompt + answer)
    passages = regard.lens.split_passages(document, token_offsets(tokenizer.tokens(ids)))
    effects = passage_effects(
        model, torch.tensor(ids), passages, slice(len(ids) - len(tokenizer.encode(answer)), None)
    )
    most = passages[effects.order()[0]]
    assert "There was a pretty globe in the cellar." in most.text
    values = sorted(effects.values.tolist())
    assert values[0] < -1  # the others change little
    assert min(values[1:]) > values[0] / 10
    assert effects.unchanged + effects.without_any < effects.unchanged - 1
    row = effects.rows()[effects.order()[0]]
    assert row["text"] == document[row["start_character"] : row["stop_character"]]
    assert repr(effects).splitlines()[1].split()[1] == f"−{-values[0]:.2f}"
    assert "with all passages hidden" in effects._repr_html_()
    assert effects.frame().effect.tolist() == effects.values.tolist()


def test_heads_that_are_read_are_chosen_and_passages_hidden_in_all(ids):
    model = llama("sdpa")
    every = passage_effects(model, ids, SPANS, ANSWER, sinks=())
    one = passage_effects(model, ids, SPANS, ANSWER, layers=1, heads=[2], sinks=())
    torch.testing.assert_close(one.weights.shares, every.weights.shares[:, 1:2, 2:3])
    assert torch.equal(one.values, every.values)


def test_an_answer_may_follow_its_context_at_once(ids):
    effects = passage_effects(llama("sdpa"), ids[:9], [(0, 3), (3, 8)], slice(8, 9))
    assert effects.hidden_from == (7, 8)
    assert (effects.values != 0).all()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, LENGTH), {}, r"ids must be token ids \(T,\) or \(1, T\)"),
        ((LENGTH,), {"hidden_from": "all"}, "hidden_from"),
    ],
)
def test_what_it_does_not_take_is_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        passage_effects(gpt2(), torch.ones(shape, dtype=torch.long), SPANS, ANSWER, **options)


def test_an_encoder_decoder_and_a_model_of_nan_are_refused(ids):
    config = hf.T5Config(vocab_size=37, d_model=24, d_kv=6, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(ValueError, match="causal language model"):
        passage_effects(hf.T5ForConditionalGeneration(config), ids, SPANS, ANSWER)
    broken = gpt2()
    torch.nn.init.constant_(broken.lm_head.weight, torch.nan)
    with pytest.raises(ValueError, match="is NaN"):
        passage_effects(broken, ids, SPANS, ANSWER)


def lfm2():
    config = hf.Lfm2Config(
        num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"],
        block_multiple_of=8, **SIZES,
    )  # fmt: skip
    return randomize(hf.Lfm2ForCausalLM._from_config(config, attn_implementation="sdpa")).eval()


def test_a_configuration_of_several_texts_is_no_hybrid():
    parts = {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": "musicgen_decoder"}
    model = torch.nn.Linear(1, 1)
    assert hybrid_note(model) is None
    model.config = hf.MusicgenConfig(**{name: {"model_type": kind} for name, kind in parts.items()})
    assert hybrid_note(model) is None


def test_a_hybrid_model_warns_that_hidden_tokens_can_still_be_read(ids):
    model = lfm2()
    warning = r"without attention in 2 of the model's 3 layers \(conv\): what is hidden"
    with pytest.warns(RuntimeWarning, match=warning) as shown:
        effects = passage_effects(model, ids, SPANS, ANSWER)
    assert shown[0].filename == __file__
    assert effects.weights.layers == (0,)
    by_hand = by_mask(model, ids, [SPANS[1]], slice(14, None))
    assert effects.values[1] == pytest.approx(by_hand - effects.unchanged, abs=SMALL)
    target = regard.lens.LogProbability(3)
    with pytest.warns(RuntimeWarning, match=warning):
        regard.lens.effects(model, ids, target, over="keys")
    regard.lens.effects(model, ids, target)  # a head that is off is off
