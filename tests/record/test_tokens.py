"""Names of the positions: strings, or those that a tokenizer has for the ids."""

from types import SimpleNamespace

import pytest
import torch
from support.caches import PROMPT, STEPWISE, T, grown, sequence
from support.recordings import WORDS, Attend, B, D, H, L, Model, two_layers, unchecked
from torch import nn

import regard
from regard.record import read_while_running


def test_tokens_as_strings():
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


def read_maxima(model, **options):
    return read_while_running(model, regard.readouts.Max(), **options)


@pytest.mark.parametrize("names", [PROMPT, T + 1])
@pytest.mark.parametrize("observe", [regard.record, read_maxima])
def test_names_that_do_not_fit_a_generation_leave_it_whole(observe, names):
    """Those of the prompt alone, or also of the last token, which no query is made of."""
    layer, (query, key) = Attend(), sequence()
    match = rf"of \[{names}\] positions, but .* of {T}, so that positions have no names; give a tok"
    with (
        pytest.warns(RuntimeWarning, match=match),
        observe(layer, tokens=[f"<{i}>" for i in range(names)]) as recording,
    ):
        grown(layer, query, key, STEPWISE)
    assert recording.tokens is None
    assert list(recording.layers[0].rows) == list(range(T))


def test_names_that_do_not_fit_a_generation_without_a_cache():
    layer, (query, key) = Attend(), sequence()

    def read_anew():
        for stop in range(5, 8):
            layer(query[..., :stop, :], key[..., :stop, :], is_causal=True)

    with (
        pytest.warns(RuntimeWarning, match=r"of \[5\] positions, but .* of 6"),
        regard.record(layer, tokens=list("abcde")) as recording,
    ):
        read_anew()
    assert [pattern.shape[-1] for pattern in recording] == [5, 6, 7]
    assert recording.tokens is None


def test_names_that_did_not_fit_are_no_names():
    layer, (query, key) = Attend(), sequence()
    with (
        pytest.raises(ValueError, match="give one string a position"),
        regard.record(layer, tokens=["a", "b"]) as recording,
    ):
        layer(query, key)
    assert recording.tokens is None


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


@pytest.mark.parametrize("tokens", ["abc", [1], object()])
def test_tokens_are_checked_before_the_model_runs(tokens):
    ran = False
    with pytest.raises(TypeError, match="tokens must be"), unchecked(tokens=tokens):
        ran = True
    assert not ran
