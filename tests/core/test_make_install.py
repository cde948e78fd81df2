"""What the Makefile installs, and what it prints."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading typer-0.29.2-py3-none-any.whl (121 kB)\n", "typer 0.29.2 (121 kB)"),
        ("  Downloading typer-0.29.2-py3-none-any.whl.metadata (16 kB)\n", ""),
        ("Downloading torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (180.5 MB)\n",
         "torch 2.13.0+cpu (180.5 MB)"),
        ("  Using cached antlr4-4.9.3.tar.gz (117 kB)\n", "antlr4 4.9.3 (117 kB)"),
        ("Processing /a/b/rich-15.0.0-py3-none-any.whl (from typer)\n", "rich 15.0.0"),
        ("  Building editable for regard (pyproject.toml): started\n",
         "Building editable for regard …"),
        ("  Building editable for regard (pyproject.toml): finished with status 'done'\n", ""),
        ("Installing collected packages: a, b, c\n", "Installing 3 packages …"),
        ("Collecting typer>=0.15 (from regard==0.1.0)\n", ""),
        ("Looking in indexes: https://pypi.org/simple\n", ""),
    ],
)  # fmt: skip
def test_a_line_of_pip_is_a_package_a_long_step_or_nothing(install, line, shown):
    assert install.progress_of(line) == shown


PIP = """
import sys
print("Looking in links")
print("Processing /x/a-1.0-py3.whl")
print("a warning", sys.argv[-1], file=sys.stderr)
sys.exit(sys.argv[-1] in {fails})
"""


@pytest.mark.parametrize(
    ("fails", "status", "steps"), [([], 0, 2), (["--group=test"], 1, 2), (["pip>=25.1"], 1, 1)]
)
def test_pip_is_upgraded_first_and_warnings_are_shown_only_where_it_fails(
    install, monkeypatch, tmp_path, capfd, fails, status, steps
):
    (tmp_path / "pip.py").write_text(PIP.format(fails=fails))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert install.main("test") == status
    out, err = capfd.readouterr()
    assert out == "  a 1.0\n" * steps
    assert err == "".join(
        f"Looking in links\nProcessing /x/a-1.0-py3.whl\na warning {step}\n" for step in fails
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("target", "groups"), [("demo", ""), ("lint", " test")])
def test_a_target_installs_what_it_needs(target, groups, tmp_path):
    command = ["make", "--dry-run", "--always-make", f"VENV={tmp_path / 'venv'}", target]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    python = f"PYTHON={sys.executable}"
    done = subprocess.run(
        [*command, python], cwd=ROOT, env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # A make below another is as dry, and takes everything as old once more: the same line again.
    assert {line for line in done.stdout.splitlines() if "install.py" in line} == {
        f"{tmp_path / 'venv'}/bin/python tools/install.py{groups}"
    }


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_where_llama_cpp_cannot_be_installed_a_line_says_so(tmp_path):
    folder = tmp_path / "llama"
    python = tmp_path / "python"  # in whose environments every installation fails
    python.write_text(f"#!/bin/sh\nmkdir -p {folder}/bin; ln -s $(which false) {folder}/bin/python")
    python.chmod(0o755)
    made = subprocess.run(
        ["make", "--silent", f"PYTHON={python}", f"LLAMA={folder}", "bench-llama"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        f"llama.cpp is not measured, since it can't be installed: {folder}/errors.txt"
    ]
