"""The layers of imports: no room imports a higher one, or private names of another.

A private name starts with an underscore. It belongs to the package, that is the folder, in which it
stands, and to the packages inside it; so for benchmarks, tools, docs, course and experiments. The
experiments, which are released together with regard, may use the modules at its root too. Tests may
import any.
"""

import ast
import inspect
import itertools
import sys
from pathlib import Path

from support.processes import run_script
from support.sources import nodes, tree

import regard

PACKAGE = Path(regard.__file__).parent
ROOT = PACKAGE.parent

# A room may import those that stand before it in this list, and itself: so no circle leaves a room.
ROOMS = {
    "errors": ["errors", "_display", "_extras", "_faces", "_files", "_importing", "_ranks"],
    "tensors": [
        "_shapes",
        "_contexts",
        "_huge_pages",
        "_arguments",
        "_decorators",
        "_modules",
        "_tensors",
    ],
    "masks": ["masks"],
    "inputs": ["inputs"],
    "steps": ["steps", "_captions", "_definitions"],
    "backends": ["backends"],
    "pattern": ["pattern", "readouts"],
    "attention": ["attention", "sdpa"],
    "intercept": ["intercept"],
    "record": ["record"],
    "intervene": ["intervene"],
    # The core ends here.
    "conformance": ["conformance"],
    "lens": ["lens"],
    "nn": ["nn"],
    "gpt": ["gpt"],
    "models": ["models"],
    "view": ["view"],
    "page": ["page"],
    "integrations": ["integrations"],
    "the face": ["__init__"],
    "cli": ["cli", "__main__"],
}
ORDER = {module: place for place, modules in enumerate(ROOMS.values()) for module in modules}
CORE = [module for room in [*ROOMS][: [*ROOMS].index("conformance")] for module in ROOMS[room]]

# What stands above regard, and may import it.
ABOVE = {"regard_course", "regard_experiments", "regard_site", "regard_vllm"}

FILES = sorted(PACKAGE.rglob("*.py"))
BESIDE = sorted(
    f
    for name in ("benchmarks", "tools", "docs", "course", "experiments")
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
    for node in nodes(path):
        yield from imported(node)


def top_level_imports(path):
    """What importing a file imports."""
    for node in tree(path).body:
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
        if ORDER[there] > ORDER[name_of(path)]
    ] == []


def test_regard_does_not_import_higher_distributions():
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in imports(path)
        if name.split(".")[0] in ABOVE
    ] == []


def package_of(path):
    """The package that a file is in; that of an experiment counts as one of regard's."""
    folders = list(path.relative_to(ROOT).parts[:-1])
    return ["regard", *folders] if "regard_experiments" in folders else folders


def private_imports(path, package):
    """Names that a file imports although they are private to a package that it is not part of."""
    for node in nodes(path):
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


def test_private_names_are_imported_only_inside_their_package():
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (*FILES, *BESIDE)
        for name in private_imports(path, package_of(path))
    ] == []


def test_a_private_name_of_another_package_is_recognised(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "import regard.gpt._fields\nfrom regard.masks import _mask, bounds\n"
        "from regard.masks._mask import Mask\nfrom regard._tensors import flat\n"
    )
    elsewhere = ["regard.gpt._fields", "regard.masks._mask", "regard.masks._mask.Mask"]
    assert list(private_imports(file, ["regard", "nn"])) == elsewhere
    assert list(private_imports(file, ["regard", "masks", "inner"])) == elsewhere[:1]
    assert list(private_imports(file, ["benchmarks"])) == [*elsewhere, "regard._tensors.flat"]


def test_the_core_imports_only_the_standard_library_and_torch():
    allowed = sys.stdlib_module_names | {"regard", "torch"}
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in top_level_imports(path)
        if name_of(path) in CORE and name.split(".")[0] not in allowed
    ] == []


def test_importing_regard_imports_nothing_and_attention_only_torch():
    script = """
import sys
before = set(sys.modules)
import regard
print("torch" in sys.modules, *sorted({name.split(".")[0] for name in set(sys.modules) - before}))
import torch
before = set(sys.modules)
regard.attention, regard.record, regard.intervene
print(*sorted(set(sys.modules) - before))
"""
    first, second = run_script(script, fresh=True).splitlines()
    is_loaded, *of_regard = first.split()
    assert is_loaded == "False"
    assert {*of_regard} - {"regard"} <= sys.stdlib_module_names
    brought = second.split()
    assert "regard.attention" in brought
    others = {name.split(".")[0] for name in brought} - {"regard"}
    assert others <= sys.stdlib_module_names, "beyond torch and the standard library"
    rooms = {name.split(".")[1] for name in brought if name.startswith("regard.")}
    assert rooms <= set(CORE)


def test_all_names_of_the_package_can_be_imported():
    assert regard.__all__ == sorted(regard.__all__)
    for name in regard.__all__:
        thing = getattr(regard, name)
        assert thing.__doc__
        home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        assert home.startswith("regard.")
