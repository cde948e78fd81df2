"""No circular imports in a room, direct or indirect, at import time or later."""

import ast
from pathlib import Path

from support.sources import tree

import regard

PACKAGE = Path(regard.__file__).parent


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path, files):
    """The files that a file imports, inside functions too; not those for types alone."""
    found, nodes = set(), [tree(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes += ast.iter_child_nodes(node)
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.append(inner if inner.removeprefix("regard.") in files else node.module)
        found |= {name.removeprefix("regard.") for name in names} & files.keys()
    return found


def circles(graph):
    """The sets of files that reach each other (Tarjan 1972)."""
    number, low, stack, found = {}, {}, [], []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for other in graph[file]:
            if other not in number:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], number[other])
        if low[file] == number[file]:
            component = set(stack[stack.index(file) :])
            del stack[stack.index(file) :]
            if len(component) > 1:
                found.append(component)

    for file in graph:
        if file not in number:
            visit(file)
    return found


FILES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def graph_of(room):
    """Which files of a room import which."""
    own = {name for name in FILES if name.partition(".")[0] == room}
    return {name: imported(FILES[name], FILES) & own - {name} for name in own}


def test_a_room_has_no_circular_imports():
    rooms = sorted({name.partition(".")[0] for name in FILES})
    found = {room: own for room in rooms if (own := circles(graph_of(room)))}
    assert found == {}


def test_the_gpt_model_imports_no_accelerator_and_no_file_format():
    graph = graph_of("gpt")
    known, new = set(), {"gpt.model"}
    while new:
        known |= new
        new = set().union(*(graph[name] for name in new)) - known
    above = {"engine", "int8", "gpt2", "hub", "checkpoint", "model_files"}
    assert known & {f"gpt.{name}" for name in above} == set()


def test_a_circular_import_is_detected():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(graph) == [{"b", "c"}]
