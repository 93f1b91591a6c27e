# `make lab` and `make test` are all that a fresh machine needs: each sets .venv up first.

.PHONY: test test-all quick book pdf notebooks grade bench gpu-check mutants lock

include common.mk # help, setup, lab, doctor, clean

# In the order that conftest.py gives: the longest tests start first.
IN_PARALLEL := -n auto --dist loadgroup --no-loadscope-reorder

test: ## set everything up, then test it, in 15 to 20 minutes (ARGS="-k data" for some of it)
	@$(call tested,$@,tests.support.second_run,-m "not nightly")

test-all: ## run the slow tests, too: more ranks, whole labs, attacks, Slurm
	@$(call tested,$@,pytest,)

quick: setup ## check the style, and run the unit tests, in a minute and a half
	@$(style)
	@$(BIN)/python -m pytest $(IN_PARALLEL) -m "not nightly" tests/unit $(ARGS)

define tested
.ci/packages $(1)
$(MAKE) --no-print-directory setup
$(style)
$(BIN)/python -m $(2) $(IN_PARALLEL) $(3) $(ARGS) || { echo "make $(1): what failed is listed" \
	"above; run it alone with: make $(1) ARGS=--last-failed" >&2; exit 1; }
endef

define style
echo "Style"
$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . || { echo "make $@: fix the" \
	"style: $(BIN)/ruff check --fix . && $(BIN)/ruff format ." >&2; exit 1; }
endef

book: setup ## build the book into _build/html (EDITION=student: without the solutions)
	@$(BIN)/parlab book --edition $(or $(EDITION),full)

pdf: setup ## print the book that `make book` built into _build/pdf/parlab.pdf (EDITION=student)
	@$(BIN)/parlab pdf --edition $(or $(EDITION),full)

notebooks: setup ## derive labs and solutions from solutions/*.py; run what changed (ARGS=--check)
	@$(BIN)/parlab notebooks $(ARGS)

grade: setup ## grade a class (LAB=01_mpi SUBMISSIONS=class/ OUT=grades ARGS="--jobs 4")
	@test -n "$(LAB)" && test -n "$(SUBMISSIONS)" || { echo "make grade: name lab and" \
		"submissions, as in: make grade LAB=01_mpi SUBMISSIONS=class/ OUT=grades" >&2; exit 2; }
	@$(BIN)/parlab grade $(LAB) $(SUBMISSIONS) --out $(or $(OUT),grades) $(ARGS)

bench: setup ## measure reference against library; writes _build/bench.json
	@$(BIN)/python -m benchmarks $(ARGS)

# Not after `setup`: a node may have torch, and no way to fetch anything else.
gpu-check: ## check what uses a GPU, with this node's own torch; writes _build/gpu-check.json
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) -m parlab_staff.gpu_check $(ARGS)

mutants: setup ## test whether checks notice small changes of the references (ARGS="ring_shift")
	@$(BIN)/python -m parlab_staff.mutants $(ARGS)

# torch's CUDA build names its own exact packages, and no other build has them: none of them here.
lock: setup ## write requirements.txt from requirements.in (UPGRADE=1: newer versions)
	@$(BIN)/uv pip compile requirements.in --output-file requirements.txt --universal \
		--python-version 3.11 --fork-strategy fewest --annotation-style line --quiet --system-certs \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
	@sed -i.before -E '/^(cuda|nvidia)-/d' requirements.txt && rm requirements.txt.before
	@echo "requirements.txt is written: the next make installs it"
