import pytest
import torch
from support.real import smollm2_file

import regard as library
from regard import models
from regard.cli.model import head_steps
from regard.gpt import load
from regard.gpt.config import HAS_READ

TEXT = "the cat sat on the cat"


def test_it_shows_tokens_heads_and_the_keys_of_the_last_token(regard, model):
    done = regard("explain", TEXT, "--model", model)
    assert done.status == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == f"{model.name}: 2 layers × 3 heads, context 23"
    _, tokenizer = load(model)
    tokens = tokenizer.tokens(tokenizer.encode(TEXT))
    assert f"{len(tokens)} tokens, token {len(tokens) - 1} marked" in lines
    shown = ["␣" if token == " " else token for token in tokens]
    assert "│".join(shown) + "│" in lines
    heads = lines[lines.index("What each head does on this text") + 2 :][:6]
    assert [line[:4].strip() for line in heads] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    last = tokens[-1].replace(" ", "␣")
    assert f"What token {len(tokens) - 1} {last} attends to, in the most informative heads" in lines
    assert all(len(line) <= 80 for line in lines[1:])


def test_it_names_the_head_that_adds_most_with_its_loss_measured(regard, model):
    done = regard("explain", TEXT, "--model", model)
    words = " ".join(done.out.split())
    opened = models.open(str(model))
    ids = torch.tensor(opened.read(TEXT).ids)
    logits = opened(ids)[-1].detach()
    found = library.lens.leading_head(opened, ids.tolist(), logits)
    first, second = logits.topk(2).indices.tolist()
    assert found.margin == pytest.approx(float(logits[first] - logits[second]), abs=1e-4)
    layer, head = found.part.place
    with library.intervene(opened) as change:
        change.ablate(layers=layer, heads=head)
        without = opened(ids)[-1].detach().double().log_softmax(-1)[first]
    loss = float(logits.double().log_softmax(-1)[first] - without)
    assert found.loss == pytest.approx(loss, abs=1e-5)
    says = "writes" if min(loss, found.part.value) >= 0.1 else "No single head decides"
    assert says in words
    assert f"head {layer}.{head}" in words.lower()
    verb = "falls" if loss > 0 else "rises"
    assert f"without it the log-probability {verb} by {abs(loss):.2f}, measured" in words


@pytest.mark.parametrize("view", ["moved", "toward"])
def test_a_view_is_shown_of_heads_and_of_one_head(regard, model, view):
    opened = models.open(str(model))
    seen = library.lens.views(opened, TEXT)
    row = seen.of(view, 1, head=2)[-1]
    shown = ["explain", TEXT, "--model", model, "--view", view]
    words = " ".join(regard(*shown).out.split())
    assert {"moved": "gets most from, in", "toward": "adds to the answer at"}[view] in words
    lines = regard(*shown, "--layer", 1, "--head", 2).out.splitlines()
    title = {"moved": "moved", "toward": "added"}[view]
    at = next(n for n, line in enumerate(lines) if line.startswith("key") and title in line)
    for line, key in zip(lines[at + 1 :], row.abs().topk(6).indices.tolist(), strict=False):
        cells = line.split()
        assert int(cells[0]) == key
        number = next(cell for cell in reversed(cells) if "." in cell)
        assert float(number) == pytest.approx(float(row[key]), abs=6e-5)


def test_a_view_of_an_earlier_query_is_of_what_comes_after_it(regard, model):
    opened = models.open(str(model))
    ids = torch.tensor(opened.read(TEXT).ids[:6])
    row = library.lens.views(opened, ids).of("toward", 0, head=1)[-1]
    place = ["--layer", 0, "--head", 1, "--query", 5, "--view", "toward"]
    done = regard("explain", TEXT, "--model", model, *place)
    assert f"{float(row.abs().max()):.4f}" in done.out


def test_without_the_sink_its_keys_are_masked(regard, model, monkeypatch):
    monkeypatch.setattr("regard.lens.sink_keys.RESTING", 0.05)  # so that this head rests
    opened = models.open(str(model))
    steps = head_steps(opened, opened.read(TEXT).ids, 1, 0, without_sink=True)
    whole = head_steps(opened, opened.read(TEXT).ids, 1, 0)
    lost = steps.weights.eq(0).all(0)
    assert whole.weights[-1, lost].sum() > 0.05
    kept = whole.weights[-1] * ~lost
    torch.testing.assert_close(steps.weights[-1], kept / kept.sum())
    place = ["--layer", 1, "--head", 0, "--view", "without"]
    done = regard("explain", TEXT, "--model", model, *place)
    assert f"{float(steps.weights[-1].max()):.4f}" in done.out


def test_a_view_that_does_not_exist_is_refused(regard, model):
    done = regard("explain", TEXT, "--model", model, "--view", "move")
    assert done.status == 2
    assert "--view is 'move': expected one of weight, moved, toward, without" in done.err


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.parametrize(("country", "capital"), [("France", "Paris"), ("Italy", "Rome")])
def test_a_real_models_capital_is_written_from_the_country(
    regard, country, capital, smollm2, monkeypatch
):
    monkeypatch.setattr(models, "open", lambda *_, **__: smollm2)  # it takes seconds
    done = regard("explain", f"The capital of {country} is", "--model", smollm2_file())
    assert f"Head 23.4 writes “␣{capital}” from “␣{country}”" in " ".join(done.out.split())


def test_the_figures_are_those_of_the_model(regard, model):
    done = regard("explain", TEXT, "--model", model, "--layer", 1, "--head", 2, "--query", 4)
    network, tokenizer = load(model)
    ids = torch.tensor(tokenizer.encode(TEXT))
    with torch.inference_mode():
        _, patterns = network.with_patterns(ids)
    top = patterns[1][2].topk(3)
    tokens = [token.replace(" ", "␣") for token in tokenizer.tokens(ids.tolist())]
    table = done.out[done.out.index("attends most to") :].splitlines()
    row = next(line for line in table if line.startswith(f"  4 {tokens[4]}"))
    for weight, key in zip(top.weights[4].tolist(), top.positions[4].tolist(), strict=True):
        assert f"{weight:.2f}" in row
        assert f"{key} {tokens[key]}" in row
    assert "step by step" in done.out
    assert f"weights (L={len(ids)}, S={len(ids)})" in done.out


def test_the_steps_of_a_head_are_those_the_model_takes(model):
    opened = models.open(model)
    ids = opened.read(TEXT).ids
    with torch.inference_mode():
        _, patterns = opened.module.with_patterns(torch.tensor(ids))
    for layer in range(2):
        for head in range(3):
            steps = head_steps(opened, ids, layer, head)
            assert steps.query.shape == steps.value.shape == (len(ids), 5)
            # the same float32 computation, in another order
            torch.testing.assert_close(steps.weights, patterns[layer][head].dense())


def test_the_values_are_the_heads_own(model):
    """The contexts of all heads, concatenated and projected, are what the layer gives out."""
    opened = models.open(model)
    ids = opened.read(TEXT).ids
    attention = opened.module.h[0].attn
    outputs = []
    hook = attention.register_forward_hook(lambda _, __, output: outputs.append(output))
    with torch.inference_mode():
        opened.module(torch.tensor(ids))
        hook.remove()
        contexts = [head_steps(opened, ids, 0, head).context for head in range(3)]
        projected = attention.c_proj(torch.cat(contexts, dim=-1))
    torch.testing.assert_close(projected, outputs[0])


def test_looking_at_a_head_leaves_no_hook_behind(model):
    opened = models.open(model)
    head_steps(opened, opened.read(TEXT).ids, 0, 0)
    assert all(not module._forward_hooks for module in opened.module.modules())


def test_without_a_text_an_example_is_explained_with_a_note(regard, model):
    done = regard("explain", "--model", model)
    assert done.status == 0
    assert "no text given: this is an example" in done.out


def test_the_text_may_come_from_a_file_or_from_standard_input(regard, model, tmp_path, monkeypatch):
    file = tmp_path / "a text.txt"
    file.write_bytes(TEXT.encode())
    direct = regard("explain", TEXT, "--model", model).out
    assert regard("explain", "--file", file, "--model", model).out == direct
    with file.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert regard("explain", "-", "--model", model).out == direct


def test_a_text_longer_than_the_context_is_cut_into_chunks_with_a_note(regard, letters):
    text = "the cat sat on the mat, the dog sat on the cat"
    first = regard("explain", text, "--model", letters)
    assert first.status == 0
    message = "the text has 46 tokens and the context 23: it is cut into 2 chunks"
    assert message in " ".join(first.out.split())
    assert "23 tokens, token 22 marked" in first.out
    assert "--chunk 0 of 0 … 1" in " ".join(first.out.split())
    second = regard("explain", text, "--model", letters, "--chunk", 1)
    alone = regard("explain", text[23:], "--model", letters)
    assert second.out.splitlines()[-20:] == alone.out.splitlines()[-20:]


def test_a_text_of_exactly_the_context_is_not_cut(regard, letters):
    done = regard("explain", "the cat sat on the mat,", "--model", letters)
    assert done.status == 0
    assert "chunk" not in done.out


HOSTILE = [
    "😀 👩‍👩‍👧 שלום عالم",
    "</script><img src=x>",
    "\n\n\t\r\n",
    " ",
    "x" * 60,
    "[red]a[/red]",
    "a",
]


@pytest.mark.parametrize(
    ("text", "one"),
    [
        *((text, ()) for text in HOSTILE),
        *((text, ("--layer", 0, "--head", 1)) for text in HOSTILE[::3]),
    ],
)
def test_any_text_can_be_explained(regard, model, text, one):
    done = regard("explain", text, "--model", model, *one)
    assert (done.status, done.err) == (0, "")


def test_a_single_token_is_explained(regard, letters):
    done = regard("explain", "t", "--model", letters)
    assert done.status == 0
    assert "A single token can only attend to itself." in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", 1), "--layer and --head go together"),
        (("--head", 1), "--layer and --head go together"),
        (("--layer", 2, "--head", 0), "there is no --layer 2: the model has layers 0 … 1"),
        (("--layer", -1, "--head", 0), "there is no --layer -1"),
        (("--layer", 0, "--head", 3), "there is no --head 3: a layer has heads 0 … 2"),
        (("--layer", 0, "--head", 1, "--sort", "score"), "for tables of heads, and --head shows"),
        (("--role", ""), "--role is ''; expected one of induction"),
        (("--query", 99), "there is no --query 99: this text has tokens 0 … "),
        (("--query", -1), "there is no --query -1"),
        (("--chunk", 1), "there is no --chunk 1: the text makes chunks 0 only"),
        (("--layer", "x", "--head", 0), "Invalid value for '--layer'"),
        (("--unknown",), "No such option"),
        (("more",), "unexpected extra argument"),
    ],
)
def test_an_index_out_of_range_is_refused_in_one_line(misused, model, arguments, message):
    assert message in misused("explain", TEXT, "--model", model, *arguments)


def test_an_unknown_character_is_named(misused, letters):
    assert "'?' (U+003F)" in misused("explain", "the cat?", "--model", letters)


def test_one_layer_and_one_head_are_called_so(regard, letters):
    done = regard("explain", "the cat", "--model", letters)
    assert done.out.startswith(f"{letters.name}: 1 layer × 1 head, context 23\n")


def test_the_library_explains_what_the_command_prints(model):
    opened = models.open(model)
    steps = head_steps(opened, opened.read(TEXT).ids, 1, 0)
    again = library.explain(steps.query, steps.key, steps.value, mask=library.causal())
    assert torch.equal(steps.context, again.context)


@pytest.mark.parametrize("command", ["explain", "effects", "generate", "trace", "report"])
def test_help_says_what_the_shipped_model_has_read(regard, command):
    words = " ".join(regard(command, "--help").out.replace("│", " ").split())
    assert HAS_READ in words


@pytest.mark.parametrize("command", ["explain", "effects"])
def test_of_the_shipped_model_it_is_said_what_it_has_read_and_of_no_other(regard, model, command):
    said = " ".join(regard(command, TEXT).out.split())
    assert said.count(HAS_READ) == 1
    assert HAS_READ not in " ".join(regard(command, TEXT, "--model", model).out.split())
