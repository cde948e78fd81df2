"""`trace` and `deletion`: against every matrix in full, and FlashTrace's own recursion."""

import sys

import pytest
import torch
from support import real, small_models

import regard
from flashtrace import hops_of, layers_of, span_of
from regard.lens import Answer, deletion, trace
from regard.lens.toward import toward
from regard.record import RecordError

smollm2 = real.smollm2
hf = pytest.importorskip("transformers")

TEXT = "the cat sat on the mat, the dog sat on the cat. who sat on the mat? a cat"
DOCUMENT, HOPS = (2, 13), 3
ANSWER = slice(19, 23)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    reads = small_models.tokenizer(TEXT)
    folder = small_models.save_llama(
        tmp_path_factory.mktemp("llama"), reads, hidden_size=60, num_attention_heads=6,
        num_key_value_heads=2, num_hidden_layers=3, initializer_range=0.3,
    )  # fmt: skip
    return regard.models.open(folder)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(2, 250, (23,), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def found(model, ids):
    neutral = torch.cat([ids[:13], torch.tensor([31, 37, 41, 43, 47])]), Answer(slice(16, 18))
    return trace(model, ids, Answer(ANSWER), DOCUMENT, hops=HOPS, neutral=neutral), neutral


def by_hand(direct, matrix, stop, end):
    """Shares after each hop: what is on tokens between is taken off and propagated by its row."""
    seen, passing = [direct], direct
    for _ in range(HOPS):
        share = torch.zeros_like(passing)
        share[stop:end] = passing[stop:end]
        passing = share @ matrix
        seen.append(seen[-1] - share + passing)
    return torch.stack(seen)


def matrices(module, ids):
    """The mean weight over all heads, and each query's shares of what it moves, ``(L, L)``."""
    layers = layers_of(module, ids)
    weights = torch.stack([one[2] for one in layers]).mean((0, 1))
    moved = sum((one[2] * one[3].norm(dim=-1)[:, None]).sum(0) for one in layers)
    return weights, moved / moved.sum(-1, keepdim=True)


def test_shares_are_products_with_the_matrices_in_full(model, ids, found):
    weights, moved = matrices(model.module, ids)
    queries = slice(ANSWER.start - 1, ANSWER.stop - 1)
    stop, end = DOCUMENT[1], ANSWER.stop - 1
    added = toward(model, ids, Answer(ANSWER)).sources.sum((0, 1))
    expected = {
        "attention": by_hand(weights[queries].mean(0), weights, stop, end),
        "moved": by_hand(moved[queries].mean(0), moved, stop, end),
        "toward": by_hand(added, moved, stop, end),
    }
    shares = found[0].shares
    for name, own in expected.items():
        torch.testing.assert_close(shares[name], own, rtol=0, atol=2e-5)
    for name in ("attention", "moved"):
        torch.testing.assert_close(shares[name].sum(-1).float(), torch.ones(HOPS + 1))
    assert float(shares["moved"][0, stop:].sum()) > 0.1  # so that there is something to propagate
    assert found[0].between("moved") == pytest.approx(float(shares["moved"][-1, stop:].sum()))
    assert found[0].between("moved") < found[0].between("moved", 0) / 2


def test_the_difference_is_what_a_neutral_question_leaves(model, found):
    other, answer = found[1]
    weights, _ = matrices(model.module, other)
    queries = slice(answer.tokens.start - 1, answer.tokens.stop - 1)
    neutral = by_hand(weights[queries].mean(0), weights, DOCUMENT[1], len(other) - 1)
    shares = found[0].shares
    expected = shares["attention"][:, :13] - neutral[:, :13]
    torch.testing.assert_close(shares["difference"][:, :13], expected, rtol=0, atol=2e-5)
    assert shares["difference"][:, 13:].isnan().all()
    passages = regard.lens.passage_weights(
        *_recorded(model, found[1][0]), [(2, 5), (5, 13)], answer, sinks=()
    )
    torch.testing.assert_close(neutral[0, 5:13].sum(), passages.mean[1], rtol=0, atol=2e-5)


def _recorded(model, ids):
    with torch.no_grad(), regard.record(model.module) as recording:
        model(ids)
    return (recording,)


def test_hops_are_those_of_flashtrace_with_weights_as_its_measure(model, ids, found):
    weights, _ = matrices(model.module, ids)

    def span(rows, shares=None):
        given = torch.ones(len(rows)).double() if shares is None else shares
        return given / given.sum() @ weights[list(rows)]

    between = range(DOCUMENT[1], ANSWER.stop - 1)
    answer = range(ANSWER.start - 1, ANSWER.stop - 1)
    theirs = hops_of(span, answer, between, range(*DOCUMENT), HOPS)
    own = found[0].shares["attention"][:, slice(*DOCUMENT)]
    torch.testing.assert_close(theirs[:, slice(*DOCUMENT)], own, rtol=0, atol=2e-5)


def test_importances_of_flashtrace_add_up_to_at_most_one_a_layer(model, ids):
    """A check of the rewriting: a span of one row is that row, and shares may be scaled."""
    span = span_of(layers_of(model.module, ids))
    one = span([20])
    assert 0 < float(one.sum()) <= 3
    assert not one[21:].any()
    torch.testing.assert_close(span([20], torch.tensor([7.0]).double()), one)


def test_sinks_are_those_of_the_model_and_are_not_ranked():
    shipped = regard.models.open()
    ids = torch.tensor(shipped.read("Tom had a red kite and a blue drum. Tom wanted the blue").ids)
    own = trace(shipped, ids, Answer(slice(-1, None)), (0, 10), hops=0)
    (sinks,) = regard.lens.sinks(*_recorded(shipped, ids))
    assert own.sinks == sinks.keys
    assert own.sinks
    ranked = own.ranked("moved")
    assert sorted({*ranked, *own.sinks}) == sorted({*range(10), *own.sinks})
    assert not {*ranked} & {*own.sinks}
    values = own.shares["moved"][0][ranked]
    assert torch.equal(values, values.sort(descending=True).values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_deletion_measures_the_shorter_text(model, ids, dtype):
    order = [7, 3, 12, 5, 4, 9, 11]
    module = model.module.to(dtype)
    lost = deletion(model, ids, Answer(ANSWER), {"own": order, "back": order[::-1]}, steps=4)
    assert lost.counts == (1, 4)  # 0.07, 0.26, 0.95 and 3.5 of seven tokens, at least one
    assert lost.forwards == 1 + 2 * (2 + 3)
    for count, change in zip(lost.counts, lost.changes["own"], strict=True):
        kept = [at for at in range(23) if at not in order[:count]]
        with torch.no_grad():
            logs = module(ids[kept][None]).logits[0].double().log_softmax(-1)
        answer = range(ANSWER.start - count, ANSWER.stop - count)
        expected = sum(float(logs[at - 1, ids[at + count]]) for at in answer)
        assert lost.log_probability + float(change) == pytest.approx(expected, abs=1e-4)
    assert lost.means["own"] == pytest.approx(float(lost.changes["own"].mean()))
    model.module.to(torch.float32)
    again = deletion(model, ids, Answer(ANSWER), {"own": order}, steps=4)
    torch.testing.assert_close(again.changes["random"], lost.changes["random"], atol=1e-4, rtol=0)


def test_a_model_whose_values_are_not_understood_still_has_weights(model, ids, monkeypatch):
    def unknown(_):
        raise RecordError("no W_O is known")

    monkeypatch.setattr(sys.modules[trace.__module__], "norms", unknown)
    found = trace(model, ids, Answer(ANSWER), DOCUMENT)
    assert list(found.shares) == ["attention"]
    assert found.missing == {"moved": "no W_O is known", "toward": "no W_O is known"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hops": -1}, ValueError, "hops must be at least 0, but is -1"),
        ({"hops": 1.5}, TypeError, "hops"),
        ({"document": (2, 20)}, ValueError, r"\(2, 20\) is not a span"),
        ({"neutral": (torch.arange(9), Answer(slice(-1, None)))}, ValueError, "other tokens up to"),
    ],
)
def test_misuse_is_refused(model, ids, change, error, message):
    given = {"document": DOCUMENT, **change}
    with pytest.raises(error, match=message):
        trace(model, ids, Answer(ANSWER), given.pop("document"), **given)


@pytest.mark.parametrize(
    ("orders", "options", "message"),
    [
        ({"a": [3, 4], "b": [3, 5]}, {}, "the same tokens"),
        ({"a": [3]}, {}, "at least two of them"),
        ({"a": [3, 22]}, {}, "those before the answer are 0 to 18"),
        ({"a": [3, 4]}, {"steps": 0}, "steps must be at least 1"),
        ({"a": [3, 4]}, {"draws": 0}, "draws must be at least 1"),
    ],
)
def test_orders_that_cannot_be_deleted_are_refused(model, ids, orders, options, message):
    with pytest.raises(ValueError, match=message):
        deletion(model, ids, Answer(ANSWER), orders, **options)


@pytest.mark.real
def test_what_an_answer_took_is_what_it_loses(smollm2):
    """By each measure, and by FlashTrace's, more is lost than at random."""
    text = (
        "Anna painted the boat green, and Peter mended the sail. The tickets are sold at the "
        "harbour, next to the bakery. In winter the garden is closed."
    )
    asked = f"{text}\n\nQuestion: Where are the tickets sold?\nAnswer: The tickets are sold at the"
    before, read = smollm2.read(asked), smollm2.read(f"{asked} harbour")
    ids, answer = torch.tensor(read.ids), Answer(slice(len(before), len(read)))
    document = 0, sum(start < len(text) for start, _ in read.offsets)
    found = trace(smollm2, ids, answer, document)
    assert found.tokens[found.ranked("toward", 0)[0]] == " harbour"
    rows = range(len(before), len(read))
    theirs = hops_of(
        span_of(layers_of(smollm2.module, ids)), rows, range(document[1], rows[0]),
        range(*document), 1,
    )[-1]  # fmt: skip
    orders = {name: found.ranked(name) for name in found.shares}
    orders["FlashTrace"] = sorted(orders["moved"], key=lambda at: -float(theirs[at]))
    lost = deletion(smollm2, ids, answer, orders, steps=3).means
    random = lost.pop("random")
    assert all(mean < random - 0.5 for mean in lost.values()), (lost, random)


def test_orders_of_deletion_hold_each_token_once_and_random_is_no_name_of_theirs():
    model = regard.models.open()
    ids = torch.tensor(model.read("Tom had a red kite. Tom wanted the red kite").ids)
    answer = regard.lens.Answer(slice(-1, None))
    with pytest.raises(ValueError, match="the same tokens, each once"):
        regard.lens.deletion(model, ids, answer, {"twice": [3, 3, 2]})
    with pytest.raises(ValueError, match="the name of those that are drawn"):
        regard.lens.deletion(model, ids, answer, {"random": [3, 2]})
