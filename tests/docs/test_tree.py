"""The tree in docs/contributing.md has a line for each file, as the file has it."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_tree():
    spec = importlib.util.spec_from_file_location("tree", ROOT / "tools" / "tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_is_that_of_today():
    tree = load_tree()
    page = tree.PAGE.read_text(encoding="utf-8")
    assert tree.written(page) == page, "python tools/tree.py"
