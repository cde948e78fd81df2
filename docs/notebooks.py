"""Make notebooks of the course: ``python docs/notebooks.py build/notebooks``.

A notebook is made of a page's Markdown: prose, code without prompts, the outputs of running it, its
pictures, and for each exercise a cell to answer it in. It stands alone: one file can be handed on.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import v4
from pages import FOLDER, Block, Page, Statement, execute
from regard_course import Answer, Exercise, exercise

_PICTURE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<target>[^)]+)\)")
LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<page>[^):#]+)(?P<anchor>#[^)]*)?\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", flags=re.DOTALL)
# What opens around a cell of code, and what closes: such a cell is folded by its reader.
_OPENS = re.compile(r"<details><summary>[^<]*</summary>\s*((?:(?!</details>).)*)\Z", re.DOTALL)
_CLOSES = re.compile(r"\A((?:(?!<details>).)*?)</details>\n?", re.DOTALL)
_EXERCISE = re.compile(
    r"^\*\*Exercise (?P<number>\w+\.\d+)\*\*.*?^</details>\n", flags=re.MULTILINE | re.DOTALL
)
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


def sources() -> list[Path]:
    """The pages of the course, in the order of reading."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def write(folder: Path) -> list[Path]:
    """Run every page and write its notebook."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sources():
        target = folder / f"{path.stem}.ipynb"
        nbformat.write(notebook(path), target)
        written.append(target)
    return written


def notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook of a page, with the outputs of running it."""
    cells = list(_cells(execute(path)))
    for at, cell in enumerate(cells):
        cell["id"] = f"cell-{at}"  # the same from run to run
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _cells(page: Page) -> Iterator[nbformat.NotebookNode]:
    at = 0
    for block in page.blocks:
        yield from prose(page.text[at : block.start])
        yield from _code(block)
        at = block.stop
    yield from prose(page.text[at:])


def prose(text: str) -> Iterator[nbformat.NotebookNode]:
    """Markdown cells, with a cell to answer in after each exercise."""
    at = 0
    for one, match in exercises(text):
        yield from _markdown(text[at : match.end()])
        yield _to_answer(one)
        at = match.end()
    yield from _markdown(text[at:])


def exercises(text: str) -> Iterator[tuple[Exercise, re.Match[str]]]:
    """The exercises of a page, each with where it stands, from its first line to its hint's end."""
    for match in _EXERCISE.finditer(text):
        yield exercise(match["number"]), match


def _markdown(text: str) -> Iterator[nbformat.NotebookNode]:
    text = _CLOSES.sub(r"\1", _OPENS.sub(r"\1", _COMMENT.sub("", text))).strip()
    if not text:
        return
    attachments: dict[str, dict[str, str]] = {}

    def attach(match: re.Match[str]) -> str:
        picture = FOLDER / match["target"]
        content = base64.b64encode(picture.read_bytes()).decode("ascii")
        attachments[picture.name] = {_TYPES[picture.suffix]: content}
        return f"![{match['words']}](attachment:{picture.name})"

    cell = v4.new_markdown_cell(LINK.sub(_to_notebook, _PICTURE.sub(attach, text)))
    if attachments:
        cell["attachments"] = attachments
    yield cell


def _to_notebook(match: re.Match[str]) -> str:
    """A link to a page that has a notebook leads to it; of others the words stay."""
    if (FOLDER / match["page"]) in sources():
        return f"[{match['words']}]({Path(match['page']).stem}.ipynb)"
    is_code = match["page"].endswith(".py")
    return f"{match['words']}: docs/{match['page']}" if is_code else match["words"]


def _code(block: Block) -> Iterator[nbformat.NotebookNode]:
    """A cell for each output: statements that print nothing stand with the next that does."""
    waiting: list[Statement] = []
    for statement in block.statements:
        waiting.append(statement)
        if statement.printed or statement.shown or statement.error:
            yield _cell(waiting)
            waiting = []
    if waiting:
        yield _cell(waiting)


def _cell(statements: list[Statement]) -> nbformat.NotebookNode:
    last = statements[-1]
    cell = v4.new_code_cell("".join(one.source for one in statements).strip("\n"))
    if last.printed:
        cell.outputs.append(v4.new_output("stream", name="stdout", text=last.printed))
    if last.shown:
        data = {"text/plain": last.shown.rstrip("\n")}
        cell.outputs.append(v4.new_output("execute_result", data=data))
    if last.error:
        name, _, message = last.error.strip().partition(": ")
        cell.outputs.append(v4.new_output("error", ename=name, evalue=message))
        cell.metadata["tags"] = ["raises-exception"]
    return cell


def _to_answer(one: Exercise) -> nbformat.NotebookNode:
    """A cell that says so until it is filled in; whoever runs all cells goes on after it."""
    code = f"\n{blank(one)}\n" if isinstance(one, Answer) else f"\n\n{blank(one)}\n\n\n"
    source = f'from regard_course import check\n{code}check("{one.number}", {given(one)})'
    return v4.new_code_cell(source, metadata={"tags": ["raises-exception"]})


def blank(one: Exercise) -> str:
    """The code to fill in."""
    if isinstance(one, Answer):
        return f"{one.variable} = ...  # {one.expects}"
    return f"def {one.signature}:\n    ..."


def given(one: Exercise) -> str:
    """The name that the code to fill in defines."""
    return one.variable if isinstance(one, Answer) else one.name


if __name__ == "__main__":
    for _path in write(Path(sys.argv[1])):
        print(_path)
