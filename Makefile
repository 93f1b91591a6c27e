# `make lab` and `make test` are all that a fresh machine needs: each sets .venv up first.

.PHONY: test book notebooks grade bench gpu-check mutants lock

include common.mk # help, setup, lab, doctor, clean

test: ## set everything up, then run all that CI runs (ARGS="-k data" for some of it)
	@.ci/packages
	@$(MAKE) --no-print-directory setup
	@echo "Style"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . || { echo "make test: mend" \
		"the style: $(BIN)/ruff check --fix . && $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS) || { echo "make test: what failed is" \
		"listed above; run it alone with: make test ARGS=--last-failed" >&2; exit 1; }

book: setup ## build the book into _build/html (EDITION=student: without the solutions)
	@$(BIN)/parlab book --edition $(or $(EDITION),full)

notebooks: setup ## derive labs and solutions from solutions/*.py; run what changed (ARGS=--check)
	@$(BIN)/parlab notebooks $(ARGS)

grade: setup ## grade a class (LAB=01_mpi SUBMISSIONS=class/ OUT=grades ARGS="--jobs 4")
	@test -n "$(LAB)" && test -n "$(SUBMISSIONS)" || { echo "make grade: name lab and" \
		"submissions, as in: make grade LAB=01_mpi SUBMISSIONS=class/ OUT=grades" >&2; exit 2; }
	@$(BIN)/parlab grade $(LAB) $(SUBMISSIONS) --out $(or $(OUT),grades) $(ARGS)

bench: setup ## measure reference against library; writes _build/bench.json
	@$(BIN)/python -m benchmarks $(ARGS)

# Not after `setup`: a node may have torch, and no way to fetch anything else.
gpu-check: ## all that wants a GPU, with this node's own torch; writes _build/gpu-check.json
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) -m parlab.gpu_check $(ARGS)

mutants: setup ## change the references a little: do the checks notice? (ARGS="ring_shift")
	@$(BIN)/python -m parlab.mutation $(ARGS)

# torch's CUDA build names its own exact packages, and no other build has them: none of them here.
lock: setup ## write requirements.txt from requirements.in (UPGRADE=1: newer versions)
	@$(BIN)/uv pip compile requirements.in --output-file requirements.txt --universal \
		--python-version 3.11 --fork-strategy fewest --annotation-style line --quiet --system-certs \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
	@sed -i.before -E '/^(cuda|nvidia)-/d' requirements.txt && rm requirements.txt.before
	@echo "requirements.txt is written: the next make installs it"
