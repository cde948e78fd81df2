"""Install this checkout with some of its extras, with a line for each package and each long step.

``python tools/install.py EXTRA…``, by the Python to install into. Versions are those of
constraints.txt. What pip says besides, warnings among it, is printed where it fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGE = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?"
    r"(?P<name>[^-/\s]+)-(?P<version>[^-/\s]+?)(?:-\S+)?\.(?:whl|tar\.gz|zip)"
    r"(?P<size> \([^)]*B\))?(?:\s|$)"
)
_STEP = re.compile(r"\s*(?P<what>Building \S+ for \S+|Installing build dependencies).*started")
_ALL = re.compile(r"Installing collected packages: (?P<names>.*)")


def main(*extras: str) -> int:
    """Install, and hand on pip's exit status."""
    command = [sys.executable, "-u", "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--constraint", "constraints.txt"]
    command += ["--editable", f".[{','.join(extras)}]"]
    said: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as pip:
            assert pip.stdout is not None, "it is a pipe"
            for line in pip.stdout:
                said.append(line)
                if progress := shown(line):
                    print(f"  {progress}", flush=True)
        if pip.returncode:
            errors.seek(0)
            sys.stderr.write("".join(said) + errors.read())
    return pip.returncode


def shown(line: str) -> str:
    """What to print for a line of pip's; nothing for most.

    >>> shown("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)")
    'rich 15.0.0 (310 kB)'
    >>> shown("Building editable for regard (pyproject.toml): started")
    'Building editable for regard …'
    >>> shown("Installing collected packages: rich, torch")
    'Installing 2 packages …'
    >>> shown("Collecting rich>=13.9 (from regard==0.1.0)")
    ''
    """
    if found := _PACKAGE.match(line):
        return f"{found['name']} {found['version']}{found['size'] or ''}"
    if found := _STEP.match(line):
        return f"{found['what']} …"
    if found := _ALL.match(line):
        return f"Installing {len(found['names'].split(','))} packages …"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
