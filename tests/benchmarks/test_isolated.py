"""Libraries that are noisy or end untidily do not fill the screen, and failures are not hidden."""

import atexit
import sys

import pytest

from benchmarks.isolated import isolated
from benchmarks.report import Report


def measured_with_noise(report):
    sys.stderr.write("a library's warning")
    atexit.register(sys.stderr.write, "leaked 12 instances")
    report.table("peers: of some kind", ("what", 5), ("ratio", 20))
    report.row("one", report.at_least("one", 2.0, 1.0))
    report.row("two", report.at_least("two", 0.5, 1.0))


def failing(report):
    report.table("peers: of some kind", ("what", 5), ("ratio", 20))
    sys.stderr.write("a library's last words\n")
    raise RuntimeError("no such operator")


def test_tables_come_through_and_noise_does_not(capfd):
    report = Report()
    isolated(report, measured_with_noise)
    report.summary()
    out, err = capfd.readouterr()
    assert err == ""
    assert "2.00 ≥ 1" in out
    assert "1 of 2 targets met" in out
    assert "missed: peers, two: 0.50, not ≥ 1" in out


@pytest.mark.thorough
def test_a_failure_is_shown_and_counted(capfd):
    report = Report()
    isolated(report, failing)
    report.summary()
    out, err = capfd.readouterr()
    assert "a library's last words" in err
    assert "RuntimeError: no such operator" in err
    assert f"missed: {failing.__module__}:failing ended with status 1" in out
