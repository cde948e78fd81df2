"""What needs no computation imports no library that computes, which takes seconds."""

import json

import pytest
from support.processes import run_script

SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr
from regard.cli.app import run

with redirect_stderr(io.StringIO()) as errors:
    status = run({arguments})
computing = {{"numpy", "pandas", "torch"}} & {{*sys.modules}}
print()
print(json.dumps([status, len(errors.getvalue().splitlines()), sorted(computing)]))
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["explain", "--help"], 0),
        (["train", "--help"], 0),
        (["generate", "--help"], 0),
        (["explain", "--nonsense"], 2),
        (["explain", "--layer", "1"], 2),
        (["nonsense"], 2),
    ],
)
def test_what_needs_no_computation_imports_no_library_that_computes(arguments, status):
    last = run_script(SCRIPT.format(arguments=arguments)).splitlines()[-1]
    assert json.loads(last) == [status, int(status != 0), []]
