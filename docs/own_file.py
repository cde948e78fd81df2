"""Put together the file that a reader writes: ``python docs/own_file.py > mine.py``.

Its lines stand on the pages alone, in Python blocks after the comment `mine`. A function or a class
that a later page writes again takes the place of the earlier one; so does a method, where a class
begins with ``...``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

_BLOCK = re.compile(r"^<!-- mine -->\n```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_TITLE = '"""A GPT in plain PyTorch, written page by page."""'


def own_file(page: str = "9d") -> str:
    """The file as it is after a page, such as ``5`` or ``9b``."""
    imports: dict[str, None] = {}
    parts: dict[str, dict[str, str]] = {}  # by name: a function, or a class's head and its methods
    for path in sorted(FOLDER.glob("0[1-9]*.md")):
        for node, text in _statements(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports[text] = None
            elif isinstance(node, ast.FunctionDef):
                parts[node.name] = {"": text}
            elif isinstance(node, ast.ClassDef):
                of_before = parts.get(node.name, {}) if _goes_on(node) else {}
                parts[node.name] = of_before | _methods(node, text)
            else:
                raise TypeError(f"{path.name} has neither imports nor definitions: {text}")
        if path.name.partition("-")[0].lstrip("0") == page:
            break
    definitions = ("\n\n".join(part.values()) for part in parts.values())
    return "\n\n\n".join([f"{_TITLE}\n\n" + "\n".join(imports), *definitions]) + "\n"


def _statements(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    for block in _BLOCK.findall(path.read_text("utf-8")):
        for node in ast.parse(block).body:
            yield node, _text(block, node)


def _text(block: str, node: ast.stmt) -> str:
    """The lines of a definition, with its decorators."""
    first = min(one.lineno for one in [node, *getattr(node, "decorator_list", [])])
    return "\n".join(block.splitlines()[first - 1 : node.end_lineno])


def _goes_on(node: ast.ClassDef) -> bool:
    """Whether a class begins with ``...``, for the methods of before."""
    first = node.body[0]
    return isinstance(first, ast.Expr) and getattr(first.value, "value", None) is ...


def _methods(node: ast.ClassDef, text: str) -> dict[str, str]:
    """What stands before the first method, under an empty name, and each method."""
    lines = text.splitlines()
    shift = min(one.lineno for one in [node, *node.decorator_list])
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    head = "\n".join(lines[: methods[0].lineno - shift]).rstrip()
    found = {} if _goes_on(node) else {"": head}
    for one in methods:
        assert one.end_lineno is not None
        found[one.name] = "\n".join(lines[one.lineno - shift : one.end_lineno - shift + 1])
    return found


if __name__ == "__main__":
    print(own_file(), end="")
