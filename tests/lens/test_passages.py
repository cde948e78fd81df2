"""Passages of a text, and the weight that an answer's queries give to each."""

import pytest
import torch

import regard
from regard.lens import Answer, split_passages, token_offsets
from regard.record import RecordError

# Two layers of sizes that differ; the text's 23 tokens are context, question and answer.
LENGTH, ANSWER = 23, slice(19, 22)
TARGET = Answer(ANSWER)
SPANS = [(0, 4), (4, 9), (11, 16)]
ROUNDING = 1e-5  # scores reach 45, and float32 has steps of 4e-6 there


def texts(document, tokens, **options):
    return [p.text for p in split_passages(document, token_offsets(tokens), **options)]


def by_character(document, **options):
    return texts(document, list(document), **options)


def test_paragraphs_and_headings_are_passages_and_white_space_is_none():
    lines = ["  Above it.", "", " \t", "# One", "First line,", "second line.", "A title", "======="]
    document = "\n".join([*lines, "Below.", "", "", "## Two", ""])
    expected = ["Above it.", "# One", "First line,\nsecond line.\nA title\n=======", "Below."]
    assert by_character(document) == [*expected, "## Two"]
    passages = split_passages(document, [(n, n + 1) for n in range(len(document))])
    for passage in passages:  # a token a character
        assert passage.tokens == passage.characters
        assert document[slice(*passage.characters)] == passage.text
        assert passage.text == passage.text.strip()


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_fenced_block_is_one_passage_with_its_blank_lines(fence):
    block = f"{fence}python\n# no heading\n\nx = 1\n{fence}"
    assert by_character(f"Before.\n{block}\nAfter.\n\nLast.") == [
        "Before.",
        block,
        "After.",
        "Last.",
    ]
    assert by_character(f"{fence}\nnever\n\nclosed") == [f"{fence}\nnever\n\nclosed"]


def test_sentences_end_at_their_marks():
    document = 'One. Two is 2.5! "Three?" asked Ann.\n\nFour'
    assert by_character(document, sentences=True) == [
        "One.",
        "Two is 2.5!",
        '"Three?"',
        "asked Ann.",
        "Four",
    ]


def test_a_token_belongs_to_the_first_passage_that_it_holds_a_character_of():
    passages = split_passages("a b\n\nc d", token_offsets(["a", " b\n\nc", " d", "\n"]))
    assert [(p.tokens, p.text) for p in passages] == [((0, 2), "a b"), ((2, 3), "c d")]
    assert texts("a\n\nb", ["a\n\nb"]) == ["a"]


def test_a_document_may_stand_within_what_the_model_reads():
    tokens = ["<s>", "user:", " Ape", ".\n\n", "Bee", ".", "?"]
    passages = split_passages("Ape.\n\nBee.", token_offsets(tokens), start=len("<s>user: "))
    assert [(p.tokens, p.characters) for p in passages] == [((2, 4), (0, 4)), ((4, 6), (6, 10))]
    special = [(0, 0), (0, 3), (3, 4), (0, 0)]  # tokens without characters hold none
    assert [p.tokens for p in split_passages("Ape.", special)] == [(1, 3)]
    assert split_passages(" \n", [(0, 2)]) == ()


@pytest.fixture
def recording():
    """Two layers of three heads; in the second, every query rests on key 5."""
    torch.manual_seed(0)
    with regard.record() as recording:
        for resting in (0.0, 40.0):
            query, key = torch.randn(2, 1, 3, LENGTH, 7).unbind()
            query[..., 0] = 1.0
            key[..., 5, 0] += resting
            regard.attention(query, key, key, mask=regard.causal())
    return recording


def by_hand(recording, keys, layers=(0, 1), heads=(0, 1, 2)):
    """From the dense weights: the query before each token of the answer predicts it."""
    rows = slice(ANSWER.start - 1, ANSWER.stop - 1)
    weights = [layer[0, list(heads), rows].double() for layer in _dense(recording, layers)]
    return torch.stack([one[..., list(keys)].sum(-1).mean(-1) for one in weights])


def _dense(recording, layers):
    return [recording.dense()[layer] for layer in layers]


def test_shares_are_those_of_the_dense_weights_and_add_up(recording):
    weights = regard.lens.passage_weights(recording, SPANS, TARGET, sinks=[5])
    owned = [[*range(*SPANS[0])], [4, 6, 7, 8], range(11, 16)]  # without the sink
    for share, keys in zip(weights.spans.values, owned, strict=False):
        torch.testing.assert_close(share, by_hand(recording, keys), rtol=0, atol=ROUNDING)
    torch.testing.assert_close(
        weights.spans.values[3], by_hand(recording, [5]), rtol=0, atol=ROUNDING
    )
    rest = [9, 10, *range(16, LENGTH)]
    torch.testing.assert_close(
        weights.spans.values[4], by_hand(recording, rest), rtol=0, atol=ROUNDING
    )
    total = weights.spans.values.sum(0)
    torch.testing.assert_close(total, torch.ones(2, 3).double(), rtol=0, atol=ROUNDING)
    assert weights.keys == (*((span,) for span in SPANS), ((5, 6),), ())
    torch.testing.assert_close(weights.mean, weights.spans.values.mean((1, 2)))


def test_sinks_are_those_of_the_heads_that_are_read(recording):
    assert regard.lens.passage_weights(recording, SPANS, TARGET).keys[-2] == ((5, 6),)
    assert regard.lens.passage_weights(recording, SPANS, TARGET, layers=0).keys[-2] == ()
    assert regard.lens.sinks(recording)[0].keys == (5,)


def test_the_first_token_is_a_key_like_another_unless_heads_rest_on_it(recording):
    weights = regard.lens.passage_weights(recording, [(0, 4)], TARGET, layers=0)
    expected = by_hand(recording, range(4), layers=[0])
    torch.testing.assert_close(weights.spans.values[0], expected, rtol=0, atol=ROUNDING)
    key = torch.zeros(1, 1, LENGTH, 2)
    key[..., 0, :] = 9.0
    with regard.record() as resting:
        regard.attention(torch.ones_like(key), key, key, mask=regard.causal())
    weights = regard.lens.passage_weights(resting, [(0, 4)], TARGET)
    assert weights.keys[-2] == ((0, 1),)
    assert weights.mean[:2].tolist() == pytest.approx([0, 1], abs=1e-3)


def test_layers_and_heads_that_are_read_are_chosen(recording):
    weights = regard.lens.passage_weights(
        recording, SPANS, TARGET, layers=[1], heads=slice(1, 3), sinks=()
    )
    assert (weights.layers, weights.heads) == ((1,), (1, 2))
    expected = by_hand(recording, range(4, 9), layers=[1], heads=[1, 2])
    torch.testing.assert_close(weights.spans.values[1], expected, rtol=0, atol=ROUNDING)


def test_a_sink_logit_counts_as_a_sink():
    query, key = torch.randn(2, 2, LENGTH, 5).unbind()
    with regard.record() as recording:
        regard.attention(query, key, key, mask=regard.causal(), sink=torch.tensor([2.0, 3.0]))
    weights = regard.lens.passage_weights(recording, SPANS, TARGET, sinks=())
    rows = recording[0].dense()[..., 18:21, :].double()
    expected = 1 - rows.sum(-1).mean(-1).reshape(1, 2)
    assert expected.min() > 0.1
    torch.testing.assert_close(weights.spans.values[-2], expected, rtol=0, atol=ROUNDING)


def test_rows_of_the_answer_are_enough_where_sinks_are_named():
    torch.manual_seed(1)
    query, key = torch.randn(2, 1, 3, LENGTH, 7).unbind()

    def recorded(**options):
        with regard.record(**options) as recording:
            regard.attention(query, key, key, mask=regard.causal())
        return recording

    whole = regard.lens.passage_weights(recorded(), SPANS, TARGET, sinks=())
    some = recorded(rows=range(17, 22))
    part = regard.lens.passage_weights(some, SPANS, TARGET, sinks=())
    torch.testing.assert_close(part.spans.values, whole.spans.values, rtol=0, atol=ROUNDING)
    with pytest.raises(RecordError, match="only some were recorded"):
        regard.lens.passage_weights(some, SPANS, TARGET)
    with pytest.raises(RecordError, match="query 18"):
        regard.lens.passage_weights(recorded(rows=range(19, 22)), SPANS, TARGET, sinks=())


def test_a_frame_has_a_row_a_passage_and_head(recording):
    passages = split_passages("ab.\n\ncd", [(n, n + 1) for n in range(7)])
    weights = regard.lens.passage_weights(recording, passages, TARGET)
    frame = weights.frame()
    assert len(frame) == (2 + 2) * 2 * 3
    row = frame[(frame.kind == "5–6 cd") & (frame.layer == 1) & (frame["head"] == 2)].iloc[0]
    assert row.weight == float(weights.spans.values[1, 1, 2])
    lines = repr(weights).splitlines()
    assert lines[1].split() == ["0–2", "ab.", "1", f"{weights.mean[0]:.3f}"]
    assert [line.split()[0] for line in lines[3:5]] == ["sinks", "elsewhere"]


@pytest.mark.parametrize(
    ("spans", "answer", "error", "message"),
    [
        ([], ANSWER, ValueError, "spans is empty"),
        ([(3, 3)], ANSWER, ValueError, r"\(3, 3\) is not a span .* 0 ≤ first < stop ≤ 19"),
        ([(18, 20)], ANSWER, ValueError, r"stop ≤ 19"),
        ([(4, 8), (1, 5)], ANSWER, ValueError, r"\(4, 8\) overlaps"),
        ([(1, 2, 3)], ANSWER, TypeError, "pairs of whole numbers"),
        ([(1, 2.5)], ANSWER, TypeError, "pairs of whole numbers"),
        (SPANS, 19, TypeError, "tokens must be a slice"),
        (SPANS, slice(0, 2), ValueError, "none of them the first"),
        (SPANS, slice(22, 22), ValueError, "must hold adjacent tokens"),
        (SPANS, slice(19, 23, 2), ValueError, "must hold adjacent tokens"),
    ],
)
def test_what_is_no_passage_or_answer_is_refused(recording, spans, answer, error, message):
    with pytest.raises(error, match=message):
        regard.lens.passage_weights(recording, spans, Answer(answer))


def test_several_texts_are_refused():
    query = torch.randn(2, 3, LENGTH, 5)
    with regard.record() as recording:
        regard.attention(query, query, query, mask=regard.causal())
    with pytest.raises(RecordError, match="one text at a time"):
        regard.lens.passage_weights(recording, SPANS, TARGET)


def test_a_neutral_run_is_what_the_weights_are_less():
    """Two runs over the same 16 tokens of passages, with other questions and answers after them."""
    torch.manual_seed(4)
    query, key = torch.randn(2, 1, 3, LENGTH, 7).unbind()
    runs, tokens = [], list("abcdefghijklmnop")
    for length, more in ((LENGTH, "qrstuvw"), (20, "QRST")):
        own = torch.cat([key[:, :, :16], torch.randn(1, 3, length - 16, 7)], dim=2)
        with regard.record(tokens=[*tokens, *more]) as recording:
            regard.attention(query[:, :, :length], own, own, mask=regard.causal())
        runs.append(recording)
    asked, neutral = runs
    target = Answer(slice(18, 20))
    weights = regard.lens.passage_weights(
        asked, SPANS, TARGET, sinks=[5], neutral=(neutral, target)
    )
    alone = regard.lens.passage_weights(neutral, SPANS, target, sinks=[5])
    assert torch.equal(weights.controls.values, alone.spans.values)
    rows = neutral.dense()[0][0, :, 17:19].double()  # each predicts the token after it
    expected = rows[..., [4, 6, 7, 8]].sum(-1).mean()
    assert float(weights.controls.values[1].mean()) == pytest.approx(float(expected), abs=ROUNDING)
    difference = weights.mean - alone.mean
    torch.testing.assert_close(weights.difference, difference, rtol=0, atol=1e-12)
    assert regard.lens.passage_weights(asked, SPANS, TARGET).difference.isnan().all()
    with regard.record(tokens=["x", *tokens[1:], *"QRST"]) as other:
        regard.attention(query[:, :, :20], own, own, mask=regard.causal())
    with pytest.raises(ValueError, match="neutral has other tokens up to the end"):
        regard.lens.passage_weights(asked, SPANS, TARGET, neutral=(other, target))
    one = regard.lens.passage_weights(asked, SPANS, TARGET, heads=0)
    with pytest.raises(ValueError, match="read both alike"):
        one.against(alone)
