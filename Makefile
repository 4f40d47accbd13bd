# Every target sets up what it needs: `make demo` and `make test` work on a fresh clone.
#   PYTHON       the Python to build .venv with (3.11 or newer)
#   EXTRAS       the optional dependencies that `make setup` installs
#   TORCH_INDEX  a package index to look for torch in, beside the usual one
#   PYTEST_ARGS  passed to pytest
#   WORKERS      processes that run tests or notebooks
#   SECONDS      how long `make fuzz` and `make fuzz-…` look; SEED is their first case

# Workers and the processes that tests start would each compile every source again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
EXTRAS ?= test,cpu,onednn,lab
PYTEST_ARGS ?=
WORKERS ?= auto
SECONDS ?= 600
SEED ?= 0
VENV := .venv/bin/python

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup peers strangers demo test lint types notebooks browser pictures unit sweep fuzz fuzz-bits fuzz-files fuzz-faults fuzz-interrupts trust lab format \
	bench-ablation bench-best-path bench-decode bench-forward bench-engine bench-fixed bench-bitwise bench-budgets bench-cluster bench-histories bench-imported bench-kernels bench-layout bench-memory bench-occlusion bench-optimize bench-optimum bench-packing bench-paths bench-predict bench-programs bench-remat \
	bench-schedule bench-scoring bench-specialise bench-stream bench-strangers bench-volumes bench-widgets bench-zoo gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create or update .venv
	@$(PYTHON) .ci/bootstrap.py --extras $(EXTRAS)

demo: setup ## the short tour
	@$(VENV) -m tgbench demo

# Pages and kernels that start leave the processor idle half of the time: tests fill it.
test: setup lint ## everything that CI checks
	@echo "== pytest; types, notebooks and browser beside it, shown at the end"
	@$(VENV) .ci/side_by_side.py "$(MAKE) --no-print-directory unit" \
		"$(MAKE) --no-print-directory WORKERS=1 types notebooks browser"

lint: setup ## style: ruff; which room may import which: import-linter
	@echo "== ruff"
	@$(VENV) -m ruff check .
	@$(VENV) -m ruff format --check .
	@echo "== import-linter"
	@$(dir $(VENV))lint-imports --no-logo --no-cache

types: setup ## types: mypy --strict
	@echo "== mypy (the first run reads torch's types and takes longer)"
	@$(VENV) -m mypy --strict tgbench

# One thread a worker: the workers already use every core. What reads notebooks takes 3 s to load.
unit: setup ## the tests alone: make unit PYTEST_ARGS='-k regions'
	@echo "== pytest"
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest -p no:nbval -n $(WORKERS) --dist worksteal --ignore=tests/browser $(PYTEST_ARGS)

# The same tests on ten times as many random cases, and other ones each time.
sweep: ## look longer: make sweep PYTEST_ARGS='-k packing'
	@TGBENCH_HYPOTHESIS=$${TGBENCH_HYPOTHESIS:-sweep} $(MAKE) --no-print-directory unit

# One thread and one process: several at once, each from a SEED of its own, use several cores.
fuzz: setup ## random graphs, edits and options beside torch: make fuzz SECONDS=600 SEED=0
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(VENV) -m fuzz --seconds $(SECONDS) --seed $(SEED)

# Every op with every kind of numbers, each run beside a new session; then random graphs.
fuzz-bits: setup ## bit-exact mode beside new sessions: make fuzz-bits SECONDS=600 SEED=0
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(VENV) -W ignore -m bits --seconds $(SECONDS) --seed $(SEED)

# Each file has 1 GB and 5 s, in a process that is killed and started again.
fuzz-files: setup ## damaged files of every kind: make fuzz-files SECONDS=600 SEED=0
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(VENV) -W ignore -m hostile --seconds $(SECONDS) --seed $(SEED)

# A run is stopped at one bytecode after the other, each once before one comes again.
fuzz-interrupts: setup ## runs interrupted anywhere: make fuzz-interrupts SECONDS=600 SEED=0
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 PYTHONHASHSEED=0 ../$(VENV) -W ignore -m interrupts --seconds $(SECONDS) --seed $(SEED)

# Writers are killed or run out of disk, a database is locked, a search loses its process.
fuzz-faults: setup ## faults of every kind: make fuzz-faults SECONDS=600 SEED=0
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(VENV) -W ignore -m faults --seconds $(SECONDS) --seed $(SEED)

# One process; what was counted stays in docs/results/trust.json, and a later call goes on from it.
trust: setup ## all that is promised, a slice of each in turns: make trust SECONDS=3600
	@cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 TGBENCH_CHECK=1 ../$(VENV) -W ignore -m trust --seconds $(SECONDS)

# Every notebook runs from its first cell to its last, and shows what it showed when it was written.
notebooks: setup ## run the notebooks and compare their outputs
	@echo "== notebooks"
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest -n $(WORKERS) --dist loadfile \
		--nbval --nbval-sanitize-with notebooks/sanitize.cfg --nbval-cell-timeout 300 notebooks

browser: setup ## the views in a real JupyterLab, where Chromium is there
	@echo "== browser"
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest -p no:nbval tests/browser

pictures: setup ## the README's pictures, made anew in a browser
	@OMP_NUM_THREADS=1 $(VENV) .ci/pictures.py

lab: setup ## JupyterLab on the notebooks
	@$(VENV) -m jupyter lab notebooks

format: setup ## rewrite the sources in the project's style
	@$(VENV) -m ruff check --fix .
	@$(VENV) -m ruff format .

# llama.cpp has no wheel and is built here, which takes a C++ compiler and a quarter of an hour: a
# machine without one compares with the others.
LLAMA := llama-cpp-python==0.3.36
LLAMA_OPTIONS := -DGGML_NATIVE=ON -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF
PEERS := .venv-peers/bin

peers: .venv-peers/made ## create or update .venv-peers: the systems that benches compare with

.venv-peers/made: benchmarks/peers/requirements.txt
	@$(PYTHON) -m venv .venv-peers
	@$(PEERS)/python -m pip install -q -r $< $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@PATH="$(CURDIR)/$(PEERS):$$PATH" CMAKE_ARGS="$(LLAMA_OPTIONS)" \
		$(PEERS)/python -m pip install -q --no-build-isolation $(LLAMA) \
		|| echo "llama.cpp could not be built: benches say so and go on without it"
	@touch $@

bench-decode: setup peers ## decode a token at a time, beside transformers and other systems
	@$(VENV) -m benchmarks.decode
	@$(VENV) -m benchmarks.decode --busy 1 --only gemma3-270m --repetitions 3 --output docs/results/decode-busy-one.json
	@$(VENV) -m benchmarks.decode --busy 2 --only gemma3-270m --repetitions 3 --output docs/results/decode-busy.json

bench-forward: setup peers ## everything computed, beside PyTorch and other systems
	@$(VENV) -m benchmarks.forward

bench-engine: setup ## the cost of the loop itself
	@$(VENV) -m benchmarks.engine

bench-fixed: setup ## what a run costs beside its calls, on small graphs
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.fixed

bench-ablation: setup ## what each part of the search for plans is worth
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.ablation

bench-optimize: setup ## plans beside online cache policies, on traces and budgets; real models, run
	@$(VENV) -m benchmarks.optimize --size small
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.planned

bench-histories: setup ## histories that do not repeat, beside PyTorch and full runs
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.histories
	@$(VENV) -W ignore -m benchmarks.histories --threads 2

bench-budgets: setup ## runs at budgets from the least to ample ones
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.budgets

bench-kernels: setup ## single-row kernels, numba beside torch
	@$(VENV) -m benchmarks.kernels

bench-bitwise: setup ## bit-exact mode: 200 edits, and what it costs
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.bitwise

bench-imported: setup ## an imported Gemma 3 beside the hand-built one
	@$(VENV) -m benchmarks.imported --atomic

bench-occlusion: setup ## occlusion maps of three CNNs, beside PyTorch
	@$(VENV) -m benchmarks.occlusion

bench-specialise: setup ## programs for new places of images
	@$(VENV) -m benchmarks.specialise

bench-programs: setup ## programs that are loaded, beside programs that are made
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.programs

bench-stream: setup ## a causal audio net, sample by sample
	@$(VENV) -m benchmarks.stream

# Libraries of models, without the torch that they ask for: what is in .venv serves them.
strangers: .venv-strangers/made ## create or update .venv-strangers: libraries of models that nothing here is built with

.venv-strangers/made: benchmarks/strangers.txt | setup
	@$(VENV) -m pip install -q --no-deps --upgrade --target .venv-strangers -r $<
	@touch $@

bench-strangers: setup strangers ## models of libraries that nothing here is built with, beside PyTorch
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.strangers

bench-volumes: setup ## video nets beside PyTorch
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.volumes

bench-layout: setup ## laying graphs of thousands of nodes out
	@$(VENV) -m benchmarks.layout

bench-zoo: setup ## models of transformers, imported and edited beside PyTorch
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.zoo_models

bench-widgets: setup ## views in JupyterLab: time to first paint, frames
	@$(VENV) -m benchmarks.widgets

bench-paths: setup ## ways to compute a model: expected against measured time
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.paths

bench-best-path: setup peers ## the best path that is found, beside other systems and in decoding
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.best_path

bench-cluster: setup ## a search on a Dask cluster of 1, 2 and 4 workers, and what it sends
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.cluster

bench-packing: setup ## offset packing, heuristics and search, beside CP-SAT
	@$(VENV) -m benchmarks.packing

bench-predict: setup ## predicted against measured time, bucket by bucket
	@OMP_NUM_THREADS=1 $(VENV) -m benchmarks.predict

bench-remat: setup ## rematerialising inside one run, beside online policies
	@$(VENV) -m benchmarks.remat

bench-memory: setup ## what a process holds while sessions go on, and after they are dropped
	@OMP_NUM_THREADS=1 $(VENV) -W ignore -m benchmarks.memory

bench-optimum: setup ## the search beside the exact optimum of small decision processes
	@$(VENV) -m benchmarks.optimum

bench-scoring: setup ## retentions scored a second, and what bounding them takes
	@$(VENV) -m benchmarks.scoring

bench-schedule: setup ## peaks of live bytes, before and after the search for an order
	@$(VENV) -m benchmarks.schedule

# A GPU machine has its own torch, so this uses its Python and makes no .venv.
gpu: ## GPU tests, with the Python and torch of the machine
	@$(PYTHON) -m pytest tests/gpu $(PYTEST_ARGS)

clean: ## remove .venv, .venv-peers, .venv-strangers, caches and build output
	@rm -rf .venv .venv-peers .venv-strangers build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
