"""The page names the scores of heads as the package does, in its order."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import regard
from regard.record.heads import SCORES

NODE = shutil.which("node")
SCRIPT = Path(regard.__file__).parent / "page" / "static" / "quantities.js"


@pytest.mark.skipif(NODE is None, reason="node reads the page's module")
def test_the_page_has_the_scores_of_the_package():
    program = f"""
import {{ SCORES }} from {json.dumps(SCRIPT.as_uri())};
console.log(JSON.stringify(SCORES));
"""
    command = [NODE, "--input-type=module", "-e", program]
    names = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert tuple(names) == SCORES
