import io
from itertools import pairwise

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from support.heads import each_role, make_forward_pass

import regard
from regard.view.report import all_heads, one_head
from regard.view.summary import KEYS, QUERIES, STRIP, TokenStrip, head_table


@pytest.fixture
def result():
    return each_role()


def printed(*renderables, width=80):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


def steps_of(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, length, 5, generator=generator)
    return regard.explain(*x, mask=regard.causal())


def test_each_head_has_a_line_with_its_role_and_scores(result):
    lines = printed(head_table(result), width=100).splitlines()
    rows = [line.split() for line in lines[1:10]]
    assert lines[0].split() == [
        "head", "role", "score", "queries", "previous", "first", "current", "induction",
        "duplicate", "spread", "distance",
    ]  # fmt: skip
    first = result.heads[0]
    estimate = [f"{first.score:.2f}", "±", f"{first.margin:.2f}", "21"]
    assert rows[0][:8] == ["0.0", "previous", "token", *estimate, f"{first.previous_token:.2f}"]
    assert [row[0] for row in rows] == [f"{head.layer}.{head.head}" for head in result.heads]
    assert "(a uniform head)" in lines[10]
    words = " ".join(" ".join(lines[11:]).split())
    assert "what followed earlier copies of the token (over 14 queries of 22)" in words
    assert "duplicate: on the copies (over 13 queries)" in words


@pytest.mark.parametrize(("width", "shown"), [(20, 0), (40, 1), (60, 4), (80, 6), (100, 9)])
def test_a_narrow_terminal_drops_scores_with_a_note(result, width, shown):
    lines = printed(head_table(result), width=width).splitlines()
    shares = ["previous", "first", "current", "induction", "duplicate", "spread", "distance"]
    names = ["score", "queries", *shares]
    assert lines[0].split() == ["head", "role", *names[:shown]]
    assert [line[:4].strip() for line in lines[1:10]] == [
        f"{head.layer}.{head.head}" for head in result.heads
    ]
    roles = [line[5:].strip() for line in lines[1:10]]
    for head, role in zip(result.heads, roles, strict=True):
        whole = str(head.role)
        cut = width == 20 and len(whole) > 15  # cells left beside the head
        assert role.startswith(whole[:14] + "…" if cut else whole)
    note = f"… {9 - shown} more columns in a wider terminal"
    assert (note in " ".join(" ".join(lines[11:]).split())) == (shown < 9)
    assert max(map(cell_len, lines)) <= width


def test_without_repeats_their_scores_are_dashes_with_a_note():
    text = printed(head_table(make_forward_pass(list("abcdef"), [["first"]])), width=100)
    assert text.splitlines()[1].split()[-4:-2] == ["–", "–"]
    words = " ".join(text.split())
    assert (
        "what followed earlier copies of the token (of no query), duplicate: on the copies (of"
        in words
    )


def test_too_few_repeats_are_counted_and_called_too_few():
    result = make_forward_pass([*"abcdefg", *"abc"], [["induction"]])
    assert result.heads[0].role.value != "induction"
    words = " ".join(printed(head_table(result)).split())
    assert "(over 3 queries of 10, too few to tell)" in words
    assert "duplicate: on the copies (over 2 queries, too few to tell)" in words


def test_the_report_on_all_heads(result):
    text = printed(*all_heads(result, 9))
    assert "22 tokens, token 9 marked" in text
    assert "the│ cat│ sat│" in text
    token, probability = result.predictions[9][0]
    assert f"after 9 ␣sat  →  {token.replace(' ', '␣')} {probability:.2f}" in text
    assert "What token 9 ␣sat attends to, in the most informative heads" in text
    assert "layer 1 head 1" in text
    best = result.pattern(result.heads.at(1, 1)).topk(1)
    assert f"{int(best.positions[9, 0]):>3} ␣on" in text
    assert f"{float(best.weights[9, 0]):.2f}" in text
    assert f"{9 + 1 - KEYS} others" in text


def test_the_report_on_one_head(result):
    head = result.heads.at(1, 1)
    steps = steps_of(22)
    text = printed(*one_head(result, head, steps, 9))
    assert "Layer 1 head 1: induction" in text
    top = result.pattern(head).topk(3)
    lines = text[text.index("attends most to") :].splitlines()
    row = next(line for line in lines if line.startswith("  9 ␣sat"))
    for weight, key in zip(top.weights[9].tolist(), top.positions[9].tolist(), strict=True):
        assert f"{weight:.2f}" in row
        assert f"{key} {result.tokens[key].replace(' ', '␣')}" in row
    assert "weights (L=22, S=22)" in text


def test_the_walk_goes_from_score_to_weight(result):
    steps = steps_of(22)
    text = printed(*one_head(result, result.heads.at(0, 0), steps, 9))
    lines = text[text.index("step by step") :].splitlines()
    assert lines[1].split() == ["key", "query", "·", "key", "×", f"{5**-0.5:.3g}", "softmax"]
    key = int(steps.weights[9].argmax())
    assert lines[2].split()[:5] == [
        str(key),
        result.tokens[key].replace(" ", "␣"),
        f"{steps.scores[9, key]:.2f}",
        f"{steps.scaled[9, key]:.2f}",
        f"{steps.weights[9, key]:.4f}",
    ]
    shown = [float(line.split()[4]) for line in lines[2 : 2 + KEYS]]
    rest = float(lines[2 + KEYS].split()[-1])
    assert sum(shown) + rest == pytest.approx(1, abs=5e-4)  # eight figures of four decimals


def test_long_texts_are_cut_around_the_query_with_a_note():
    tokens = [f"t{i}" for i in range(150)]
    strip = printed(TokenStrip(tokens, 75))
    assert "t0│" in strip
    assert "t75│" in strip
    assert "t149" not in strip
    shown = [token for token in tokens if f"{token}│" in strip]
    assert len(shown) == STRIP
    words = strip.split()
    gaps = [int(after) for word, after in pairwise(words) if word == "…" and after.isdigit()]
    assert sum(gaps) == 150 - STRIP

    result = make_forward_pass(tokens, [["previous"]])
    text = printed(*one_head(result, result.heads.at(0, 0), steps_of(150), 75))
    table = text[text.index("attends most to") : text.index("step by step")].splitlines()[1:-1]
    rows = [line for line in table if line.strip()]
    assert sum("more" not in line for line in rows) == QUERIES
    assert sum(int(line.split()[1]) for line in table if "more" in line) == 150 - QUERIES


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    tokens = ["漢字仮名交じり文", "😀" * 9, "[red]x", "\n", " ", "", "x" * 60, "\x1b[31m"] * 3
    result = make_forward_pass(tokens, [["previous", "induction"], ["uniform", "duplicate"]])
    renderables = [
        *all_heads(result, 23),
        *one_head(result, result.heads.at(0, 1), steps_of(24), 23),
    ]
    text = printed(*renderables, width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "[red]x" in text


def test_a_single_token():
    result = make_forward_pass(["a"], [["first", "uniform"]])
    text = printed(*all_heads(result, 0), *one_head(result, result.heads.at(0, 1), steps_of(1), 0))
    assert "1 token, token 0 marked" in text
    assert "A single token can only attend to itself." in text
    assert "others" not in text
