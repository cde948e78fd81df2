"""Who may import whom: `import regard` brings torch alone, and no room uses one below it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard

PACKAGE = Path(regard.__file__).parent

# From the top down; each may use those above it. `attention` stands below `pattern` since it
# returns one.
ROOMS = {
    "errors": ["errors", "_extras", "_files", "_interrupt"],
    "tensors": ["_axes", "_cached", "_contexts", "_tensors"],
    "mask": ["mask"],
    "problem": ["problem"],
    "steps": ["steps", "_captions"],
    "backends": ["backends"],
    "pattern": ["pattern"],
    "attention": ["attention", "sdpa"],
    "record": ["record"],
    "the face": ["__init__"],
    "nn": ["nn"],
    "distributed": ["distributed"],
    "gpt": ["gpt"],
    "circuits": ["circuits"],
    "page": ["page"],
    "view": ["view"],
    "explorer": ["explorer"],
    "cli": ["cli", "__main__", "train"],
}
ORDER = {module: place for place, modules in enumerate(ROOMS.values()) for module in modules}
CORE = [module for room in list(ROOMS)[:10] for module in ROOMS[room]]

# Tables, figures and what a notebook shows are the view's business, which is looked for when they
# are asked for.
# A server is started from Python where someone asks for it.
EXCEPTIONS = {
    ("steps", "view"),
    ("pattern", "view"),
    ("record", "view"),
    ("__init__", "explorer"),
    ("__init__", "gpt"),
}

# Kernels are written in Triton's language, and imported by those who launch them.
IN_TRITON = PACKAGE / "backends" / "gpu" / "triton" / "kernels"

FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    """The module right below the package that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        if node.module == "regard":  # a module, or a name of the face
            return [f"regard.{a.name}" if a.name in ORDER else "regard" for a in node.names]
        return [node.module]
    return []


def imports(path):
    """Everything that a file imports: for types only, or later on, included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield from imported(node)


def top_level_imports(path):
    """What importing a file imports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        yield from imported(node)


def short(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=short)
def test_no_room_uses_one_below_it(path):
    here = name_of(path)
    assert here in ORDER, f"{here} is in no room; give it its place in ROOMS"
    for name in imports(path):
        package, *rest = name.split(".")
        if package != "regard":
            continue
        there = rest[0] if rest else "__init__"
        if (here, there) not in EXCEPTIONS:
            assert ORDER[there] <= ORDER[here], f"{here} imports {there}"


def test_the_exceptions_are_imported_late():
    for here, there in EXCEPTIONS:
        for path in (path for path in FILES if name_of(path) == here):
            names = list(top_level_imports(path))
            assert not any(name.startswith(f"regard.{there}") for name in names)


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) in CORE], ids=short)
def test_the_core_imports_the_standard_library_and_torch_alone(path):
    packages = {name.split(".")[0] for name in top_level_imports(path)}
    own = {"triton"} if path.is_relative_to(IN_TRITON) else set()
    assert packages <= sys.stdlib_module_names | {"regard", "torch"} | own


def test_importing_regard_brings_torch_and_nothing_heavier():
    script = """
import sys
import torch
before = set(sys.modules)
import regard
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    brought = run.stdout.split()
    assert "regard.attention" in brought
    others = {name.split(".")[0] for name in brought} - {"regard"}
    assert others <= sys.stdlib_module_names, "beyond torch and the standard library"
    rooms = {name.split(".")[1] for name in brought if name.startswith("regard.")}
    assert rooms <= set(CORE)


def test_the_face_is_what_it_says():
    assert regard.__all__ == sorted(regard.__all__)
    for name in regard.__all__:
        thing = getattr(regard, name)
        assert thing.__doc__
        assert thing.__module__.startswith("regard.")
