"""The process in which a learner's file runs: ``python -m regard_course._child``."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from regard.errors import Error
from regard_course._check import judge
from regard_course._exercise import Answer, Exercise, exercise
from regard_course._mine import check_stages

__all__ = ["main", "reply_to", "stages_of"]


def main(number: str, path: str, seconds: str, reply: str, stuck: str) -> None:
    """Check a file and write the verdict as JSON.

    Args:
        number: of the exercise; empty for the stages of the reader's own file.
        path: of the learner's file.
        seconds: after which the process ends itself, even amid compiled code.
        reply: where the verdict is written.
        stuck: where the lines that were running then are written.
    """
    with Path(stuck).open("w", encoding="utf-8") as trace:
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=trace)
        content = reply_to(exercise(number), path) if number else stages_of(path)
        faulthandler.cancel_dump_traceback_later()
    Path(reply).write_text(json.dumps(content), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that the file started may not keep the process alive


def reply_to(subject: Exercise, path: str) -> dict[str, Any]:
    """The verdict on a file, or the error as a text."""
    try:
        verdict = judge(subject, _find(subject, _defined(path), Path(path).name), file=path)
    except Error as error:
        return {"error": str(error)}
    return {"right": verdict.right, "text": verdict.text}


def stages_of(path: str) -> dict[str, Any]:
    """What is to be said of each stage of the reader's file, or the error as a text."""
    try:
        return {"stages": [asdict(one) for one in check_stages(_defined(path), path)]}
    except Error as error:
        return {"error": str(error)}


def _defined(path: str) -> Mapping[str, Any]:
    """The names that a file defines."""
    name = Path(path).name
    sys.path.insert(0, str(Path(path).parent))  # as if Python ran it
    spec = importlib.util.spec_from_file_location("solution", path)
    if spec is None or spec.loader is None:
        raise Error(f"{name} is no Python file; its name must end in .py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # as dataclasses need
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise Error(f"{name} is not Python: {error.msg} (line {error.lineno})") from error
    except (Exception, SystemExit) as error:  # whatever the learner's code raises
        lines = [
            one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == path
        ]
        where = f" in line {lines[-1]}" if lines else ""
        what = f"{name} raises {type(error).__name__}{where}: {error}"
        raise Error(f"{what}; mend it until `python {name}` runs") from error
    return vars(module)


def _find(subject: Exercise, names: Mapping[str, Any], file: str) -> Any:
    """The answer or function among the names that a file defines."""
    if isinstance(subject, Answer):
        wanted = [subject.variable, "answer"]
        what = f"{subject.variable} or answer ({subject.expects})"
    else:
        wanted, what = [subject.name], subject.expects
    for name in wanted:
        if name in names:
            return names[name]
    own = [name for name in names if not name.startswith("_")]
    near = get_close_matches(wanted[0], own, n=1)
    cure = f"define it, or rename {near[0]} if that is it" if near else "define it"
    raise Error(f"{file} does not define {what}; {cure}")


if __name__ == "__main__":
    main(*sys.argv[1:])
