"""Without the libraries of the extra, the import says how to get them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from regard._extras import install


@pytest.mark.parametrize("library", ["filelock", "rich", "safetensors", "tokenizers"])
def test_a_missing_library_is_named_with_the_cure(library):
    code = f"import sys; sys.modules[{library!r}] = None; import regard.gpt"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last == (
        f"ModuleNotFoundError: regard.gpt needs the library {library}: {install('gpt')}"
    )
