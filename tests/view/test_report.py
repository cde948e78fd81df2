import io
import math
import re
from itertools import pairwise

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from support.heads import EACH, each_role, make_forward_pass, patterns_of

import regard
from regard.lens.naming.forward_pass import forward_pass
from regard.view.head_tables import head_table
from regard.view.listing import Listing
from regard.view.report import all_heads, one_head
from regard.view.summary import KEYS, QUERIES, STRIP, TokenStrip


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
    lines = printed(head_table(result), width=110).splitlines()
    rows = [line.split() for line in lines[1:10]]
    assert lines[0].split() == [
        "head", "role", "score", "queries", "resting", "previous", "first", "current",
        "induction", "duplicate", "spread", "distance",
    ]  # fmt: skip
    first = result.heads[0]
    estimate = [f"{first.score:.2f}", "±", f"{first.margin:.2f}", "21"]
    shares = [f"{first.resting:.2f}", f"{first.previous_token:.2f}"]
    assert rows[0][:9] == ["0.0", "previous", "token", *estimate, *shares]
    assert [row[0] for row in rows] == [f"{head.layer}.{head.head}" for head in result.heads]
    assert "(a uniform head)" in lines[10]


@pytest.mark.parametrize(("width", "shown"), [(20, 0), (40, 1), (60, 4), (80, 6), (110, 10)])
def test_a_narrow_terminal_drops_scores_with_a_note(result, width, shown):
    lines = printed(head_table(result), width=width).splitlines()
    shares = ["previous", "first", "current", "induction", "duplicate", "spread", "distance"]
    names = ["score", "queries", "resting", *shares]
    assert lines[0].split() == ["head", "role", *names[:shown]]
    assert [line[:4].strip() for line in lines[1:10]] == [
        f"{head.layer}.{head.head}" for head in result.heads
    ]
    roles = [line[5:].strip() for line in lines[1:10]]
    for head, role in zip(result.heads, roles, strict=True):
        whole = str(head.role)
        cut = width == 20 and len(whole) > 15  # cells left beside the head
        assert role.startswith(whole[:14] + "…" if cut else whole)
    note = f"… {10 - shown} more columns in a wider terminal"
    assert (note in " ".join(" ".join(lines[11:]).split())) == (shown < 10)
    assert max(map(cell_len, lines)) <= width


def test_columns_of_some_texts_and_models_alone_are_left_out_elsewhere():
    marked = make_forward_pass(list("ab.cd.ef.gh.ij.k"), [["first"]])
    header = printed(head_table(marked), width=120).splitlines()[0].split()
    assert "separator" in header
    assert "next" not in header


def listed(text):
    """The heads that have lines, in order."""
    return re.findall(r"^ *(\d+\.\d+) ", text, flags=re.MULTILINE)


@pytest.mark.parametrize("column", ["score", "queries", "previous", "induction", "distance"])
def test_heads_are_sorted_by_a_column_which_comes_first(result, column):
    text = printed(head_table(result, Listing.named(None, column)), width=60)
    assert text.split()[:3] == ["head", "role", column]
    fields = {"previous": "previous_token"}
    values = {
        f"{head.layer}.{head.head}": getattr(head, fields.get(column, column))
        for head in result.heads
    }
    shown = listed(text)
    assert sorted(shown) == sorted(values)
    numbers = [-math.inf if values[name] is None else values[name] for name in shown]
    assert numbers == sorted(numbers, reverse=True)


def test_heads_are_sorted_by_their_places():
    result = make_forward_pass(["a", "b"] * 9, [["first"] * 12])
    assert listed(printed(head_table(result, Listing.named(None, "head")))) == [
        f"0.{head}" for head in range(12)
    ]


def test_heads_of_one_role_are_listed_and_the_others_counted(result):
    text = printed(head_table(result, Listing.named("nearby", None)))
    own = [f"{head.layer}.{head.head}" for head in result.heads if head.role == "nearby tokens"]
    assert listed(text) == own
    left = len(result.heads) - len(own)
    assert f"… {left} more heads: 1 induction, 1 duplicate token, 1 previous token" in text
    none = printed(*all_heads(result, 9, listing=Listing.named("no choice", None)))
    assert "no head has the role: no choice" in none
    assert "attends to" not in none


def test_of_many_heads_some_have_lines_and_the_others_are_counted():
    kinds = ["previous", "first", "induction", "current", "uniform", "duplicate", "nearby"]
    result = make_forward_pass(EACH[0], [kinds] * 9)
    text = printed(head_table(result))
    assert len(listed(text)) == 12
    left = text[text.index("… 51 more heads: ") :]
    assert sum(int(number) for number in re.findall(r"(\d+) [a-z]", left)[1:]) == 51
    first = printed(head_table(result, Listing.named("first", "score")))
    assert len(listed(first)) == sum(head.role == "first token" for head in result.heads) == 9
    assert max(map(cell_len, (text + first).splitlines())) <= 80


@pytest.mark.parametrize(("role", "column"), [("second", None), (None, "size"), ("", None)])
def test_other_roles_and_columns_are_refused(role, column):
    with pytest.raises(ValueError, match=r"expected one of .*(induction|score)"):
        Listing.named(role, column)


def test_without_repeats_their_scores_are_dashes():
    text = printed(head_table(make_forward_pass(list("abcdef"), [["first"]])), width=110)
    assert text.splitlines()[1].split()[-4:-2] == ["–", "–"]


def found(tokens, kinds, query=0):
    result = make_forward_pass(tokens, kinds)
    return " ".join(printed(*all_heads(result, query)).split("\n\n")[0].split()), result


def test_the_first_sentences_say_what_was_found(result):
    words = " ".join(printed(*all_heads(result, 9)).split("\n\n")[0].split())
    token, probability = result.predictions[9][0]
    expected = f"“{token.replace(' ', '␣')}” ({probability:.2f})"
    assert words.startswith(f"After “␣sat” the model expects {expected}.")
    assert "What its 9 heads do on this text: 1 induction, 1 duplicate token, 1 previous" in words
    head = result.heads.at(1, 1)
    meaning = "where its token stood before, it looks at what came next"
    assert words.endswith(f"Head 1.1: {meaning} (induction, {head.evidence}).")


def test_of_a_short_text_they_say_that_it_is_too_short():
    words, _ = found(list("abcdef"), [["first", "previous"]])
    assert words.endswith(
        "The text is too short to tell what its 2 heads do; a longer one would, or one that "
        "repeats itself."
    )
    words, result = found([*"abcdefg", *"abc"], [["induction", "first"]])
    assert [str(head.role) for head in result.heads] == ["text too short to tell", "first token"]
    assert "What its 2 heads do on this text: 1 first token; for 1 it is too short to tell" in words
    assert "Head 0.1: it rests on the first token (first token, " in words


def test_they_say_on_which_key_the_head_rests_that_they_name():
    tokens = [*"abcdefghijklmn"]
    scores = torch.zeros(14, 14)
    scores[torch.arange(1, 14), torch.arange(13)] = 9.0
    scores[:, 3] = 12.0
    pattern = regard.Pattern(scores[None], torch.eye(14)[None], mask=regard.causal(), scale=1.0)
    result = forward_pass(
        torch.arange(14), [pattern], torch.zeros(14, 14), name=lambda ids: [tokens[i] for i in ids]
    )
    words = " ".join(printed(*all_heads(result, 9)).split("\n\n")[0].split())
    assert "it looks at the token before (rests " in words
    assert words.endswith("It rests on “d”.")


def test_the_report_on_all_heads(result):
    text = printed(*all_heads(result, 9))
    assert "22 tokens, token 9 marked" in text
    assert "the│ cat│ sat│" in text
    token, probability = result.predictions[9][0]
    assert f"after 9 ␣sat  →  {token.replace(' ', '␣')} {probability:.2f}" in text
    assert "What token 9 ␣sat attends to, in the most informative heads" in text
    assert "layer 1 head 1" in text
    weight, key = patterns_of(*EACH)[1][1].dense()[9].max(dim=-1)
    assert f"{int(key):>3} ␣on" in text
    assert f"{float(weight):.2f}" in text
    assert f"{9 + 1 - KEYS} others" in text


def test_the_report_on_one_head(result):
    head = result.heads.at(1, 1)
    steps = steps_of(22)
    text = printed(*one_head(result, head, steps, 9))
    assert f"Layer 1 head 1: induction ({head.evidence})\nWhere its token stood before, it" in text
    top = steps.weights.topk(3)
    lines = text[text.index("attends most to") :].splitlines()
    row = next(line for line in lines if line.startswith("  9 ␣sat"))
    for weight, key in zip(top.values[9].tolist(), top.indices[9].tolist(), strict=True):
        assert f"{weight:.2f}" in row
        assert f"{key} {result.tokens[key].replace(' ', '␣')}" in row
    assert "weights (L=22, S=22)  softmax of each row" in text


def test_steps_are_shown_whole_or_named(result):
    text = printed(*one_head(result, result.heads.at(1, 1), steps_of(22), 9))
    assert "more column" not in text[text.index("Every step") :]
    assert "more row" not in text[text.index("Every step") :]
    assert "shade" not in text
    short = make_forward_pass(list("abcde"), [["first"]])
    text = printed(*one_head(short, short.heads[0], steps_of(5), 4))
    assert "Layer 0 head 0: text too short to tell (first token? 1.00 over 4 queries)\n" in text
    tables = text[text.index("Every step") :]
    assert "weights (L=5, S=5)" in tables
    assert "shade" in tables


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
