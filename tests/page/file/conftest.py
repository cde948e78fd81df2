"""The page's modules under Node.js, which runs in a second what computes without a page."""

import json
import os
import shutil
import subprocess

import pytest

from regard.gpt import load
from regard.page.file.bundle import static_folder

# What each test's code begins with: a model as the page holds it, and numbers as JSON has them.
_BEGIN = """
import { readFileSync } from "node:fs";
import { inflated } from "./static/offline/bytes.js";
import { GPT } from "./static/kernels/gpt.js";
import { Kernels } from "./static/kernels/memory.js";
import { unpack } from "./static/live/weights.js";
const given = JSON.parse(readFileSync(process.argv[2], "utf8"));
const modelOf = async ({ config, tensors }, numbers) => {
  const kernels = await Kernels.of(readFileSync("./static/kernels.wasm"));
  const weights = Object.entries(unpack(await inflated(numbers), tensors));
  const kept = weights.map(([name, values]) => [name, kernels.keep(values)]);
  return new GPT(kernels, config, Object.fromEntries(kept));
};
const finished = (steps, lines = []) => {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return lines.length ? lines : value;
    if (value !== undefined) lines.push(value);
  }
};
const result = await (async () => {
"""
_END = """
})();
const text = JSON.stringify(result, (_, value) => (ArrayBuffer.isView(value) ? [...value] : value));
process.stdout.write(text, () => process.exit(0)); // though a channel of messages may be open
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """Run lines of JavaScript that return something, after these imports, on these data."""
    program = shutil.which("node")
    if program is None:
        message = "node is missing; it runs the page's modules without a browser"
        if os.environ.get("REGARD_BROWSER") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(static_folder(), folder / "static")
    (folder / "package.json").write_text('{"type": "module"}')

    def run(imports, code, data):
        lines = [f'import {{ {names} }} from "./static/{path}";' for path, names in imports.items()]
        (folder / "test.js").write_text("\n".join([*lines, _BEGIN, code, _END]))
        (folder / "data.json").write_text(json.dumps(data))
        command = [program, folder / "test.js", folder / "data.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def shipped():
    """The model that comes with regard."""
    return load(None)
