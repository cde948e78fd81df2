"""Install a wheel into a fresh environment without a compiler, and run the blocks of README there.

``python tools/fresh_install.py WHEEL [--inventory FILE]``. Packages come from where pip takes them;
FILE gets a CycloneDX inventory of those that the wheel brought along, whose licences are checked
too. The exit status is not 0 where a licence does not suit, the kernels do not load, the command
and its page can't be imported, or a block fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_COMPILERS = ("CC", "CXX", "CMAKE_GENERATOR", "PYTHONPATH")
_SUIT = ("MIT", "BSD", "Apache", "ISC", "MPL-2.0", "PSF-2.0")
_ASK = ("GPL", "SSPL")
"""Parts of the names of licences: one of the first is there, and none of these, LGPL among them."""
_STARTS = """
import sys
from pathlib import Path
import regard
from regard.backends import native
inside = Path(regard.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())
assert inside, f"regard is imported from {regard.__file__}, not from {sys.prefix}"
assert native.why_missing() is None, native.why_missing()
import regard.cli.app  # the command and its page need no extra
from regard.page import Explorer
"""


def main(wheel: Path, inventory: Path | None) -> int:
    """Install with one command, and run; the exit status is that of the first step that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        python = make_environment(Path(scratch) / "environment")
        failed = install(python, wheel)
        if inventory and not failed:
            failed = write_inventory(python, inventory) or check_licences(python)
        return failed or run_readme(python)


def make_environment(folder: Path) -> Path:
    """An empty environment; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(python: Path, wheel: Path, *options: str) -> int:
    """Install a wheel by this Python's pip; nothing is compiled."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", *options, str(wheel)]
    return subprocess.run(command, env=_without_compiler(python), check=False).returncode


def write_inventory(python: Path, file: Path) -> int:
    """Write what an environment has, as CycloneDX's tool lists it."""
    program = str(Path(sys.executable).with_name("cyclonedx-py"))
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    options += ["--output-reproducible", "--output-file", str(file)]
    return subprocess.run([program, "environment", *options, str(python)], check=False).returncode


def check_licences(python: Path) -> int:
    """Refuse a package whose licence is none of those known to suit, or asks for more."""
    command = [str(Path(sys.executable).with_name("pip-licenses")), "--python", str(python)]
    command += ["--from=mixed", "--partial-match"]
    command += [f"--allow-only={';'.join(_SUIT)}", f"--fail-on={';'.join(_ASK)}"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def run_readme(python: Path) -> int:
    """Run README's blocks in one namespace, in a folder without the checkout."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert blocks, "README has blocks of Python"
    assert not any(block.startswith(">>>") for block in blocks), "and none is a session"
    program = "\n".join([_STARTS, *blocks])
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-I", "-c", program]
        env = _without_compiler(python)
        return subprocess.run(command, cwd=folder, env=env, check=False).returncode


def _without_compiler(python: Path) -> dict[str, str]:
    """Where no program but the environment's own is found, and no compiler is named."""
    kept = {name: value for name, value in os.environ.items() if name not in _COMPILERS}
    return kept | {"PATH": str(python.parent)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--inventory", type=Path)
    given = parser.parse_args()
    sys.exit(main(given.wheel, given.inventory))
