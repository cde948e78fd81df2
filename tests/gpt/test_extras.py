"""Without the libraries of the extra, the import says how to get them."""

from __future__ import annotations

import subprocess
import sys

from regard._extras import install

LIBRARIES = ["filelock", "rich", "safetensors", "tokenizers"]
PROGRAM = """
import sys
import torch
loaded = {*sys.modules}
for library in sys.argv[1:]:
    sys.modules[library] = None
    try:
        import regard.gpt
    except ModuleNotFoundError as error:
        print(error)
    for name in {*sys.modules} - loaded:
        del sys.modules[name]
"""


def test_a_missing_library_is_named_with_the_cure():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *LIBRARIES], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"regard.gpt needs the library {library}: {install('gpt')}" for library in LIBRARIES
    ]
