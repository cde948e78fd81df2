"""`regard effects`: what a prediction rests on, in the terminal."""

import math
import re
from dataclasses import replace

import pytest
import torch

import regard as library
from regard.gpt import GPT, load, save
from regard.lens.naming.roles import Role

TEXT = "the cat sat on the mat, the dog sat on the cat"


@pytest.fixture(scope="module")
def needy(model, tmp_path_factory):
    """Folder of the model with such weights that each head is needed."""
    folder = tmp_path_factory.mktemp("needy")
    network, tokenizer = load(model)
    torch.manual_seed(0)
    save(folder, GPT(replace(network.config, initial_std=0.5)), tokenizer)
    return folder


def test_heads_and_tokens_stand_beside_their_weights(regard, needy):
    done = regard("effects", TEXT, "--model", needy)
    assert (done.status, done.err) == (0, "")
    network, tokenizer = load(needy)
    ids = torch.tensor(tokenizer.encode(TEXT))[-network.config.context :]
    with torch.no_grad():
        logits, patterns = network.with_patterns(ids)
    target = int(logits[-1].argmax())
    heads = library.lens.effects(network, ids, library.lens.LogProbability(target))
    assert len(re.findall(r"^ [01]\.[012] ", done.out, flags=re.MULTILINE)) == 6
    bars = []
    for effect in heads.largest(6):
        layer, head = effect.place
        row = next(line for line in done.out.splitlines() if line.startswith(f" {layer}.{head} "))
        assert f"{effect.value:+.2f}".replace("-", "−") in row
        bars.append(row.count("█"))
        weight, key = patterns[layer][head, -1].max(dim=-1)
        assert f"{float(weight):.2f} {int(key)} " in row
    assert heads.largest(1)[0].value < 0
    assert bars == sorted(bars, reverse=True)  # by size, whatever the sign
    assert bars[0] > 3
    assert "The tokens that" in done.out
    words = " ".join(done.out.split())
    least = min(heads.largest(6), key=lambda effect: effect.value)
    before, after = heads.unchanged, heads.unchanged + least.value
    (name,) = tokenizer.tokens([target])
    falls = f"probability of “{name.replace(' ', '␣')}” falls from {math.exp(before):.2f} to"
    assert f"Without head {least.place[0]}.{least.place[1]} the {falls}" in words
    assert after < before
    keys = library.lens.effects(network, ids, library.lens.LogProbability(target), over="keys")
    token = int(keys.values.argmin())
    assert f"Without token {token} " in words
    assert "is looked at most" in words or "it is also looked at most" in words


def test_heads_can_be_listed_in_another_order_or_of_one_role(regard, model):
    def listed(*options):
        text = regard("effects", TEXT, "--model", model, "--over", "heads", *options).out
        return re.findall(r"^ ([01]\.[012]) ", text, flags=re.MULTILINE), text

    places = [f"{layer}.{head}" for layer in range(2) for head in range(3)]
    assert listed("--sort", "head")[0] == places
    found = [listed("--role", role) for role in Role if role is not Role.INDUCTION]
    shown = [place for names, _ in found for place in names]
    assert sorted(shown) == places
    assert not all(names for names, _ in found)
    for names, text in found:
        assert f"… {6 - len(names)} more, each " in text or len(names) in (0, 6)
        assert bool(names) != ("no head has the role" in text)


def test_nothing_is_called_needed_for_rounding(regard, model):
    """In this untrained model no effect is as large as 0.005."""
    network, tokenizer = load(model)
    ids = torch.tensor(tokenizer.encode(TEXT))[-network.config.context :]
    target = int(network(ids)[-1].argmax())
    for over in ("heads", "keys"):
        effects = library.lens.effects(network, ids, library.lens.LogProbability(target), over=over)
        assert float(effects.values.abs().max()) < 0.005
    words = " ".join(regard("effects", TEXT, "--model", model).out.split())
    assert "No head by itself is needed for the probability of “" in words
    assert "is looked at most, but nothing in this text is needed for it." in words
    assert words.count("rests on none: each below 0.005") == 2
    assert "Without" not in words


def test_only_one_of_both_is_measured(regard, model):
    heads = regard("effects", TEXT, "--model", model, "--over", "heads").out
    assert "The heads that" in heads
    assert "The tokens that" not in heads
    keys = regard("effects", TEXT, "--model", model, "--over", "keys").out
    assert "The heads that" not in keys
    words = " ".join(keys.split())
    assert re.search(r"Without token \d+ \S+ the probability of “\S+” falls from|is needed", words)


def test_a_target_is_one_token_of_the_tokenizer(regard, misused, model, letters):
    out = regard("effects", TEXT[:9], "--model", letters, "--target", "t").out
    assert "The heads that t (" in out
    line = misused("effects", TEXT, "--model", letters, "--target", "th")
    assert "--target 'th' must be one token, but is 2: 't', 'h'" in line
    argument = b"\xe9".decode(errors="surrogateescape")
    line = misused("effects", TEXT, "--model", letters, "--target", argument)
    assert "--target is not UTF-8 text" in line
    assert "'?' (U+003F)" in misused("effects", TEXT, "--model", letters, "--target", "?")


def test_of_a_long_text_the_end_is_taken(regard, letters):
    out = regard("effects", TEXT, "--model", letters).out
    assert f"the text has {len(TEXT)} tokens: its last 23 are the model's context" in " ".join(
        out.split()
    )


@pytest.mark.parametrize("width", [60, 44, 32])
def test_numbers_are_whole_at_any_width(regard, needy, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = regard("effects", TEXT, "--model", needy).out
    rows = [line for line in out.splitlines() if re.match(r" [01]\.[012] ", line)]
    assert len(rows) == 6
    assert all(re.match(r" \d\.\d +[+−]\d\.\d\d .* (\d\.\d\d|\de-\d\d)", row) for row in rows)
    assert max(map(len, out.splitlines())) <= width
    assert ("in a wider terminal" in " ".join(out.split())) == (width < 56)


def test_long_texts_are_hidden_in_blocks(regard):
    out = regard("effects", "The with statement. " * 40, "--over", "keys").out
    assert re.search(r"^\d+–\d+ \S+", out, flags=re.MULTILINE)


def test_without_a_text_there_is_an_example(regard):
    out = regard("effects").out
    assert "no text given: this is an example" in out


def test_a_single_token_has_no_later_one(regard, letters):
    done = regard("effects", "t", "--model", letters)
    assert done.status == 0
    words = " ".join(done.out.split())
    assert "A single token has no later one to be hidden from." in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--over", "values"), "--over is 'values': expected one of heads, keys, both"),
        (("--role", "second"), "--role is 'second'; expected one of induction, duplicate token"),
        (("--sort", "size"), "--sort is 'size'; expected one of head, score, queries, resting"),
        (("--over", "keys", "--sort", "score"), "are for heads, and --over is keys"),
        (("--unknown",), "No such option"),
        (("more",), "unexpected extra argument"),
    ],
)
def test_misuse_is_refused_in_one_line(misused, model, arguments, message):
    assert message in misused("effects", TEXT, "--model", model, *arguments)


@pytest.mark.parametrize("text", ["😀 👩‍👩‍👧 שלום עالم", "\n\n\t\r\n", " ", "[red]a[/red]"])
def test_any_text_has_effects(regard, model, text):
    done = regard("effects", text, "--model", model)
    assert (done.status, done.err) == (0, "")
