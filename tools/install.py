"""Install this checkout and dependency groups, with a line for each package and each long step.

``python tools/install.py [--constraint FILE] [--package FOLDER] GROUP…``, by the Python to install
into, whose pip is upgraded first if it knows no groups. With regard come the other members of the
workspace, course and experiments. Versions are those of the file, constraints.txt by default; a
package that lies in another folder of this checkout is installed as well, and
``FOLDER/pyproject.toml:GROUP`` is a group of a folder's own. The rest of pip's output is printed
where it fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEMBERS = ("course", "experiments")
"""Of the workspace, beside regard: distributions of their own."""
_PACKAGE = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?"
    r"(?P<name>[^-/\s]+)-(?P<version>[^-/\s]+?)(?:-\S+)?\.(?:whl|tar\.gz|zip)"
    r"(?P<size> \([^)]*B\))?(?:\s|$)"
)
_STEP = re.compile(r"\s*(?P<what>Building \S+ for \S+|Installing build dependencies).*started")
_ALL = re.compile(r"Installing collected packages: (?P<names>.*)")


def main(
    *groups: str,
    constraint: str = "constraints.txt",
    package: str | None = None,
) -> int:
    """Install, and hand on pip's exit status."""
    members = [name for name in MEMBERS if (ROOT / name / "pyproject.toml").is_file()]
    folders = [".", *(f"./{name}" for name in members), *([package] if package else [])]
    what = [word for folder in folders for word in ("--editable", folder)]
    what += [f"--group={group}" for group in groups]
    return _pip_install(constraint, "pip>=25.1") or _pip_install(constraint, *what)


def _pip_install(constraint: str, *what: str) -> int:
    command = [sys.executable, "-u", "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--constraint", constraint]
    command += ["--no-compile", *what]  # each module is compiled once imported; most never are
    output: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as pip:
            assert pip.stdout is not None, "it is a pipe"
            for line in pip.stdout:
                output.append(line)
                if progress := progress_of(line):
                    print(f"  {progress}", flush=True)
        if pip.returncode:
            errors.seek(0)
            sys.stderr.write("".join(output) + errors.read())
    return pip.returncode


def progress_of(line: str) -> str:
    """The line to print for a line of pip's output; empty for most.

    >>> progress_of("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)")
    'rich 15.0.0 (310 kB)'
    >>> progress_of("Building editable for regard (pyproject.toml): started")
    'Building editable for regard …'
    >>> progress_of("Installing collected packages: rich, torch")
    'Installing 2 packages …'
    >>> progress_of("Collecting rich>=13.9 (from regard==0.1.0)")
    ''
    """
    if match := _PACKAGE.match(line):
        return f"{match['name']} {match['version']}{match['size'] or ''}"
    if match := _STEP.match(line):
        return f"{match['what']} …"
    if match := _ALL.match(line):
        return f"Installing {len(match['names'].split(','))} packages …"
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--constraint", default="constraints.txt")
    parser.add_argument("--package")
    parser.add_argument("groups", nargs="*")
    given = vars(parser.parse_args())
    sys.exit(main(*given.pop("groups"), **given))
