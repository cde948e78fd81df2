"""Wrong functions are found, and each failing case runs by itself and shows the difference."""

import importlib.util
from pathlib import Path

import pytest
from support.processes import run_script

from regard.conformance import check
from regard.conformance.cases import AREAS

FILE = Path(__file__).with_name("wrong.py")


def loaded():
    spec = importlib.util.spec_from_file_location("wrong", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wrong = loaded()


def differing(report):
    return [area.name for area in report.areas if area.status == "differs"]


def failing(report, area):
    return [one for one in report[area].outcomes if one.status == "differs"]


@pytest.mark.parametrize("function", wrong.FIRST, ids=lambda function: function.__name__)
def test_a_wrong_function_is_found_and_named_by_its_area(function):
    """All simpler areas pass."""
    area = wrong.FIRST[function]
    report = check(function, areas=AREAS[: AREAS.index(area) + 1])
    assert not report.conforms
    assert differing(report) == [area]
    assert all(one.snippet for one in failing(report, area))


def test_areas_that_a_fault_does_not_concern_pass():
    report = check(wrong.scaled_twice, areas=[area for area in AREAS if area != "compile"])
    assert differing(report) == ["scale", "gradients"]


def test_failing_cases_run_without_regard_and_show_the_difference():
    """Three published silent faults: the number that each snippet prints is the one reported."""
    found, scripts = [], []
    for function in (wrong.tails, wrong.one_off, wrong.scaled_twice):
        lines = ["import sys", f"sys.path.insert(0, {str(FILE.parent)!r})"]
        lines.append(f"from wrong import {function.__name__} as attend")
        area = wrong.FIRST[function]
        one = failing(check(function, lines=lines, areas=[area]), area)[0]
        assert one.error > 1000 * one.allowed
        assert "regard" not in one.snippet.replace(str(FILE.parent), "")
        found.append(one.error)
        scripts.append(one.snippet)
    printed = run_script("\n".join(scripts)).split("\n")
    shown = [float(line.partition("(")[2].partition(",")[0]) for line in printed if line]
    assert shown == pytest.approx(found, rel=1e-2)
