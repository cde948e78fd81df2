"""Rehearse a release: upload, install in every way, open the page, yank; on this machine alone.

``python tools/rehearse.py FOLDER``, the folder being that of ``tools/wheels.py``. An index on
loopback takes the place of PyPI (`package_index`). The packages that come along are fetched first,
from where pip takes them, in the versions of constraints.txt; after that nothing is fetched. Torch
is the build that pip finds, for CPUs where it finds one. The exit status is 1 where a step fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from driver import ROOT
from fresh_install import make_environment
from package_index import PackageIndex, serving

SECONDS = 60
"""From nothing to the first page."""
TEXT = "Tom had a red kite and a blue drum. Tom wanted the blue"
_BIN = Path(sys.executable).parent


def main(folder: str) -> int:
    """Go through a release's life; prints a line a step."""
    archives = sorted(Path(folder).glob("*.whl")) + sorted(Path(folder).glob("*.tar.gz"))
    wheel = next(path for path in archives if _runs_here(path))
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch) / "packages"
        _fetch(wheel, packages)
        with serving(packages) as index:
            _upload(index, archives)
            for number in range(4):
                own = Path(scratch) / f"way {number}"  # with a space in it
                install, regard = [*_ways(own, f"regard=={version}")][number]
                settings = _settings(index, own)
                if "--python" in install:
                    make_environment(own)
                if install:
                    subprocess.run(install, env=settings, check=True, capture_output=True)
                    print(f"{' '.join([Path(install[0]).name, *install[1:]])}")
                _first_page(regard, settings)
            _yank(index, Path(scratch), version)
    return 0


def _runs_here(wheel: Path) -> bool:
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    if wheel.suffix != ".whl":
        return False
    return bool(parse_wheel_filename(wheel.name)[3] & {*sys_tags()})


def _fetch(wheel: Path, packages: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(packages), str(wheel)]
    subprocess.run(command, check=True)
    (packages / wheel.name).unlink()  # this one is uploaded
    print(f"{len(list(packages.iterdir()))} packages come along")


def _upload(index: PackageIndex, archives: list[Path]) -> None:
    """Upload as the workflow does; a second upload is refused, as PyPI refuses it."""
    command = [str(_BIN / "twine"), "upload", "--non-interactive", "--disable-progress-bar"]
    command += [
        "--repository-url",
        f"{index.address}/upload/",
        "--username",
        "a",
        "--password",
        "b",
    ]
    names = [str(path) for path in archives]
    subprocess.run([*command, *names], check=True, stdout=subprocess.DEVNULL)
    again = subprocess.run([*command, names[0]], capture_output=True, check=False)
    assert again.returncode, "an index replaces no file"
    print(f"{len(names)} archives uploaded, and none replaced")


def _settings(index: PackageIndex, own: Path) -> dict[str, str]:
    """Tools of an environment that knows this index alone, and keeps what it has in its folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "PIPX_", "PYTHON"))
    }
    return kept | {
        "HOME": str(own),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{index.address}/simple/",
        "PIPX_HOME": str(own / "pipx"),
        "PIPX_BIN_DIR": str(own / "bin"),
        "UV_CACHE_DIR": str(own / "cache"),
        "UV_DEFAULT_INDEX": f"{index.address}/simple/",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_TOOL_BIN_DIR": str(own / "bin"),
        "UV_TOOL_DIR": str(own / "tools"),
    }


def _ways(own: Path, what: str) -> Iterator[tuple[list[str], list[str]]]:
    """The commands that install it, and that run it: the first does both, as README's does."""
    regard = [str(own / "bin/regard")]
    python = str(own / "bin/python")
    yield [], [str(_BIN / "uvx"), "--from", what, "regard"]
    yield [str(_BIN / "uv"), "tool", "install", what], regard
    yield [str(_BIN / "pipx"), "install", what], regard
    yield [sys.executable, "-m", "pip", "--python", python, "install", what], regard


def _first_page(command: list[str], settings: dict[str, str]) -> None:
    """Open the explorer without an extra, and wait for its page and its first run."""
    started = time.monotonic()
    line = [*command, "explore", "--no-open", TEXT]
    with subprocess.Popen(line, env=settings, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            address = re.search(r"http://\S+", process.stdout.readline() or "")
            assert address is not None, f"{line} printed no address"
            with urllib.request.urlopen(address[0], timeout=SECONDS) as page:  # noqa: S310 - http
                assert b"<title>" in page.read(), "it is a page"
        finally:
            process.terminate()
    seconds = time.monotonic() - started
    print(f"{Path(command[0]).name}: its first page after {seconds:.1f} s")
    assert seconds < SECONDS, f"within {SECONDS} s"


def _yank(index: PackageIndex, scratch: Path, version: str) -> None:
    """Yank it: who names no version gets none, who names this one still does."""
    index.yank("regard", version, "rehearsed")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(scratch)]
    for what, expected in (("regard", False), (f"regard=={version}", True)):
        settings = _settings(index, scratch)
        done = subprocess.run([*command, what], env=settings, capture_output=True, check=False)
        assert (done.returncode == 0) is expected, done.stderr.decode()
    print(f"yanked: {version} is installed by its version alone")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
