# `make run` and `make test` need only Python >= 3.11; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
NATIVE := CMakeLists.txt pyproject.toml $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.inl')

# Where the environment forbids it: pytest takes as long to prepare all tests as to import them, each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-coverage test-rest lint docs nightly soak attacks wheel bench bench-peers suites models setup oracles test-native \
  frameworks test-frameworks test-beside clean

# What the models inside the package can do: a command, a statement, a story.
TASK := extract a gzipped tar archive
TABLE := Table players (name, team, home city, points)
QUESTION := What is the home city of the Lions?
OPENING := It was a cold evening, and the old house at the end of the lane

run: $(VENV)/.installed
	@printf '\n> %s\n' "$(TASK)"; $(BIN)/headrace run "$(TASK)" < /dev/null
	@printf '\n> %s\n> %s\n' "$(TABLE)" "$(QUESTION)"; printf '%s\n%s' "$(TABLE)" "$(QUESTION)" | $(BIN)/headrace run -
	@printf '\n> %s\n' "$(OPENING)"; $(BIN)/headrace run novelette --raw --max-tokens 120 --seed 7 "$(OPENING)" < /dev/null

test: test-coverage test-rest

# Every line and branch of the pages, the prefix tree and the scheduler; the slow walk through their states is not needed.
COVERED = tests/kv $(filter-out %_states.py,$(wildcard tests/engine/test_schedule*.py))
test-coverage: $(VENV)/.test
	$(PYTEST) -n $(WORKERS) --dist loadgroup $(COVERED) \
	  --cov=headrace.kv --cov=headrace.engine.scheduler.scheduler --cov=headrace.engine.fair_queue --cov-branch --cov-fail-under=100

# `make nightly` empties it.
AND_NOT_LONG = and not nightly
test-rest: $(VENV)/.test
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m 'not soak and not alone $(AND_NOT_LONG)' --durations 25 $(addprefix --ignore=,$(COVERED))
	$(PYTEST) -m 'alone and not soak $(AND_NOT_LONG)' $(ALONE_TESTS)
	set -e; for isa in $(OTHER_ISAS); do \
	  echo "== with HEADRACE_ISA=$$isa"; HEADRACE_ISA=$$isa $(PYTEST) -n $(WORKERS) -m isas $(ISA_TESTS); done

# Named here, so that not every file is read again.
ALONE_TESTS = $(shell grep -rl --include='test_*.py' 'pytest.mark.alone' tests)
ISA_TESTS = $(shell grep -rl --include='test_*.py' 'pytest.mark.isas' tests)
# What this machine has beside the instruction set that is used unless another is asked for.
OTHER_ISAS = $$($(BIN)/python -c "from headrace import _native as n; print(*({*n.usable_isas()} - {n.isa()}))")

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(MAKE) -s docs

# The documentation site in build/site; every warning, such as a link to nowhere, is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# Spills of the built kernels; the C++ tests under ASan+UBSan and TSan, then, where qemu-user is, built for ARM and run
# there. What passed is recorded in native/verified.txt, to be committed with the sources.
test-native: $(VENV)/.installed
	scripts/test_native.sh $(BIN)

# Everything of the gate (.ci/run) without its limits on time: no stage is skipped, all instruction sets of this machine
# under sanitizers, more steps, requests and damaged files.
nightly: export TEST_STATE_STEPS ?= 100000
nightly: export TEST_EXACT_TRIALS ?= 3000
nightly: export TEST_SPECULATION_TRIALS ?= 10000
nightly: export TEST_API_EXAMPLES ?= 500
nightly: export TEST_API_EVERY ?= 1
nightly: export TEST_SAMPLER_EXAMPLES ?= 300
nightly: export TEST_PRIVATE_REQUESTS ?= 500
nightly: export TEST_MIXED_REQUESTS ?= 10000
nightly: export TEST_DAMAGED_FILES ?= 300
nightly: export TEST_PROVIDER_FAULTS ?= 10000
nightly: export TEST_POSTGRES_REQUESTS ?= 1000
nightly: export TEST_DRAFT_HITS ?= 1000
nightly: export TEST_CERTIFICATES ?= 10000
nightly: export TEST_RAY ?= 1
nightly: run lint oracles
	$(PIP) --no-compile --group cluster --group web --group deploy # Ray; Playwright; Helm
	if command -v npm >/dev/null; then npm ci --silent --prefix web; fi # the page is built anew and compared
	scripts/test_native.sh --all $(BIN)
	$(MAKE) test AND_NOT_LONG=
	$(MAKE) test-frameworks
	$(MAKE) wheel

# Torch and transformers: some tests compare with them, and are skipped without.
oracles: $(VENV)/.test
	$(PIP) --no-compile --group oracles # of their files few are ever imported

# A wheel for any Linux with a glibc as old as its name says, in dist/, and proof that it works without a compiler.
wheel: $(VENV)/.installed
	$(PIP) --group wheel
	scripts/build_wheel.sh $(BIN)
	scripts/test_wheel.sh $(PYTHON)

# In a folder of their own: litellm wants an older openai than the tests of the API do.
frameworks: $(VENV)/.frameworks

# What the gate runs while lint has the other core. At last all tests are prepared, so that the rest begins sooner.
test-beside: test-coverage
	$(MAKE) test-frameworks
	mkdir -p build; $(PYTEST) --collect-only -qq > build/collected.txt || { tail build/collected.txt; exit 1; }
test-frameworks: $(VENV)/.frameworks
	PYTHONPATH=$(VENV)/frameworks $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/frameworks -W default

bench: $(VENV)/.installed
	$(BIN)/python bench/engine_step.py
	$(BIN)/python bench/scheduler.py
	$(BIN)/python bench/sampling.py
	$(BIN)/python bench/kernels/linear.py
	$(BIN)/python bench/serving/streaming.py

# Beside other engines, which are built below PEERS: hours, and it goes on where it was stopped. MORE has further flags
# of the script (--help), as MORE="--peers llama.cpp --cases decode1 --fresh".
HARNESS ?= ../shared/bench
MODELS ?= A,B
PAIRS ?= 5
bench-peers: $(VENV)/.installed
	$(if $(PEERS),,$(error PEERS is not given: name a folder for the other engines, PEERS=FOLDER))
	@$(BIN)/python bench/peers/compare.py $(PEERS) --harness $(HARNESS) --models $(MODELS) --pairs $(PAIRS) $(MORE)

# Public test suites (llama.cpp's server, the SDKs of OpenAI and Anthropic, JSON-Schema-Test-Suite): counts and misses in
# bench/results/suites.md. ONLY=openai,llama.cpp runs some of them; RESUME=--resume goes on
# where a run of llama.cpp's suite was stopped.
suites: $(VENV)/.test
	$(BIN)/python scripts/suites/run.py $(if $(ONLY),--only $(ONLY)) $(RESUME)

# The recipes of the shipped chat models, end to end: many hours on a CPU, and they go on where they were stopped.
DATA ?= ../shared/data
WORK ?= build/models
SHIPPED := src/headrace/bundled

models: $(VENV)/.train
	$(BIN)/python train/mini.py --data $(DATA) --work $(WORK)/mini --out $(SHIPPED)/mini
	$(BIN)/python train/nano.py --data $(DATA) --teacher $(SHIPPED)/mini --work $(WORK)/nano --out $(SHIPPED)/nano
	$(BIN)/python train/evaluate.py --data $(DATA) --model $(SHIPPED)/mini --card mini
	$(BIN)/python train/evaluate.py --data $(DATA) --model $(SHIPPED)/mini --draft $(SHIPPED)/nano --card nano
	mkdir -p $(WORK)/embed $(WORK)/tagger
	cp $(SHIPPED)/mini/tokenizer.json $(WORK)/embed/
	cp $(SHIPPED)/mini/tokenizer.json $(WORK)/tagger/
	$(BIN)/python train/embed.py --data $(DATA) --work $(WORK)/embed --out $(SHIPPED)/embed \
	  --start $(SHIPPED)/mini/model.safetensors
	$(BIN)/python train/tagger.py --data $(DATA) --work $(WORK)/tagger --out $(SHIPPED)/tagger \
	  --start $(SHIPPED)/mini/model.safetensors
	$(BIN)/python train/evaluate_encoders.py --data $(DATA) --model $(SHIPPED)/embed --card embed
	$(BIN)/python train/evaluate_encoders.py --data $(DATA) --model $(SHIPPED)/tagger --card tagger

# What a server does under attack, beside what a well-behaved client sees of it.
attacks: $(VENV)/.test
	PYTHONPATH=tests/reliability $(BIN)/python tests/attacks/attack_driver.py

soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak -o faulthandler_timeout=0

setup: $(VENV)/.test $(VENV)/.lint $(VENV)/.docs

# The build's own tools live in the environment, so that a rebuild after a change is incremental.
$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'pip>=25.1' # the first that knows dependency groups
	$(PIP) --group build
	@touch $@

$(VENV)/.installed: $(VENV)/.base $(NATIVE)
	$(BIN)/python scripts/build.py
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) --group test
	@touch $@

$(VENV)/.train: $(VENV)/.installed
	$(PIP) --no-build-isolation -e '.[train]'
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) --group lint
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --group docs
	@touch $@

$(VENV)/.frameworks: $(VENV)/.test
	$(PIP) --no-compile --upgrade --target $(VENV)/frameworks --group frameworks
	@touch $@

clean:
	rm -rf $(VENV) build dist
