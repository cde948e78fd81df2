"""The examples for Jupyter and marimo run, and say the same."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "docs/examples"
BOOK = nbformat.read(FOLDER / "look_inside.ipynb", as_version=4)
CODE = [cell.source for cell in BOOK.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def names():
    """What the cells of the Jupyter example define, without a kernel; the last one shows a page."""
    found = {}
    for source in CODE[:-1]:
        exec(source, found)
    return found


def test_the_cells_of_jupyter_run(names):
    nbformat.validate(BOOK)
    assert not any(cell.get("outputs") for cell in BOOK.cells)
    looks_at, narrow = names["looks_at"], names["narrow"]
    assert len(looks_at) == 3
    assert max(looks_at.values()) <= 1
    heads = names["recording"][0].shape[0]
    assert narrow.columns.tolist() == ["layer", "head", "entropy"]
    assert len(narrow) == len(names["recording"]) * heads
    assert CODE[-1] == "regard.explore(recording)"


@pytest.mark.thorough
def test_jupyter_runs_it_in_a_kernel():
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbclient.NotebookClient(BOOK.copy(), timeout=300).execute()
    shown = [cell.outputs[-1].data for cell in book.cells if cell.cell_type == "code"]
    assert shown[0]["text/plain"] == "Recording(4 layers)"
    assert "application/vnd.jupyter.widget-view+json" in shown[-1]


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_marimo_runs_it_and_says_the_same(names):
    pytest.importorskip("marimo", reason="make thorough installs marimo")
    pytest.importorskip("anywidget")
    spec = spec_from_file_location("look_inside", FOLDER / "look_inside.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs, defined = module.app.run()
    assert defined["looks_at"] == names["looks_at"]
    assert defined["narrow"].equals(names["narrow"])
    assert any("anywidget" in str(getattr(output, "text", output)) for output in outputs)
