"""What only a process of its own can show: how it ends, and what it imports.

Few, for most of them import torch.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import run_script

posix = pytest.mark.skipif(os.name != "posix", reason="signals and closed pipes are POSIX's")


def start(*arguments, program=("-m", "regard"), **streams):
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **streams,
    )


@posix
def test_a_reader_that_is_gone_is_no_error():
    with start("--help") as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.thorough
@posix
def test_a_reader_that_stops_reading_is_no_error(model):
    with start("generate", "the cat", "--tokens", "100000", "--model", model) as process:
        assert process.stdout.read(7) == b"the cat"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.thorough
@posix
def test_ctrl_c_ends_with_130_and_says_nothing(model):
    with start("generate", "the cat", "--tokens", "100000", "--model", model) as process:
        assert process.stdout.read(7) == b"the cat"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait() == 130


INTERRUPTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
SCRIPT = "import sys\nfrom regard.cli import main\nsys.exit(main())\n"  # as pip installs it


@posix
@pytest.mark.parametrize(
    ("program", "arguments", "module"),
    [
        (("-m", "regard"), ["explain"], "torch"),
        (("regard",), ["--help"], "regard.cli.app"),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (
                (("-m", "regard"), ["explain"], "numpy"),
                (("-m", "regard"), ["--help"], "regard.cli.app"),
                (("-m", "regard"), ["explain"], "tokenizers"),
                (("regard",), ["explain"], "torch"),
            )
        ),
    ],
)
def test_ctrl_c_while_a_library_is_imported_ends_with_130_and_says_nothing(
    tmp_path, monkeypatch, program, arguments, module
):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    (tmp_path / "regard").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("INTERRUPTED_AT", module)
    if program == ("regard",):
        program = (tmp_path / "regard",)
    with start(*arguments, program=program) as process:
        assert process.stdout.read() == f"{module}\n".encode()
        assert process.stderr.read() == b""
        assert process.wait() == 130


@posix
def test_ctrl_c_in_a_program_that_imports_regard_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("INTERRUPTED_AT", "torch")
    program = "try:\n import regard\n regard.attention\nexcept KeyboardInterrupt:\n print('mine')"
    with start(program=("-c", program)) as process:
        assert process.stdout.read() == b"torch\nmine\n"
        assert process.wait() == 0


@pytest.mark.thorough
@posix
def test_a_report_cut_short_is_no_error(model):
    with start("explain", "the cat sat on the cat", "--model", model) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_reported_in_one_line():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "regard", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"regard: ")
    assert done.stderr.count(b"\n") == 1


LATER = {
    *("anywidget", "click", "fastapi", "filelock", "huggingface_hub", "matplotlib", "pandas"),
    *("pydantic", "rich", "safetensors", "tokenizers", "transformers", "uvicorn"),
}


def test_nothing_is_imported_before_it_is_needed(tmp_path):
    """One process after the other would import regard anew; here each step may bring its own."""
    program = f"""
import sys, regard
for name in {{*regard.__all__}} - {{"explore", "gpt", "models", "report"}}:
    getattr(regard, name)
import regard.lens.circuits
print("torch" in sys.modules, {LATER} & {{*sys.modules}})
from regard.cli.app import run
run(["explain", "the cat sat on the cat"])
from regard.nn import MultiHeadAttention
import torch
with regard.record() as recording, torch.no_grad():
    MultiHeadAttention(6, 2, mask=regard.causal())(torch.randn(1, 5, 6))
regard.report(recording, {str(tmp_path / "r.html")!r})
print({{"fastapi", "starlette", "uvicorn", "pandas", "transformers"}} & {{*sys.modules}})
"""
    lines = run_script(program).splitlines()
    assert (lines[0], lines[-1]) == ("True set()", "set()")
    assert (tmp_path / "r.html").stat().st_size > 0
