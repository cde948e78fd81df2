"""The report's own answers, computed in a browser, are the server's within the error it tells."""

import contextlib
import functools
import re
from threading import Event

import pytest
import torch

import regard
from regard.page import RecordingSubject
from regard.page._report import report_html
from regard.page._windows import Window
from regard.page.file.bundle import script, static
from regard.record import Layer, Recording

H, L, D = 4, 37, 5
QUERY = 23


def recording(*patterns):
    layers = [
        Layer(
            name="",
            kind="self",
            index=index,
            heads=tuple(range(len(pattern))),
            rows=range(L),
            get_pattern=lambda pattern=pattern: pattern,
        )
        for index, pattern in enumerate(patterns)
    ]
    return Recording(lambda: layers)


@pytest.fixture(scope="module")
def odd():
    """Everything that a page can recompute, one kind a layer; one head sees its queries blind."""
    draw = torch.Generator().manual_seed(0)
    query, key = 3 * torch.randn(H, L, D, generator=draw), torch.randn(2, L, D, generator=draw)
    late = regard.masks.intervals(torch.full((L,), 3), torch.arange(L))
    return RecordingSubject(
        recording(
            regard.Pattern(query, key, mask=regard.causal(), softcap=5.0),
            regard.Pattern(query, key, mask=regard.causal() & regard.window(11)),
            regard.Pattern(query, key, mask=regard.causal(), alibi=torch.linspace(0.1, 0.4, H)),
            regard.Pattern(query, key, mask=late, sink=torch.linspace(-1, 2, H)),
        ),
        title="odd",
    )


@pytest.fixture(scope="module")
def answers(pages):
    """Ask a report's own module, without its page."""
    stack = contextlib.ExitStack()

    @functools.cache
    def ask(subject):
        page = stack.enter_context(pages(offline=True))
        elements = re.findall(
            r'<script type="(?:application/json|text/plain)".*', report_html(subject)
        )
        page.set_content("\n".join(elements))
        page.add_script_tag(content=script("offline/api.js"))

        def question(name, *given):
            return page.evaluate(
                """async ([name, given]) => {
                  const answer = await module_offline_api[name](...given);
                  const many = ArrayBuffer.isView(answer.values);
                  return many ? { ...answer, values: [...answer.values] } : answer;
                }""",
                [name, list(given)],
            )

        return question

    with stack:
        yield ask


@pytest.fixture(params=["odd", "model"])
def both(request, answers):
    subject = request.getfixturevalue(request.param)
    run = subject.run(subject.about()["runs"][0])
    ask = answers(subject)
    return run, ask, ask("fetchRun", run.id)["errors"]


# float32 of the server, beside the stated error
ROUNDING = 2e-6


def near(answer, expected, allowed):
    given = torch.tensor(answer["values"] if isinstance(answer, dict) else answer)
    expected = torch.as_tensor(expected, dtype=torch.float32).flatten()
    assert given.shape == expected.shape
    torch.testing.assert_close(given.float(), expected, rtol=1e-5, atol=allowed + ROUNDING)


PLACES = [(0, 0), (1, 1), ("last", "last"), (1, "mean"), ("mean", "mean")]


@pytest.mark.parametrize("place", PLACES)
def test_weights_and_readouts(both, place):
    run, ask, errors = both
    last = len(run.layers) - 1
    layer, head = (last if n == "last" else n for n in place)
    at, length, weight = (run.id, [layer, head]), len(run.tokens), errors["weight"]
    query = min(QUERY, length - 1)
    near(ask("row", *at, query), run.row(layer, head, query), weight)
    near(ask("column", *at, 4), run.column(layer, head, 4), weight)
    for queries, keys, block in (((0, length), (0, length), 1), ((3, length), (2, length - 1), 4)):
        answer = ask("map", *at, {"queries": queries, "keys": keys, "block": block}, "v")
        expected = run.map(layer, head, Window(queries, keys, block), Event())
        assert (answer["rows"], answer["columns"]) == expected.shape
        near(answer, expected, weight)
    entropy, distance, first, received = run.readouts(layer, head)
    given = torch.tensor(ask("readouts", *at, "v")["values"]).view(4, length)
    # A row's sums add up its errors, which are scores' errors times weights that sum to 1.
    near(given[0].tolist(), entropy, 2 * errors["score"] * (1 + float(entropy.max())))
    near(given[1].tolist(), distance, 2 * errors["score"] * length)
    near(given[2].tolist(), first, weight)
    near(given[3].tolist(), received, weight * length)
    cell = ask("cell", *at, query, 4)
    exact = run.cell(layer, head, query, 4)
    assert cell["weight"] == pytest.approx(exact["weight"], abs=weight + ROUNDING)
    assert cell["visible"] == exact["visible"]
    for name in ("score", "logsumexp"):
        assert cell[name] == pytest.approx(exact[name], abs=2 * errors["score"] + ROUNDING)


def test_thumbnails(both):
    run, ask, errors = both
    for size in (64, 16):
        answer = ask("thumbnails", run.id, 1, size)
        expected = run.thumbnails(1, size)
        assert (answer["heads"], answer["rows"], answer["columns"]) == expected.shape
        near(answer, expected, errors["weight"])


@pytest.mark.parametrize("fields", [{}, {"first": 2, "count": 3, "picked": 1}, {"first": 30}])
def test_steps(both, fields):
    run, ask, errors = both
    query = min(QUERY, len(run.tokens) - 1)
    layers = range(len(run.layers))
    for layer in layers:
        answer, exact = (
            ask("steps", run.id, [layer, 1], query, fields),
            run.steps(layer, 1, query, **fields),
        )
        assert answer.keys() == exact.keys()
        for name in ("steps", "sink", "count", "hidden"):
            assert answer[name] == exact[name]
        assert answer["rest"]["count"] == exact["rest"]["count"]
        assert answer["scale"] == pytest.approx(exact["scale"])
        near(answer["query"], exact["query"], errors["vector"])
        if exact["context"] is None:
            assert answer["context"] is None
        else:
            near(answer["context"], exact["context"], errors["context"])
        given, expected = (
            [*actual["keys"], *([actual["picked"]] if actual["picked"] else [])]
            for actual in (answer, exact)
        )
        assert [one["position"] for one in given] == [one["position"] for one in expected]
        for one, true in zip(given, expected, strict=True):
            assert one.keys() == true.keys()
            assert (one["rank"], one["visible"]) == (true["rank"], true["visible"])
            near(one["key"], true["key"], errors["vector"])
            assert one["weight"] == pytest.approx(true["weight"], abs=errors["weight"] + ROUNDING)
            assert one["score"] == pytest.approx(true["score"], abs=2 * errors["product"] + 1e-4)
            for step in exact["steps"]:
                assert one[step] == pytest.approx(true[step], abs=2 * errors["score"] + 1e-4)


def test_a_query_that_sees_nothing(odd, answers):
    ask = answers(odd)
    run = odd.run("0")
    assert ask("row", "0", [3, 0], 2)["values"] == [0] * L
    assert ask("cell", "0", [3, 0], 2, 1) == run.cell(3, 0, 2, 1) | {"logsumexp": 0}
    assert ask("steps", "0", [3, 0], 2)["count"] == 0


def test_what_is_not_in_it_is_refused_in_a_sentence(odd, answers):
    ask = answers(odd)
    for question in (("fetchRun", "7"), ("open", "a text"), ("append", "0", 1), ("generate", "0")):
        with pytest.raises(Exception, match="report"):
            ask(*question)


def test_they_answer_the_questions_of_the_servers_module():
    """Each stands in for it."""
    names = {
        path: set(
            re.findall(
                r"^export (?:async )?(?:const|function|class) (\w+)", static(path), re.MULTILINE
            )
        )
        for path in ("api.js", "offline/api.js", "live/api.js")
    }
    assert names["api.js"] == names["offline/api.js"] == names["live/api.js"]
