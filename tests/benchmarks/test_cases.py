"""What the benchmarks compare is the same computation, and counted right."""

from dataclasses import replace

import pytest
import torch

from benchmarks import training
from benchmarks.cases import Case
from benchmarks.report import Report
from regard.cli.timing import Measured

CASES = [
    Case(2, 3, 13, 5),
    Case(1, 6, 13, 5, groups=2),
    Case(2, 3, 13, 5, window=4),
    Case(1, 3, 13, 5, documents=(2, 7, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_computes_the_same_in_every_way(case):
    torch.manual_seed(0)
    given = case.tensors(torch.float32)
    for attend in case.by_torch(torch.float32).values():
        # Two float32 softmaxes over 13 keys differ by a few roundings of numbers near 1.
        torch.testing.assert_close(case.ours(*given), attend(*given), rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operations_are_those_of_visible_entries(case):
    seen = case.mask.visible(case.length, case.length, (case.batch, case.heads))
    assert case.operations == 4 * case.dim * seen.sum().item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_causal_attention_of_equal_area_sees_about_as_many_entries(case):
    causal = case.of_equal_area
    assert causal.window is None
    assert causal.documents is None
    neighbours = [replace(causal, length=causal.length + more) for more in (-1, 1)]
    nearest = abs(causal.visible - case.visible)
    assert all(nearest <= abs(other.visible - case.visible) for other in neighbours)


def test_a_report_marks_values_and_keeps_count(capsys):
    report = Report()
    report.table("speed: of some kind", ("what", 5), ("ratio", 20))
    report.row("one", report.at_least("one", 3.0, 2.8))
    report.row("two", report.at_most("two", 3.0, 2.8))
    report.row("three", report.within("three", 1.2, 0.15))
    report.row("four", report.at_least("four", 0.5, None, ".0%"))
    report.summary()
    printed = capsys.readouterr().out
    marks = {row.split()[0]: row.split()[-1] for row in printed.splitlines() if row}
    assert (marks["one"], marks["two"], marks["three"], marks["four"]) == ("✓", "✗", "✗", "50%")
    assert "1 of 3 targets met" in printed
    assert "missed: speed, two: 3.00, not ≤ 2.8" in printed


@pytest.mark.parametrize("table", [training.forward, training.backward])
def test_ours_is_beside_the_fastest_way_of_torch(table, monkeypatch, capsys):
    def interleaved(tasks, limit):
        times = {name: [4.0 + number] for number, name in enumerate(tasks)}
        return Measured(times | {"ours": [2.0]}, limit=1.0)

    monkeypatch.setattr(training, "interleaved", interleaved)
    table(Report(), CASES[:1])
    rows = [line for line in capsys.readouterr().out.splitlines() if str(CASES[0]) in line]
    fastest = next(iter(CASES[0].by_torch(torch.float32)))
    assert len(rows) == 2
    assert all(row.endswith(fastest) and " 2.00 ≥ 1 " in row for row in rows)
