"""A widget begins with the page's numbers, and computes what the page says and attention is."""

import html
import json
import re

import pytest
import torch
from regard_site.markup import render
from regard_site.sources import ROOT
from regard_site.widgets import printed

import regard

# A number printed with four decimals is off by half of one; what follows from such numbers by two
# such errors for each of a few products.
EXACT, FROM_PRINTED = 5.1e-5, 3e-4


def markdown(name):
    return next((ROOT / "docs").glob(f"{name}-*.md")).read_text("utf-8")


@pytest.fixture(scope="module")
def settings(site):
    """What the widget of a page begins with."""

    def of(name):
        page = next(site.glob(f"{name}-*.html")).read_text("utf-8")
        (data,) = re.findall(r'data-widget="([^"]+)"', page)
        return json.loads(html.unescape(data))

    return of


@pytest.fixture(scope="module")
def steps(node, settings):
    """What the widgets of the ladder compute, before anyone changes them."""
    names = ["01", "02", "03", "04", "05", "06"]
    computed = node(
        'import { begin, compute } from "./widget/state.js";',
        "return given.map((one) => compute(one, begin(one)));",
        [settings(name) for name in names],
    )
    return dict(zip(names, computed, strict=True))


AVERAGES = "weights @ torch.tensor([[4.0], [2.0], [9.0]])"


@pytest.mark.parametrize(
    ("page", "step", "statement", "at", "tolerance"),
    [
        ("01", "context", AVERAGES, 0, EXACT),
        ("02", "scores", "scores", 1, EXACT),
        ("02", "weights", "weights", 1, EXACT),
        ("02", "context", "context", 1, EXACT),
        ("03", "context", "context", 0, FROM_PRINTED),
        ("05", "masked", "masked", 0, FROM_PRINTED),
        ("05", "weights", "weights", 0, FROM_PRINTED),
        ("05", "context", "context", 0, FROM_PRINTED),
        ("06", "dropped", "dropped", 0, FROM_PRINTED),
    ],
)
def test_it_computes_what_the_page_prints(steps, page, step, statement, at, tolerance):
    # JSON has no infinity, which becomes null.
    actual = [[-torch.inf if x is None else x for x in row] for row in steps[page][step]]
    expected = torch.tensor(printed(statement, markdown(page), at))
    torch.testing.assert_close(
        torch.tensor(actual, dtype=torch.float32), expected, rtol=0, atol=tolerance
    )


def test_a_temperature_is_the_factor_of_page_4(node, settings):
    factors = [1, 4, 16, 64]
    rows = node(
        'import { begin, compute } from "./widget/state.js";',
        "const of = (factor) => compute(given[0], { ...begin(given[0]), temperature: 1 / factor });"
        "return given[1].map((factor) => of(factor).weights[0]);",
        [settings("04"), factors],
    )
    for factor, row in zip(factors, rows, strict=True):
        (line,) = re.findall(rf"^ ?{factor} \[(.*)\]$", markdown("04"), re.MULTILINE)
        assert [f"'{weight:.4f}'" for weight in row] == line.split(", ")


def test_it_is_attention(node):
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    value = torch.randn(5, 2, dtype=torch.float64, generator=generator)
    scale, temperature, p = 0.7, 1.7, 0.3
    expected = regard.explain(
        query, key, value, mask=regard.causal(), scale=scale / temperature, dropout=p,
        generator=generator,
    )  # fmt: skip
    given = {
        "query": query.tolist(),
        "key": key.tolist(),
        "value": value.tolist(),
        "scale": scale,
        "temperature": temperature,
        "causal": True,
        "dropout": p,
        "survives": (expected.dropped > 0).tolist(),
    }
    actual = node(
        'import { stepsOf } from "./widget/attention.js";', "return stepsOf(given);", given
    )
    for name in ("scores", "scaled", "weights", "dropped", "context"):
        torch.testing.assert_close(
            torch.tensor(actual[name], dtype=torch.float64), getattr(expected, name)
        )


def test_a_widget_of_nothing_is_refused():
    def refused(comment):
        with pytest.raises(ValueError, match=r"in '<!-- widget") as failure:
            render(f"text\n\n<!-- widget {comment} -->\n", link=str)
        return str(failure.value)

    assert "neither writes down nor prints gone" in refused("x=gone")
    assert "takes causal" not in refused("colour=red")
    assert "each as name=value" in refused("colour=red")
    assert "needs query and key, or scores" in refused("value=1,2")
    assert "have no comments" in refused("scores=0 value=1,2 labels=x")
