import io
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import regard
from regard.view.terminal import COLUMNS, ROWS, as_text, label, step_tables


def steps_of(queries, keys, *, dim=3, value_dim=2, leading=(), groups=None, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    shared = leading if groups is None else (*leading[:-1], groups)
    return regard.explain(
        torch.randn(*leading, queries, dim, generator=generator),
        torch.randn(*shared, keys, dim, generator=generator),
        torch.randn(*shared, keys, value_dim, generator=generator),
        **options,
    )


def printed(steps, *, width=80, tokens=None, **options):
    console = Console(width=width, file=io.StringIO(), highlight=False, **options)
    for renderable in step_tables(steps, tokens):
        console.print(renderable)
    return console.file.getvalue()


def block(text, name):
    """The lines from a step's caption to the next empty line."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{name} ("))
    stop = next(i for i in range(start, len(lines)) if not lines[i].strip())
    return lines[start:stop]


def test_every_step_has_its_name_shape_and_meaning():
    generator = torch.Generator().manual_seed(0)
    steps = steps_of(
        5, 5, mask=regard.causal(), softcap=3.0, alibi=torch.tensor(0.5), dropout=0.3,
        generator=generator,
    )  # fmt: skip
    text = printed(steps, width=200)
    for name, shape in {
        "query": "(L=5, D=3)",
        "key": "(S=5, D=3)",
        "value": "(S=5, Dv=2)",
        "scores": "(L=5, S=5)",
        "scaled": "(L=5, S=5)",
        "softcapped": "(L=5, S=5)",
        "biased": "(L=5, S=5)",
        "masked": "(L=5, S=5)",
        "weights": "(L=5, S=5)",
        "dropped": "(L=5, S=5)",
        "context": "(L=5, Dv=2)",
        "logsumexp": "(L=5)",
    }.items():
        assert f"{name} {shape}" in text
    words = " ".join(text.split())
    for step in steps:
        assert step.meaning.split()[0] in words


def test_figures_are_those_of_the_steps():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    text = printed(regard.explain(x, x, x, mask=regard.causal(), scale=1.0), width=30)
    assert [line.split() for line in block(text, "weights")[-2:]] == [
        ["0", "1.00", "0"],
        ["1", "0.27", "0.73"],
    ]
    assert [line.split() for line in block(text, "masked")[-2:]] == [
        ["0", "1.00", "−∞"],
        ["1", "0.00", "1.00"],
    ]


def test_a_hidden_weight_differs_from_a_small_and_from_a_dropped_one():
    steps = regard.explain(
        torch.tensor([[0.0], [20.0]]), torch.tensor([[1.0], [0.0]]), torch.zeros(2, 1),
        mask=regard.causal(), scale=1.0,
    )  # fmt: skip
    text = printed(steps, width=30)
    assert block(text, "weights")[-2].split() == ["0", "1.00", "0"]
    assert block(text, "weights")[-1].split() == ["1", "1.00", "0.00"]


@pytest.mark.parametrize(
    ("size", "note"), [(ROWS, None), (ROWS + 1, "1 more row"), (57, "45 more rows")]
)
def test_long_matrices_are_cut_at_the_stated_size_with_a_note(size, note):
    text = printed(steps_of(size, size))
    lines = block(text, "scores")
    if note is None:
        assert "more" not in text
    else:
        plural = "s" if size > COLUMNS + 1 else ""
        assert f"… {note}, {size - COLUMNS} more column{plural}" in lines[-1]
    figures = [line.split() for line in lines if line[:2].strip().isdigit()]
    assert len(figures) == ROWS


def test_of_several_heads_the_first_is_shown_with_a_note():
    steps = steps_of(5, 7, leading=(2, 6), groups=3)
    first = regard.explain(steps.query[0, 0], steps.key[0, 0], steps.value[0, 0])
    text = printed(steps, width=50)
    assert text.startswith("12 heads (2 × 6); shown: [0, 0]\n")
    assert "query (B=2, H=6, L=5, D=3)" in text
    assert "key (B=2, G=3, S=7, D=3)" in text
    for name in ("scores", "context"):
        shown, alone = block(text, name), block(printed(first, width=50), name)
        assert [line.split() for line in shown[-5:]] == [line.split() for line in alone[-5:]]


def test_several_heads_are_counted_and_a_single_one_is_not():
    assert printed(steps_of(5, 7, leading=(6,))).startswith("6 heads; shown: [0]\n")
    assert printed(steps_of(5, 7, leading=(1,))).startswith("query (1, L=5, D=3)")
    assert printed(steps_of(5, 7, leading=(1, 1))).startswith("query (B=1, H=1, L=5, D=3)")


def test_the_legend_covers_dropped_weights_which_may_exceed_one():
    steps = steps_of(3, 3, mask=regard.causal(), dropout=0.9)
    assert " 0.8  and above" in printed(steps)


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 17), st.integers(0, 17), st.integers(1, 15), st.integers(40, 140),
    st.sampled_from([1e-8, 1e-3, 1.0, 300.0, 1e7]), st.booleans(),
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(queries, keys, dim, width, size, labelled):
    queries = keys if labelled else queries
    steps = steps_of(queries, keys, dim=dim)
    steps = regard.explain(steps.query * size, steps.key, steps.value, mask=regard.causal())
    tokens = ["漢字仮名交じり文", "😀" * 9, "[red]x", "\n"] * 5 if labelled else None
    text = printed(steps, width=width, tokens=tokens[:keys] if tokens else None)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "empty" in text or (queries and keys)


def test_tables_stand_side_by_side_on_80_columns():
    text = printed(steps_of(6, 6, dim=2, mask=regard.causal()))
    lines = text.splitlines()
    assert any(line.split("(")[0].strip() == "query" and "value (" in line for line in lines)
    assert any(line.startswith("masked (") and "weights (" in line for line in lines)


def test_tokens_label_queries_and_keys_and_are_never_taken_for_markup():
    tokens = ["[bold]x[/bold]", " is", "\x1b[31mred", "\n", "x" * 60]
    text = printed(steps_of(5, 5), tokens=tokens, width=120)
    assert "\x1b" not in text
    assert "0 [bold]x[/…" in text
    assert "1 ␣is" in text
    assert "3 ↵" in text


def test_tokens_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="4 tokens do not label 5 queries and 5 keys"):
        printed(steps_of(5, 5), tokens=["a"] * 4)
    with pytest.raises(ValueError, match="5 queries and 7 keys"):
        printed(steps_of(5, 7), tokens=["a"] * 5)


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "coloured"), [(io.StringIO, False), (Screen, True)])
def test_colours_are_for_terminals_only(monkeypatch, stream, coloured):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", stream())
    text = as_text(steps_of(5, 5, mask=regard.causal()))
    assert ("\x1b[" in text) is coloured
    assert sys.stdout.getvalue() == ""


def test_printing_steps_and_printing_them_with_rich_show_the_tables(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    steps = steps_of(3, 3)
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(steps)
    assert str(steps) == console.file.getvalue().rstrip("\n")
    assert "softmax of each row" in str(steps)


@given(st.integers(0, 10**6), st.text(), st.integers(3, 20))
def test_labels_keep_to_their_width(position, token, width):
    assert cell_len(label(position, token, width)) <= width


@pytest.mark.parametrize("shape", [(0, 2, 5, 7), (2, 0, 5, 7)])
def test_steps_of_no_head_are_names_and_shapes(shape):
    nothing = torch.zeros(shape)
    steps = regard.explain(nothing, nothing, nothing)
    assert str(steps).split() == repr(steps).split()
