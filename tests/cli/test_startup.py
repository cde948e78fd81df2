"""What needs no computation imports no library that is slow to be imported."""

import json

from support.processes import run_script

import regard

SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from regard.cli.app import run

done = []
for arguments in {lines}:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        status = run(arguments)
    slow = {{"numpy", "pandas", "pydantic", "rich", "torch"}} & {{*sys.modules}}
    done.append([status, len(errors.getvalue().splitlines()), sorted(slow)])
print(json.dumps(done))
"""
HELP = [["--help"], ["--version"], ["explain", "--help"], ["train", "--help"]]
MISUSE = """
nonsense
explain --nonsense
explain --layer 1
explain --layer x --head 0
explain x --query -1
explain x --view move
explain x --role second
explain x --sort size
explain x --device nowhere
explain x --dtype int3
explain x --dtype float16
explain x --weights int4
explain x --weights int8 --device cuda
explain x --fetch
explain x --model runs/mien
explain x --model none.gguf
explain x --model ollama:none
explain owner/model
explain --file none.txt
explain x --file none.txt
effects x --over values
trace --file none.md --question why
trace --file {here} --question why --by words
trace --file {here} --question why --by passages --hidden-from all
trace --file {here} --question why --by passages --hops 2
trace none.gguf --file {here} --question why
explore --port 65536
explore --recording none
explore --recording {folder} --chat
report x --model none.gguf
report --live --weights int8
generate
generate x --tokens -1
generate x --past wrap
generate x --temperature -1
generate x --model none.gguf
train --steps 3
train --out {folder}/new --steps -1
train --out {folder}/new --text none.txt
train --out {folder}/new --config none.toml
prepare --text none.txt --out {folder}/new
prepare --text {here} --out {folder}/new --tokenizer none
atlas --corpus none.txt --out {folder}/new
atlas --corpus {here} --out {folder}/new --tokens many
atlas none.gguf --corpus {here} --out {folder}/new
"""


def answers(lines):
    """Status, number of lines of errors, and what slow libraries are imported, after each."""
    return json.loads(run_script(SCRIPT.format(lines=lines), fresh=True).splitlines()[-1])


def test_a_help_imports_no_slow_library():
    assert answers(HELP) == [[0, 0, []]] * len(HELP)


def test_what_is_wrong_with_an_argument_is_said_before_a_slow_library_is_imported(tmp_path):
    lines = MISUSE.format(here=__file__, folder=tmp_path).split("\n")[1:-1]
    for line, answer in zip(lines, answers([line.split() for line in lines]), strict=True):
        assert answer == [2, 1, []], line


IMPORT = """
import sys
import torch
before = {*sys.modules}
import regard
dir(regard)
brought = {*sys.modules} - before
packages = {name.partition(".")[0] for name in brought} - {*sys.stdlib_module_names}
print(len(brought), sorted(packages))
from regard import attention, causal
print(len({name for name in sys.modules if name.startswith("regard")}))
"""


def test_importing_it_loads_few_modules_and_beside_its_own_torchs_alone():
    first, second = run_script(IMPORT).splitlines()
    count, _, packages = first.partition(" ")
    assert int(count) < 10
    assert packages == "['regard']"
    assert int(second) < 100  # attention itself, which the face brings when it is asked for
    assert {*regard.__all__} <= {*dir(regard)}
