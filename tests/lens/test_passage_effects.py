"""Passages knocked out of models of transformers and of our own, beside masks written by hand."""

import pytest
import torch
from record.models.classes import randomize

import regard
from regard.gpt import load
from regard.gpt.stories import story
from regard.lens import Answer, effects, token_offsets
from regard.lens.effect.caveats import hybrid_note

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
TARGET = Answer(ANSWER)
SMALL = 2e-5  # rounding of float32 in three layers, between two orders of the same sums


def over_spans(model, ids, hidden_from="question", spans=SPANS, target=TARGET):
    return effects(model, ids, target, over=spans, hidden_from=hidden_from)


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
    measured = over_spans(model, ids, hidden_from)
    queries = slice(start, None)
    assert measured.hidden_from == (start, ANSWER.stop - 1)
    unchanged = by_mask(model, ids, [], queries)
    assert measured.unchanged == pytest.approx(unchanged, abs=SMALL)
    for value, span in zip(measured.values.tolist(), SPANS, strict=True):
        assert value == pytest.approx(by_mask(model, ids, [span], queries) - unchanged, abs=SMALL)
    without = by_mask(model, ids, SPANS, queries) - unchanged
    assert measured.without_all == pytest.approx(without, abs=SMALL)
    assert min(map(abs, [*measured.values.tolist(), without])) > 100 * SMALL


def gemma2():
    config = hf.Gemma2Config(num_key_value_heads=2, head_dim=6, sliding_window=5, **SIZES)
    return randomize(hf.Gemma2ForCausalLM._from_config(config, attn_implementation="eager")).eval()


def gpt2():
    config = hf.GPT2Config(vocab_size=37, n_embd=24, n_layer=2, n_head=4, n_positions=40)
    return randomize(hf.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")).eval()


@pytest.mark.parametrize("make", [lambda: llama("eager"), gemma2, gpt2])
def test_a_context_that_is_read_once_gives_what_reading_all_of_it_gives(ids, make):
    model = make()
    measured = over_spans(model, ids[None])
    tokens = torch.arange(ANSWER.start, ANSWER.stop)

    def whole(*spans):
        with torch.no_grad(), regard.intervene(model) as change:
            for span in spans:
                change.knock_out(keys=slice(*span), queries=slice(14, None))
            logits = model(ids[None]).logits[0].double().log_softmax(-1)
        return float(logits[tokens - 1, ids[tokens]].sum())

    assert measured.unchanged == pytest.approx(whole(), abs=SMALL)
    for value, span in zip(measured.values.tolist(), SPANS, strict=True):
        assert value == pytest.approx(whole(span) - whole(), abs=SMALL)
    assert measured.without_all == pytest.approx(whole(*SPANS) - whole(), abs=SMALL)


def test_no_run_is_over_the_whole_text(ids):
    model, read = llama("sdpa"), []
    model.model.embed_tokens.register_forward_hook(lambda _, given, __: read.append(given[0].shape))
    over_spans(model, ids)
    assert read[0] == (1, 14)  # up to the end of the last passage
    assert {shape[1] for shape in read[1:]} == {LENGTH - 14}
    assert sum(shape[0] for shape in read[1:]) == 1 + len(SPANS) + 1  # as it is, each, all together


def test_the_passage_with_the_fact_is_needed_most_by_the_model_that_comes_with_regard():
    model, tokenizer = load()
    text = story(6125).text  # which asks at its end where a thing is
    prompt, answer = text[: text.rindex(" barn.")], " barn"
    document = prompt[: prompt.rindex("\n\n")]
    ids = tokenizer.encode(prompt + answer)
    passages = regard.lens.split_passages(document, token_offsets(tokenizer.tokens(ids)))
    target = Answer(slice(-len(tokenizer.encode(answer)), None))
    measured = over_spans(model, torch.tensor(ids), spans=passages, target=target)
    (most,) = measured.largest(1)
    assert "Dad had taken the bead into the barn" in most.name
    values = sorted(measured.values.tolist())
    assert values[0] < -1  # the others change little
    assert min(values[1:]) > values[0] / 10
    assert measured.without_all < -1
    frame = measured.frame()
    assert frame.effect.tolist() == measured.values.tolist()
    assert frame.name.tolist() == [str(passage) for passage in passages]
    assert "src=" in measured._repr_html_()


def test_an_answer_may_follow_its_context_at_once(ids):
    measured = over_spans(
        llama("sdpa"), ids[:9], spans=[(0, 3), (3, 8)], target=Answer(slice(8, 9))
    )
    assert measured.hidden_from == (7, 8)
    assert (measured.values != 0).all()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, LENGTH), {}, r"run must be token ids \(T,\) or \(1, T\)"),
        ((LENGTH,), {"hidden_from": "all"}, "hidden_from"),
    ],
)
def test_what_it_does_not_take_is_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        over_spans(gpt2(), torch.ones(shape, dtype=torch.long), **options)


def test_an_encoder_decoder_and_a_model_of_nan_are_refused(ids):
    config = hf.T5Config(vocab_size=37, d_model=24, d_kv=6, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(ValueError, match="causal language model"):
        over_spans(hf.T5ForConditionalGeneration(config), ids)
    broken = gpt2()
    torch.nn.init.constant_(broken.lm_head.weight, torch.nan)
    with pytest.raises(ValueError, match="is NaN"):
        over_spans(broken, ids)


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
        measured = over_spans(model, ids)
    assert shown[0].filename == __file__
    by_hand = by_mask(model, ids, [SPANS[1]], slice(14, None))
    assert measured.values[1] == pytest.approx(by_hand - measured.unchanged, abs=SMALL)
    target = regard.lens.LogProbability(3)
    with pytest.warns(RuntimeWarning, match=warning):
        regard.lens.effects(model, ids, target, over="keys")
    regard.lens.effects(model, ids, target)  # a head that is off is off
