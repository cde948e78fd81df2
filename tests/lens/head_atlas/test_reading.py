"""What is read of a document against its definition, from dense weights in float64."""

import copy

import pytest
import torch
from support import small_models

import regard
from regard.lens.head_atlas.examples import AFTER, BEFORE, LINKS, hashes
from regard.lens.head_atlas.first_order import head_effects
from regard.lens.head_atlas.layer_reading import DISTANCES, LISTS
from regard.lens.head_atlas.reading import Document, Reader
from regard.lens.head_atlas.token_classes import CLASSES, token_classes
from regard.lens.naming.separators import is_separator

ROUNDING = 2e-5
"""Relative: weights, values and logits of float32, summed over a few dozen rows."""
TEXT = "Tom had a red kite, and Lily had 12 drums. Tom wanted the red kite."


@pytest.fixture(scope="module", params=["own", "llama"])
def model(request, tmp_path_factory):
    """The model that comes with regard, and a random Llama with grouped keys."""
    if request.param == "own":
        return regard.models.open()
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    reads = small_models.tokenizer(TEXT)
    small_models.save_llama(folder, reads, num_attention_heads=6, num_key_value_heads=2)
    return regard.models.open(str(folder))


@pytest.fixture(scope="module")
def case(model):
    """The text's ids, its dense weights, values behind W_O, sinks and classes, and the reading."""
    ids = model.read(TEXT).ids
    document = Document(number=3, source="here", windows=(ids,))
    reader = Reader(model, seed=5)
    text = torch.tensor(ids)
    counts = [len(heads) for heads in _heads(model, text)]
    effects = head_effects(model, ids, counts)
    read = reader.read(document, lowest={}, below=2**61, effects=[effects])
    return model, ids, reader, read, effects


def _heads(model, text):
    return [layer.heads for layer in model.record(text).layers]


def by_definition(model, ids):
    """Weights (N, T, T), sinks (N, T), values behind W_O (N, T, E): in float64."""
    run = model.record(torch.tensor(ids))
    weights, sinks, written = [], [], []
    for number, layer in enumerate(run.layers):
        pattern = layer.pattern[0] if layer.pattern.ndim == 4 else layer.pattern
        weights.append(pattern.dense().double())
        block = model.places.blocks[number]
        matrix = model.module.get_submodule(block.output).weight.detach().double()
        matrix = matrix.T if matrix.shape[0] == matrix.shape[1] else matrix
        own = run.values_of(number)
        sliced = matrix.unflatten(0, (len(own), -1))
        written.append(torch.stack([v.double() @ w for v, w in zip(own, sliced, strict=True)]))
        sinks.append(regard.lens.sink_keys.resting(pattern))
    return torch.cat(weights), torch.cat(sinks), torch.cat(written)


def close(found, expected):
    scale = float(expected.abs().max()) or 1.0
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING, atol=ROUNDING * scale)


def test_rest_profile_histogram_and_classes(case):
    model, ids, _, read, _ = case
    weights, sinks, written = by_definition(model, ids)
    beside = weights.masked_fill(sinks[:, None], 0)
    beside = beside / beside.sum(-1, keepdim=True).clamp_min(1e-300)
    names = model.tokenizer.tokens(ids)
    kinds = [0 if n == 0 else 1 if is_separator(name) else 2 for n, name in enumerate(names)]
    heads, length = len(weights), len(ids)
    rest = torch.zeros(heads, 3, dtype=torch.float64)
    profile = torch.zeros(heads, len(DISTANCES), dtype=torch.float64)
    counts = torch.zeros(heads, 10, dtype=torch.float64)
    for head in range(heads):
        for query in range(length):
            for key in range(query + 1):
                if sinks[head, key] and query:
                    rest[head, kinds[key]] += weights[head, query, key]
                place = max(n for n, least in enumerate(DISTANCES) if least <= query - key)
                profile[head, place] += beside[head, query, key]
            if query:
                counts[head, min(9, int(10 * beside[head, query].max()))] += 1
    close(read.plain["rest"], rest)
    close(read.plain["profile"], profile)
    assert (read.plain["histogram"] - counts).abs().sum(-1).max() <= 2  # a weight on an edge
    assert torch.equal(read.plain["rows"], torch.full((heads, 1), length - 1.0).double())
    norm = written.norm(dim=-1)
    moved = (weights.masked_fill(sinks[:, None], 0) * norm[:, None]).sum(-1)
    close(read.clustered["moved"][:, 1], moved.sum(-1))
    share = (weights * sinks[:, None]).sum(-1)
    own = torch.tensor([CLASSES.index(name) for name in token_classes(names)])
    for number in range(len(CLASSES)):
        some = own == number
        close(read.plain["class_rest"][:, number], share[:, some].sum(-1))
        close(read.plain["class_moved"][:, number], moved[:, some].sum(-1))
        close(read.plain["class_keys"][:, number], beside[:, :, some].sum((1, 2)))
        assert (read.plain["class_queries"][:, number] == some.sum()).all()


def test_relations_are_the_sums_behind_the_names_of_one_text(case):
    model, ids, reader, read, _ = case
    with regard.record(model, tokens=model.tokenizer.tokens(ids)) as recording:
        model(torch.tensor(ids))
    heads = regard.lens.heads(recording)
    assert reader.heads == tuple((head.layer, head.head) for head in heads)
    for name in (
        "previous_token",
        "first_token",
        "current_token",
        "entropy",
        "distance",
        "resting",
    ):
        queries, share = read.clustered[f"relation.{name}"][:, :2].T
        close(share / queries, torch.tensor([getattr(h, name) for h in heads]).double())
    queries = read.clustered["relation.induction"][:, 0]
    assert [h.induction_queries for h in heads] == queries.tolist()
    others = read.clustered["relation.induction"][:, 3] / queries.clamp_min(1)
    close(others, torch.tensor([h.induction_others or 0.0 for h in heads]).double())


def test_toward_is_that_of_each_position_by_itself(case):
    model, ids, _, read, _ = case
    expected = sum(
        regard.lens.toward(model, torch.tensor(ids[: stop + 1]), ids[stop + 1]).heads.flatten()
        for stop in range(len(ids) - 1)
    )
    assert (read.clustered["toward"][:, 0] == len(ids) - 1).all()
    close(read.clustered["toward"][:, 1], expected)
    close(read.plain["class_toward"].sum(-1), expected)


def test_effects_are_the_derivative_by_a_factor_on_the_head(case):
    """d log p / d factor of what the head gives W_O at a position, by a small step in float64."""
    model, ids, _, _, effects = case
    text = torch.tensor(ids)
    heads = [len(own) for own in _heads(model, text)]
    exact_model = regard.models.LanguageModel(
        copy.deepcopy(model.module).double(), model.tokenizer, name="in float64"
    )
    exact = head_effects(exact_model, ids, heads)
    for layer, head, position in ((0, 1, 7), (1, 2, 11)):
        output = exact_model.module.get_submodule(model.places.blocks[layer].output)

        def total(factor, output=output, head=head, position=position, layer=layer):
            def scaled(_, args):
                taken = args[0].clone()
                parts = taken.view(len(ids), heads[layer], -1)
                parts[position, head] *= factor
                return (taken, *args[1:])

            hook = output.register_forward_pre_hook(scaled)
            logits = exact_model(text)[:-1].log_softmax(-1)
            hook.remove()
            return float(logits.gather(1, text[1:, None]).sum())

        with torch.no_grad():
            slope = (total(1.01) - total(0.99)) / 0.02
        found = float(exact[sum(heads[:layer]) + head, position])
        # Llama's norm computes in float32, whatever its input is.
        assert found == pytest.approx(-slope, rel=5e-3, abs=1e-3)
    assert effects[:, -1].isnan().all()  # the last position predicts nothing
    close(effects[:, :-1], exact[:, :-1])


def test_the_best_place_of_each_list_is_the_highest(case):
    model, ids, _, read, effects = case
    weights, sinks, written = by_definition(model, ids)
    beside = weights.masked_fill(sinks[:, None], 0)
    moved = (beside * written.norm(dim=-1)[:, None]).sum(-1)
    received = (beside / beside.sum(-1, keepdim=True).clamp_min(1e-300)).sum(1)
    assert sorted(read.best) == sorted(LISTS)
    for name, values in (
        ("moved", moved),
        ("received", received),
        ("effect", (-effects).nan_to_num(-torch.inf)),
    ):
        table = read.best[name]
        close(table.value[:, 0], values.max(-1).values)
        for head in range(len(weights)):
            (one,) = table.of(head)
            place = one["position"]
            assert float(values[head, place]) == pytest.approx(one["value"], rel=1e-4)
            column = name == "received"
            links = weights[head, :, place] if column else beside[head, place]
            top = links.topk(min(LINKS, len(links)))
            known = [w for w in one["link_weight"] if w == w]
            close(torch.tensor(known), top.values[: len(known)])
            before, after = (AFTER, BEFORE) if column else (BEFORE, AFTER)
            assert one["start"] == max(0, place - before)
            shown = [token for token in one["window"] if token >= 0]
            assert shown == list(ids[one["start"] : place + after + 1])
            for position, near in zip(one["link_position"], one["link_tokens"], strict=True):
                if position >= 0:
                    assert near[1] == ids[position]


def test_where_effects_are_not_measured_the_best_is_of_the_others(case):
    _, ids, reader, _, effects = case
    part = effects.clone()
    part[:, 9:] = torch.nan
    document = Document(number=3, source="here", windows=(ids,))
    best = reader.read(document, lowest={}, below=0, effects=[part]).best["effect"]
    close(best.value[:, 0], (-effects[:, :9]).max(-1).values)


def test_sampled_rows_are_those_of_the_smallest_hashes(case):
    _, ids, reader, read, _ = case
    every = hashes(5, 3, len(ids))
    expected = [n for n in range(1, len(ids)) if int(every[n]) < 2**61]
    ((found, table),) = read.sampled
    assert table.position[0].tolist() == expected
    assert found.tolist() == every[expected].tolist()
    assert 3 < len(expected) < len(ids) - 3
    assert table.value.shape == (len(reader.heads), len(expected))
    assert len({int(h) for h in hashes(0, 1, 999)} | {int(h) for h in hashes(0, 2, 999)}) == 1998


def test_what_the_places_do_not_allow_is_named_and_left_out(tmp_path):
    pytest.importorskip("transformers")
    encoder = regard.models.open(
        str(small_models.save_bert(tmp_path, small_models.tokenizer(TEXT)))
    )
    reader = Reader(encoder, seed=0)
    ids = encoder.read(TEXT).ids
    read = reader.read(Document(number=0, source="", windows=(ids,)), lowest={}, below=0)
    assert "toward" in reader.unmeasured
    assert "toward" not in read.clustered
    assert "moved" in read.clustered
