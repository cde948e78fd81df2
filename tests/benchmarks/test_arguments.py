"""A benchmark that is asked for its help shows it, and measures nothing."""

import runpy

import pytest

# Some take no arguments, and none takes four.
MODULES = ["benchmarks"]
MODULES += [
    f"benchmarks.{name}"
    for name in ("monitor", "recording", "lenses", "llama", "llama_decoder", "spans", "isolated")
]
OPTIONS = [(["--help"], 0), (["--threads=2"], 2), (4 * ["all"], 2)]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package")
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("given", "status"), OPTIONS)
def test_help_is_shown_and_arguments_are_refused(monkeypatch, capfd, module, given, status):
    def measured(*_):
        raise AssertionError("something is measured")

    monkeypatch.setattr("sys.argv", [module, *given])
    monkeypatch.setattr("benchmarks.report.Report.table", measured)
    monkeypatch.setattr("benchmarks.machine.describe", measured)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == status
    out, err = capfd.readouterr()
    assert f"usage: python -m {module}" in out + err
