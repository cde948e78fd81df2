"""A benchmark that is asked for its help shows it, and measures nothing."""

import runpy

import pytest


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package")
@pytest.mark.parametrize("module", ["benchmarks", "benchmarks.monitor", "benchmarks.llama"])
@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--threads=2", 2), ("all", 2)])
def test_help_is_shown_and_arguments_are_refused(monkeypatch, capfd, module, argument, status):
    def measured(*_):
        raise AssertionError("something is measured")

    monkeypatch.setattr("sys.argv", [module, argument])
    monkeypatch.setattr("benchmarks.report.Report.table", measured)
    monkeypatch.setattr("benchmarks.machine.describe", measured)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == status
    out, err = capfd.readouterr()
    assert f"usage: python -m {module}" in out + err
