"""Write the repository's tree, a line a file, into docs/contributing.md.

The line of a file is the first sentence of its docstring, or of the comment it begins with; the
line of a room is that of its `__init__.py`, or what stands in `FOLDERS`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "contributing.md"
BEGIN, END = "<!-- The tree: tools/tree.py writes it. -->", "<!-- End of the tree. -->"
WIDTH = 30  # of the column of names
LONGEST = 90  # characters of what is said of a file; a longer sentence ends at a clause

# Folders that are gone into, and what a folder without a docstring is for.
FOLDERS = {
    "regard": "the package",
    "src/native": "the kernels in C++: one source, a table of functions an instruction set",
    "course": "a distribution of its own: the exercises, and what builds the site",
    "experiments": "a distribution of its own: what has not met its hardware yet",
    "tools": "what builds, checks and draws",
}
# Folders whose files are of one kind: a line for all of them.
CLOSED = {
    "regard/gpt/shipped": "the model that comes with the package, and its card",
    "regard/gpt/stories/scenes": "what can happen in a story, as data",
    "regard/page/static": "the page: HTML, CSS and JavaScript modules without a framework",
    "course/regard_course": "the exercises of the numbered pages, a file a page",
    "course/regard_site": "builds the site of the documentation",
    "tools/javascript": "what lints and type-checks the page's JavaScript",
    "tests": "a folder a room; `support/` has the definition in plain Python and the cases",
    "benchmarks": "a file a question of speed or memory, beside peers",
    "docs": "the pages, whose code runs in the tests; `figures/` draws their pictures",
}
_SKIPPED = re.compile(r"__pycache__|\.egg-info|\.so$|py\.typed$|\.(toml|md|txt|json|map)$")


def tree() -> str:
    """The tree as text, in a code block."""
    lines = [
        line for folder in (*FOLDERS, "tests", "benchmarks", "docs") for line in _lines(folder)
    ]
    return "\n".join(["```text", *lines, "```"])


def _lines(folder: str, depth: int = 0) -> Iterator[str]:
    path = ROOT / folder
    name = f"{path.name if depth else folder}/"
    yield _line(depth, name, CLOSED.get(folder) or FOLDERS.get(folder) or line_of(path))
    if folder in CLOSED:
        return
    entries = [entry for entry in path.iterdir() if not _SKIPPED.search(entry.name)]
    for file in sorted(entry for entry in entries if entry.is_file()):
        if file.name != "__init__.py" and (what := line_of(file)):
            yield _line(depth + 1, file.name, what)
    for inner in sorted(entry for entry in entries if entry.is_dir()):
        yield from _lines(inner.relative_to(ROOT).as_posix(), depth + 1)


def _line(depth: int, name: str, what: str) -> str:
    start = "  " * depth + name
    return f"{start:{WIDTH}} {what}" if len(start) < WIDTH else f"{start}  {what}"


def line_of(path: Path) -> str:
    """The first sentence of a file or of a package; empty if it begins with none.

    >>> line_of(Path(__file__))
    "Write the repository's tree, a line a file, into docs/contributing.md"
    """
    if path.is_dir():
        path /= "__init__.py"
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        first = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"(?:// ?.*\n)+|/\*\*?[\s\S]*?\*/|", text)
        assert comment is not None, "the last alternative is empty"
        first = re.sub(r"^(?://|/\*\*?| \*/?) ?|\*/$", "", comment[0], flags=re.MULTILINE)
    paragraph = " ".join(first.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.]{2})\.(?:\s+(?=[A-Z`])|$)", paragraph)[0]
    if len(sentence) <= LONGEST:
        return sentence
    clauses = [match.start() for match in re.finditer(r"[,:;] | \(", sentence[:LONGEST])]
    return sentence[: clauses[-1]] if clauses else sentence


def written(text: str) -> str:
    """The page with the tree of today."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{tree()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
