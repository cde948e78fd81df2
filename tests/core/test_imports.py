"""Who may import whom: no room imports a higher one, nobody imports what is private elsewhere.

A private name starts with an underscore. It belongs to the package, that is the folder, in which it
stands, and to the packages inside it; so for benchmarks, tools, docs, website and the packages in
integrations. Tests may import it too.
"""

import ast
import itertools
import sys
from pathlib import Path

from support.processes import run_script

import regard

PACKAGE = Path(regard.__file__).parent
ROOT = PACKAGE.parent

# A room may import those that stand before it in this list, and itself: so no circle leaves a room.
ROOMS = {
    "errors": ["errors", "_display", "_extras", "_files", "_interrupt"],
    "tensors": [
        "_arguments",
        "_contexts",
        "_decorators",
        "_huge_pages",
        "_modules",
        "_shapes",
        "_tensors",
    ],
    "mask": ["mask"],
    "problem": ["problem"],
    "steps": ["steps", "_captions", "_definitions"],
    "backends": ["backends"],
    "pattern": ["pattern"],
    "attention": ["attention", "sdpa"],
    "intercept": ["intercept"],
    "record": ["record"],
    "intervene": ["intervene"],
    "monitor": ["monitor"],
    "the face": ["__init__"],
    "nn": ["nn"],
    "distributed": ["distributed"],
    "gpt": ["gpt"],
    "circuits": ["circuits"],
    "page": ["page"],
    "view": ["view"],
    "integrations": ["integrations"],
    "course": ["course"],
    "explorer": ["explorer"],
    "cli": ["cli", "__main__"],
}
ORDER = {module: place for place, modules in enumerate(ROOMS.values()) for module in modules}
CORE = [module for room in list(ROOMS)[:13] for module in ROOMS[room]]

# What tables, figures and notebooks show is drawn by the view, which is imported when it is needed.
# A server is started from Python where someone asks for it.
EXCEPTIONS = {("__init__", "explorer"), ("__init__", "gpt"), ("__init__", "view")}

# Kernels are written in Triton's language, and imported by those who launch them.
IN_TRITON = PACKAGE / "backends" / "gpu" / "triton" / "kernels"

FILES = sorted(PACKAGE.rglob("*.py"))
BESIDE = sorted(
    f
    for name in ("benchmarks", "tools", "docs", "website", "integrations")
    for f in (ROOT / name).rglob("*.py")
)


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


def rooms_imported(path):
    """The modules right below the package that a file imports from."""
    for name in imports(path):
        package, *rest = name.split(".")
        if package == "regard":
            yield rest[0] if rest else "__init__"


def test_no_room_imports_a_higher_one():
    assert {name_of(path) for path in FILES} <= set(ORDER), "give it its place in ROOMS"
    assert [
        f"{path.relative_to(ROOT)} imports regard.{there}"
        for path in FILES
        for there in rooms_imported(path)
        if (name_of(path), there) not in EXCEPTIONS and ORDER[there] > ORDER[name_of(path)]
    ] == []


def private_imports(path, package):
    """Names that a file imports although they are private to a package that it is not part of."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            owner = [*itertools.takewhile(lambda part: not part.startswith("_"), parts)]
            if parts[0] == "regard" and owner != parts and package[: len(owner)] != owner:
                yield name


def test_private_names_are_imported_inside_their_package_alone():
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (*FILES, *BESIDE)
        for name in private_imports(path, list(path.relative_to(ROOT).parts[:-1]))
    ] == []


def test_a_private_name_of_another_package_is_recognised(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "import regard.gpt._fields\nfrom regard.masks import _mask, bounds\n"
        "from regard.masks._mask import Mask\nfrom regard._tensors import flat\n"
    )
    elsewhere = ["regard.gpt._fields", "regard.masks._mask", "regard.masks._mask.Mask"]
    assert list(private_imports(file, ["regard", "nn"])) == elsewhere
    assert list(private_imports(file, ["regard", "mask", "inner"])) == elsewhere[:1]
    assert list(private_imports(file, ["benchmarks"])) == [*elsewhere, "regard._tensors.flat"]


def test_the_exceptions_are_imported_late():
    for here, there in EXCEPTIONS:
        for path in (path for path in FILES if name_of(path) == here):
            names = list(top_level_imports(path))
            assert not any(name.startswith(f"regard.{there}") for name in names)


def test_the_core_imports_the_standard_library_and_torch_alone():
    allowed = sys.stdlib_module_names | {"regard", "torch"}
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in top_level_imports(path)
        if name_of(path) in CORE
        and name.split(".")[0] not in allowed
        and not (name.startswith("triton") and path.is_relative_to(IN_TRITON))
    ] == []


def test_importing_regard_brings_torch_and_nothing_heavier():
    script = """
import sys
import torch
before = set(sys.modules)
import regard
print(*sorted(set(sys.modules) - before))
"""
    brought = run_script(script).split()
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
