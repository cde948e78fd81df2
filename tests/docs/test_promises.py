"""What docs/promises.md counts is so, and each promise and claim names a test."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


@pytest.fixture
def promises(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import promises

    return promises


def test_the_counts_are_those_of_today(promises):
    assert promises.written(PAGE, promises.COUNTED, promises.counted()) == PAGE, (
        "python tools/promises.py"
    )


def test_every_promise_names_a_test_that_exists():
    rows = re.findall(r"^\|(?! promise |---)[^|\n]+(?:(?:\\\||[^|\n])*\|){4}$", PAGE, re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/.]+)`", row)
        assert named, row
        assert all((ROOT / path).is_file() for path in named), row


def test_every_claim_of_security_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    claims = re.findall(r"^\* .+(?:\n  .+)*", text.partition("## Out of scope")[0], re.MULTILINE)
    assert len(claims) > 8
    for claim in claims:
        named = re.findall(r"`(tests/[\w/.]+)`", claim)
        assert named, claim
        assert all((ROOT / path).is_file() for path in named), claim


def test_what_pytest_lists_is_counted_by_room(promises):
    listed = "tests/core/a.py::one\ntests/core/a.py::two[x]\nregard/b.py::b.f\n\n"
    listed += "3/10 tests collected (7 deselected)"
    native = SimpleNamespace(built=("avx2", "baseline"), supported=("baseline",))
    table = promises.table_of(listed, native)
    for row in ("| `make test` runs | 3 |", "| `make thorough` runs | 7 |", "`tests/core` | 2 |"):
        assert row.replace("| `make", "`make") in table
    assert "| of these, run by this processor | baseline |" in table
    assert "examples in regard/` | 1 |" in table
