"""What a recording gives: patterns by number and name, readouts with labels, heads, rollout."""

import contextlib
import inspect
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.gpt import load
from regard.pattern.readouts import Readout
from regard.record import RecordError
from regard.record.repeats import Copies, Successors

B, H, L, D = 2, 3, 7, 5

unchecked = contextlib.contextmanager(inspect.unwrap(regard.record))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Attend(nn.Module):
    def forward(self, query, key, **options):
        return F.scaled_dot_product_attention(query, key, key, **options)


class Model(nn.Module):
    """Attends anew in each layer; called with ids, or with what each layer is to be handed."""

    def __init__(self, names=("first", "second")):
        super().__init__()
        for name in names:
            self.add_module(name, Attend())
        self.names = names

    def forward(self, input_ids=None, *, given=None, **options):
        for place, name in enumerate(self.names):
            if given is None:
                query, key = torch.randn(2, *input_ids.shape[:-1], H, input_ids.shape[-1], D)
            else:
                query, key = given[place]
            getattr(self, name)(query, key, **options)


def recorded(given, *, causal=True, **options):
    names = [f"layer{n}" for n in range(len(given))]
    model = Model(names)
    with regard.record(model, **options) as recording:
        model(given=given, is_causal=causal)
    return recording


def two_layers(**options):
    given = torch.randn(2, 2, B, H, L, D)
    return recorded(given, **options)


# Indexing


def test_patterns_by_number_and_name():
    recording = two_layers()
    assert len(recording) == 2
    assert [p.shape for p in recording] == [(B, H, L, L)] * 2
    assert recording[-1] is recording[1] is recording["layer1"]
    assert recording[0] is recording["layer0"]
    assert recording[0] is not recording[1]
    assert recording.attentions == (recording[0], recording[1]) == recording.patterns()
    weights = recording.attentions[1][1, 2, 3:5, :4]
    assert torch.equal(weights, recording.dense()[1][1, 2, 3:5, :4])


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (2, IndexError, "layer 2 is asked for, but 2 were recorded"),
        (-3, IndexError, "layer -3 is asked for"),
        ("layer9", KeyError, "no layer is named 'layer9'; there is 'layer0', 'layer1'"),
        (True, TypeError, "indexed by a layer's number or name, but got True"),
        (slice(2), TypeError, r"recording\[layer\]\[b, h, rows, columns\]"),
        ((0, 1), TypeError, "indexed by a layer's number or name"),
    ],
)
def test_indices_that_are_refused(index, kind, message):
    with pytest.raises(kind, match=message):
        inspect.unwrap(type(two_layers()).__getitem__)(two_layers(), index)


def test_a_name_that_attended_more_than_once():
    model = Model(("only",))
    with regard.record(model) as recording:
        for _ in range(2):
            model(given=torch.randn(1, 2, B, H, L, D), is_causal=True)
    with pytest.raises(KeyError, match="'only' attended 2 times"):
        recording["only"]
    assert recording[0] is not recording[1]


def mixed():
    """Self-attention, cross-attention and an encoder, in the order of their calls."""
    model = nn.Module()
    model.encoder = Model(("a", "b"))
    model.decoder = Model(("self_attn", "cross_attn"))
    with regard.record(model) as recording:
        model.forward = lambda: (
            model.encoder(given=torch.randn(2, 2, B, H, 5, D)),
            model.decoder(
                given=[
                    torch.randn(2, B, H, L, D),
                    (torch.randn(B, H, L, D), torch.randn(B, H, 5, D)),
                ]
            ),
        )
        model()
    return recording


def test_kinds():
    recording = mixed()
    assert recording.kinds == ("self", "cross", "encoder")
    assert [layer.kind for layer in recording.layers] == ["encoder", "encoder", "self", "cross"]
    assert len(recording) == 1
    assert recording[0].shape == (B, H, L, L)
    assert [p.shape[-2:] for p in recording.patterns("encoder")] == [(5, 5)] * 2
    assert [p.shape[-2:] for p in recording.patterns("cross")] == [(L, 5)]
    assert len(recording.patterns()) == 4
    assert [layer.name for layer in recording.of_kind("cross")] == ["decoder.cross_attn"]
    assert recording["encoder.a"].shape[-1] == 5
    assert recording.dense("encoder")[0].shape == (B, H, 5, 5)
    assert len(recording.dense()) == 1
    with pytest.raises(ValueError, match="kind='cross' was not recorded; there is 'self'"):
        two_layers().of_kind("cross")
    assert repr(recording) == "Recording(1 × self, 1 × cross, 2 × encoder)"


def test_without_self_attention_the_rest_is_numbered():
    model = Model(("crossattention",))
    with regard.record(model) as recording:
        model(given=torch.randn(1, 2, B, H, L, D))
    assert recording.kinds == ("cross",)
    assert recording[0].shape == (B, H, L, L)


def test_repr():
    assert repr(two_layers()) == "Recording(2 layers)"
    assert repr(recorded(torch.randn(1, 2, B, H, L, D))) == "Recording(1 layer)"


def test_dense_is_refused_above_a_size():
    recording = two_layers()
    size = 2 * B * H * L * L * 4
    assert len(recording.dense(limit=size)) == len(recording.dense(limit=None)) == 2
    with pytest.raises(ValueError, match="limit"):
        recording.dense(limit=size - 1)
    for pattern, weights in zip(recording, recording.dense(), strict=True):
        assert torch.equal(pattern.dense(), weights)


def test_free():
    recording = two_layers()
    recording.free()
    assert repr(recording) == "Recording(freed)"
    uses = [
        lambda: recording[0],
        lambda: recording["layer0"],
        lambda: len(recording),
        lambda: recording.layers,
        lambda: recording.attentions,
        lambda: recording.kinds,
        recording.dense,
        recording.heads,
        lambda: recording.read(regard.Entropy()),
        lambda: recording.rollout(query=-1),
    ]
    for use in uses:
        with pytest.raises(RecordError, match="this recording was freed"):
            use()


# Tokens


WORDS = ["a", "b", "c", "d", "e", "f", "g"]


def test_tokens_that_are_given():
    assert two_layers().tokens is None
    assert two_layers(tokens=WORDS).tokens == (tuple(WORDS),)
    batch = [WORDS, WORDS[::-1]]
    assert two_layers(tokens=batch).tokens == (tuple(WORDS), tuple(WORDS[::-1]))
    assert two_layers(tokens=tuple(WORDS)).source_tokens is None


@pytest.mark.parametrize(
    ("tokens", "kind", "message"),
    [
        (WORDS[:-1], ValueError, r"names 1 sequence\(s\) of \[6\] positions, but layer0.*2 of 7"),
        ([WORDS] * 3, ValueError, r"names 3 sequence\(s\) of \[7\] positions"),
        ([WORDS, WORDS[:-1]], ValueError, r"of \[6, 7\] positions"),
        ("abcdefg", TypeError, "tokens must be a list of strings.*but is 'abcdefg'"),
        ([], TypeError, r"tokens must be a list of strings.*but is \[\]"),
        ([1, 2, 3], TypeError, "tokens must be a list of strings"),
        ([WORDS, "x"], TypeError, "tokens must be a list of strings"),
        ([["a", 1]], TypeError, "tokens must be a list of strings"),
        (object(), TypeError, "object can't name ids: it has no convert_ids_to_tokens"),
    ],
)
def test_tokens_that_do_not_fit(tokens, kind, message):
    with pytest.raises(kind, match=message):
        two_layers(tokens=tokens)


class Slow:
    def convert_ids_to_tokens(self, ids):
        return [f"<{i}>" for i in ids]


class Fast:
    def id_to_token(self, i):
        return f"<{i}>"


class Own:
    def tokens(self, ids):
        return [f"<{i}>" for i in ids]


@pytest.mark.parametrize("tokenizer", [Slow(), Fast(), Own()])
@pytest.mark.parametrize("by_name", [False, True])
def test_tokenizers_name_the_ids_that_the_model_sees(tokenizer, by_name):
    model, ids = Model(), torch.randint(99, (B, L))
    with regard.record(model, tokens=tokenizer) as recording:
        model(input_ids=ids) if by_name else model(ids)
    assert recording.tokens == tuple(tuple(f"<{i}>" for i in row) for row in ids.tolist())


def test_ids_of_a_generation_are_put_together():
    layer, (query, key) = Attend(), torch.randn(2, 1, H, L, D)
    model = nn.Module()
    model.attn = layer
    model.forward = lambda input_ids, query, key, past_key_values, **options: layer(
        query, key, **options
    )
    with regard.record(model, tokens=Slow()) as recording:
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, L)):
            model(
                torch.arange(start, stop)[None],
                query[..., start:stop, :],
                key[..., :stop, :],
                past_key_values=SimpleNamespace(get_seq_length=lambda start=start: start),
                is_causal=start == 0,
            )
    assert recording.tokens == (tuple(f"<{i}>" for i in range(L)),)
    assert recording[0].shape == (1, H, L, L)


def test_a_tokenizer_needs_the_model():
    with (
        pytest.raises(ValueError, match=r"record\(model, tokens=tokenizer\)"),
        regard.record(tokens=Slow()),
    ):
        pass


def test_a_tokenizer_of_an_encoder_and_decoder():
    model = nn.Module()
    model.encoder, model.decoder = Model(("attn",)), Model(("attn",))
    model.config = SimpleNamespace(is_encoder_decoder=True)
    model.get_encoder = lambda: model.encoder
    model.forward = lambda input_ids, decoder_input_ids: (
        model.encoder(input_ids),
        model.decoder(decoder_input_ids),
    )
    with regard.record(model, tokens=Slow()) as recording:
        model(torch.tensor([[1, 2, 3]]), decoder_input_ids=torch.tensor([[4, 5]]))
    assert recording.tokens == (("<4>", "<5>"),)
    assert recording.source_tokens == (("<1>", "<2>", "<3>"),)


# Readouts


def test_readouts_of_all_layers():
    recording = two_layers()
    readings = recording.read(
        regard.Entropy(),
        regard.TopK(2),
        regard.Mass(0),
        regard.Mass([1, 2]),
        regard.Received(),
        regard.Offsets(3),
        regard.Image(4, 3),
        regard.Max(),
        regard.Distance(),
        progress=False,
    )
    axes = {
        "entropy": ("query",),
        "top_weights": ("query", "rank"),
        "top_positions": ("query", "rank"),
        "mass": ("query",),
        "mass_2": ("query",),
        "received": ("key",),
        "offsets": ("offset",),
        "image": ("row", "column"),
        "max": ("query",),
        "distance": ("query",),
    }
    assert list(readings) == list(axes)
    for name, own in axes.items():
        assert readings[name].name == name
        assert readings[name].axes == ("layer", "batch", "head", *own)
        assert readings[name].values.ndim == len(readings[name].axes)
    for layer in range(2):
        pattern = recording[layer]
        assert torch.equal(readings["entropy"].values[layer], pattern.entropy())
        assert torch.equal(readings["top_positions"].values[layer], pattern.topk(2).positions)
        assert torch.equal(readings["mass"].values[layer], pattern.mass(0))
        assert torch.equal(readings["mass_2"].values[layer], pattern.mass([1, 2]))
        assert torch.equal(readings["image"].values[layer], pattern.image(4, 3))
    with pytest.raises(KeyError, match=r"no readout is named 'entropie'; there is \['entropy'"):
        readings["entropie"]
    text = repr(readings["image"])
    assert text == f"Labelled(image: layer 2 × batch {B} × head {H} × row 4 × column 3)"
    assert text in repr(readings)


def test_labels_of_heads_rows_and_layers_that_were_kept():
    recording = recorded(torch.randn(4, 2, B, H, L, D), layers=[1, 3], heads=[2, 0], rows=[1, -1])
    reading = recording.read(regard.TopK(2))["top_weights"]
    frame = reading.frame()
    assert list(frame.columns) == ["layer", "batch", "head", "query", "rank", "top_weights"]
    assert len(frame) == reading.values.numel()
    assert sorted(frame["layer"].unique()) == [1, 3]
    assert list(frame["head"].unique()) == [2, 0]
    assert list(frame["query"].unique()) == [1, 6]
    for _, row in frame.iterrows():
        place = recording["layer" + str(int(row["layer"]))]
        head, query = [2, 0].index(row["head"]), [1, 6].index(row["query"])
        weights = place.topk(2).weights[int(row["batch"]), head, query]
        assert row["top_weights"] == float(weights[int(row["rank"])])


def test_layers_of_several_shapes():
    recording = recorded([torch.randn(2, B, H, L, D), torch.randn(2, B, H, 4, D)])
    reading = recording.read(regard.Entropy())["entropy"]
    with pytest.raises(ValueError, match=r"entropy differs in shape.*take parts or frame"):
        _ = reading.values
    assert [part.shape for part in reading.parts] == [(B, H, L), (B, H, 4)]
    assert len(reading.frame()) == B * H * (L + 4)


class LastKey(Readout):
    """A readout of one's own: the weight on the last key."""

    def begin(self, sizes):
        return sizes.zeros(sizes.queries)

    def add(self, state, block):
        if block.columns.stop == L:
            state[block.heads, block.rows] = block.weights[..., -1].double()

    def finish(self, state, sizes):
        return sizes.restore(state)


class Number(LastKey):
    def finish(self, state, sizes):
        return float(state.sum())


def test_readouts_of_ones_own():
    recording = two_layers(causal=False)
    reading = recording.read(LastKey())["last_key"]
    assert reading.axes == ("layer", "batch", "head", "axis_2")
    found, weights = reading.values[1], recording[1].dense()[..., -1]
    torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match="the readout number gives float, but only tensors"):
        recording.read(Number())
    with pytest.raises(TypeError, match="is no readout"):
        inspect.unwrap(type(recording).read)(recording, regard.Entropy)


def test_readouts_of_patterns_without_a_batch():
    with regard.record(heads=[2, 1]) as recording:
        F.scaled_dot_product_attention(*torch.randn(3, H, L, D))
    reading = recording.read(regard.Entropy())["entropy"]
    assert reading.axes == ("layer", "axis_0", "query")
    assert len(reading.frame()) == 2 * L


def test_readouts_of_one_kind():
    recording = mixed()
    assert recording.read(regard.Entropy(), kind="encoder")["entropy"].values.shape == (2, B, H, 5)
    assert recording.read(regard.Entropy())["entropy"].values.shape == (1, B, H, L)
    assert recording.read(regard.Received(), kind="cross")["received"].values.shape == (1, B, H, 5)


def test_progress_is_shown_on_stderr_and_only_if_asked_for(capsys, monkeypatch):
    recording = two_layers()
    recording.read(regard.Entropy())
    recording.read(regard.Entropy(), progress=False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    recording.read(regard.Entropy(), progress=True)
    recording.heads(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading layers" in err


# Heads


def by_definition(weights, names):
    """The scores of one head on one text, entry by entry."""
    length = len(weights)
    rows = range(1, length)

    def mean(numbers):
        numbers = list(numbers)
        return sum(numbers) / len(numbers) if numbers else None

    def repeats(after):
        shares = []
        for i in range(length):
            keys = [
                j for j in range(1, i - 1) if names is not None and names[j - after] == names[i]
            ]
            if keys:
                shares.append(sum(weights[i][j] for j in keys))
        return mean(shares)

    return {
        "previous_token": mean(weights[i][i - 1] for i in rows),
        "first_token": mean(weights[i][0] for i in rows),
        "current_token": mean(weights[i][i] for i in rows),
        "induction": repeats(1),
        "duplicate_token": repeats(0),
        "entropy": mean(-math.fsum(w * math.log(w) for w in weights[i] if w > 0) for i in rows),
        "distance": mean(math.fsum(w * abs(i - j) for j, w in enumerate(weights[i])) for i in rows),
    }


def averaged(scores):
    result = {}
    for name in scores[0]:
        given = [score[name] for score in scores if score[name] is not None]
        result[name] = sum(given) / len(given) if given else None
    return result


def agree(heads, expected):
    for found, wanted in zip(heads, expected, strict=True):
        for name, value in wanted.items():
            score = asdict(found)[name]
            assert (score is None) == (value is None), name
            assert value is None or score == pytest.approx(value, abs=2e-5), name


TEXTS = [list("abcabcdaabcdd"), list("abcdefghijklm")]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], None])
def test_scores_are_those_of_the_definition(causal, texts):
    length = len(TEXTS[0])
    given = 1.5 * torch.randn(2, 2, B, H, length, D)
    recording = recorded(given, causal=causal, **({} if texts is None else {"tokens": texts}))
    expected = []
    for weights in recording.dense():
        for head in range(H):
            names = [None] * B if texts is None else (texts * B)[:B]
            texts_scores = [
                by_definition(weights[b, head].double().tolist(), names[b]) for b in range(B)
            ]
            expected.append(averaged(texts_scores))
    heads = recording.heads()
    assert [(h.layer, h.head) for h in heads] == [(n, h) for n in range(2) for h in range(H)]
    agree(heads, expected)
    frame = heads.frame()
    assert list(frame.columns)[:3] == ["layer", "head", "role"]
    assert set(frame.columns) == set(asdict(heads[0]))
    assert len(frame) == len(heads) == 2 * H
    assert len(repr(heads).splitlines()) == 1 + 2 * H + (texts is not None)
    assert list(heads[1:3]) == [heads[1], heads[2]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_counts_nowhere(side, causal):
    length, pad = 9, 3
    names = [list("abcabcabc"), ["<pad>"] * pad + list("abcabc")]
    keep = torch.ones(B, length, dtype=torch.bool)
    keep[1, :pad] = False
    if side == "right":
        keep, names = keep.flip(1), [names[0], list("abcabc") + ["<pad>"] * pad]
    visible = keep[:, None, None].expand(B, 1, length, length)
    visible = visible & torch.ones(length, length, dtype=torch.bool).tril() if causal else visible
    query, key = 1.5 * torch.randn(2, B, H, length, D)
    with regard.record(tokens=names) as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=visible)
    part = slice(pad, None) if side == "left" else slice(None, -pad)
    weights = torch.softmax(
        (query.double() @ key.double().mT * D**-0.5).masked_fill(~visible, -math.inf), -1
    )
    expected = [
        averaged(
            [
                by_definition(weights[0, head].tolist(), names[0]),
                by_definition(weights[1, head, part, part].tolist(), names[1][part]),
            ]
        )
        for head in range(H)
    ]
    agree(recording.heads(), expected)


def test_heads_made_by_hand():
    """Keys that only the wanted query points at: each of these heads puts all its weight there."""
    names = list("abcdefgh" * 2)
    length, vocabulary = len(names), 8
    position, token = torch.eye(length), torch.eye(vocabulary)[torch.arange(length) % vocabulary]
    token = F.pad(token, (0, length - vocabulary))
    ones = torch.zeros(length, length)
    ones[:, 0] = 1

    def after(rows):  # what stood one position earlier
        return rows.roll(1, 0).index_fill(0, torch.tensor([0]), 0)

    pairs = [
        (position.roll(1, 1).roll(-2, 1), position, "previous token"),
        (ones, ones * (torch.arange(length) == 0)[:, None], "first token"),
        (position, position, "current token"),
        (token, after(token), "induction"),
        (torch.zeros(length, length), position, "spread evenly"),
    ]
    query = torch.stack([q for q, _, _ in pairs])[None]
    key = torch.stack([k for _, k, _ in pairs])[None]
    with regard.record(tokens=names) as recording:
        F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=50.0)
    heads = recording.heads()
    assert [head.role for head in heads] == [name for _, _, name in pairs]
    assert heads[0].previous_token == pytest.approx(1, abs=1e-4)
    assert heads[1].first_token == pytest.approx(1, abs=1e-4)
    assert heads[2].current_token == pytest.approx(1, abs=1e-4)
    assert heads[3].induction == pytest.approx(1, abs=1e-4)
    assert heads[4].entropy == pytest.approx(
        sum(math.log(n) for n in range(2, length + 1)) / (length - 1), abs=1e-4
    )
    assert heads[2].distance == pytest.approx(0, abs=1e-4)
    assert heads[0].distance == pytest.approx(1, abs=1e-4)


def test_heads_that_were_kept_keep_their_numbers():
    given = torch.randn(3, 2, B, H, L, D)
    full = recorded(given, tokens=WORDS).heads()
    part = recorded(given, tokens=WORDS, layers=[2], heads=[2, 0]).heads()
    assert [(h.layer, h.head) for h in part] == [(2, 2), (2, 0)]
    for head in part:
        other = next(h for h in full if (h.layer, h.head) == (head.layer, head.head))
        assert asdict(head) == pytest.approx(asdict(other), nan_ok=True)


def test_one_token_has_no_scores():
    heads = recorded(torch.randn(1, 2, 1, H, 1, D), tokens=["a"]).heads()
    assert [head.role for head in heads] == ["no choice"] * H
    assert heads[0].previous_token is None
    assert "–" in repr(heads)


def test_heads_of_patterns_that_are_no_whole_sequences():
    with pytest.raises(RecordError, match="record all rows, from the prompt on"):
        two_layers(rows=[1, 2]).heads()
    with regard.record() as recording:
        F.scaled_dot_product_attention(*torch.randn(3, L, D))
    with pytest.raises(RecordError, match="heads are scored over whole sequences"):
        recording.heads()


def test_heads_of_a_pattern_without_a_batch():
    with regard.record(tokens=WORDS) as recording:
        F.scaled_dot_product_attention(*torch.randn(3, H, L, D), is_causal=True)
    weights = recording[0].dense().double().tolist()
    agree(recording.heads(), [by_definition(head, WORDS) for head in weights])


ENGLISH = (
    "The import system finds a module and then runs it. When a name is not found in the "
    "local scope, the search goes on in the scope that encloses it. A class is an object "
    "that makes other objects, and a function that is defined inside a class becomes a method."
)


@pytest.fixture(scope="module")
def shipped():
    return load()


def test_the_shipped_model_looks_at_the_token_before_on_english(shipped):
    model, tokenizer = shipped
    ids = torch.tensor([tokenizer.encode(ENGLISH)])
    with torch.no_grad(), regard.record(model, tokens=tokenizer) as recording:
        model(ids)
    assert len(recording) == 4
    assert len(recording.tokens[0]) == ids.shape[-1]
    heads = recording.heads()
    head = next(h for h in heads if (h.layer, h.head) == (0, 2))
    assert head.role == "previous token"
    assert head.previous_token > 0.9
    assert head.previous_token == max(h.previous_token for h in heads)


def test_the_shipped_model_has_induction_heads(shipped):
    model, _ = shipped
    run = torch.randperm(model.config.vocab_size)[:60]
    ids = torch.cat([run, run])[None]
    with torch.no_grad(), regard.record(model, tokens=[str(i) for i in ids[0].tolist()]) as seen:
        model(ids)
    heads = seen.heads()
    found = {(h.layer, h.head) for h in heads if h.induction > 0.5}
    assert {(2, 0), (2, 3)} <= found <= {(1, 1), (1, 2), (2, 0), (2, 3)}
    assert {(h.layer, h.head) for h in heads if h.role == "induction"} >= found
    assert max(h.induction for h in heads if h.layer in {0, 3}) < 0.1
    induction = seen.read(Successors(ids[0]), Copies(ids[0]))
    assert induction["successors"].axes == ("layer", "batch", "head", "query")
    # the second copy's queries, the last of the first copy before them
    second = induction["successors"].values[2, 0, 0, 61:].mean()
    assert float(second) > 0.6


# Rollout


def product(patterns, residual):
    """Abnar and Zuidema's recursion with matrices."""
    result = None
    for pattern in patterns:
        weights = pattern.dense().double().mean(1)
        mixed = residual * torch.eye(weights.shape[-1]) + (1 - residual) * weights
        result = mixed if result is None else mixed @ result
    return result


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("residual", [0.0, 0.5, 0.3, 1.0])
def test_rollout_is_the_product_of_the_layers(causal, residual):
    recording = recorded(torch.randn(3, 2, B, H, L, D), causal=causal)
    exact = product(recording.attentions, residual)
    for place in (0, 3, L - 1, -1, -L):
        row = recording.rollout(query=place, residual=residual)
        column = recording.rollout(source=place, residual=residual)
        torch.testing.assert_close(row.double(), exact[:, place], rtol=0, atol=1e-6)
        torch.testing.assert_close(column.double(), exact[:, :, place], rtol=0, atol=1e-6)
        torch.testing.assert_close(row.sum(-1), torch.ones(B))


def test_rollout_takes_half_by_default_and_a_position_first():
    recording = two_layers()
    exact = product(recording.attentions, 0.5)
    torch.testing.assert_close(recording.rollout(4).double(), exact[:, 4], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, "give query=, a target, or source="),
        ({"query": 1, "source": 2}, ValueError, "got query=1, source=2"),
        ({"query": L}, IndexError, "query=7 is out of range: there are 7 positions"),
        ({"source": -L - 1}, IndexError, "source=-8 is out of range"),
        ({"query": 1.0}, TypeError, "query must be an integer, but is 1.0"),
        ({"source": True}, TypeError, "source must be an integer, but is True"),
        ({"query": 0, "residual": 1.1}, ValueError, r"residual must lie in \[0, 1\], but is 1.1"),
        ({"query": 0, "residual": -0.1}, ValueError, r"residual must lie in \[0, 1\]"),
        ({"query": 0, "residual": math.nan}, ValueError, r"residual must lie in \[0, 1\]"),
        ({"query": 0, "residual": "half"}, TypeError, "residual must be a number, but is 'half'"),
        ({"query": 0, "residual": True}, TypeError, "residual must be a number, but is True"),
    ],
)
def test_rollouts_that_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        inspect.unwrap(regard.Recording.rollout)(two_layers(), **options)


@pytest.mark.parametrize(
    "recording",
    [
        lambda: two_layers(rows=[0]),
        lambda: recorded([torch.randn(2, B, H, L, D), torch.randn(2, B, H, 4, D)]),
        lambda: recorded([torch.randn(2, H, L, D)]),
        lambda: recorded([torch.randn(2, B, H, L, D), torch.randn(2, 1, H, L, D)]),
    ],
)
def test_rollout_needs_square_layers_over_the_same_positions(recording):
    with pytest.raises(ValueError, match=r"rollout needs layers of \(B, H, L, L\)"):
        recording().rollout(query=-1)


def test_rollout_of_no_layer():
    with pytest.raises(ValueError, match="there is no layer"):
        two_layers(layers=[9]).rollout(query=0)


@pytest.mark.parametrize("tokens", ["abc", [1], object()])
def test_tokens_are_checked_before_the_model_runs(tokens):
    ran = False
    with pytest.raises(TypeError, match="tokens must be"), unchecked(tokens=tokens):
        ran = True
    assert not ran
