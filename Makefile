# `make lab` and `make test` are all that a fresh machine needs: each sets .venv up first.

BIN := .venv/bin
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11

.DEFAULT_GOAL := help
.PHONY: help setup lab test book notebooks grade bench doctor lock clean

help: ## show this
	@echo "make TARGET …; targets are:"
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name does; \
		do printf '  %-10s %s\n' "$$name" "$$does"; done

# The first Python that fits; PYTHON=… names another one, and .venv is made anew where it differs.
setup: ## create or refresh .venv; every other target does so when needed (PYTHON=python3.12)
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
		if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
			2>/dev/null; \
		then exec $$python -m parlab.venv $(if $(PYTHON),--this-python); fi; \
	done; \
	echo "make setup: no Python 3.11 to 3.14 under the name $(or $(PYTHON),python3): install" \
		"one, or name one, as in: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1

lab: setup ## open JupyterLab in labs/ (ARGS="--no-browser --port 8899")
	@$(BIN)/parlab lab $(ARGS)

test: setup ## run everything that CI runs (ARGS="-k data" for some of it)
	@$(BIN)/parlab doctor --need chromium --need bubblewrap
	@echo "Style"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . || { echo "make test: mend" \
		"the style: $(BIN)/ruff check --fix . && $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/python -m pytest $(ARGS) || { echo "make test: what failed is" \
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

doctor: setup ## say what this machine has, and what that means for the labs
	@$(BIN)/parlab doctor $(ARGS)

# torch's CUDA build names its own exact packages, and no other build has them: none of them here.
lock: setup ## write requirements.txt from requirements.in (UPGRADE=1: newer versions)
	@$(BIN)/uv pip compile requirements.in --output-file requirements.txt --universal \
		--python-version 3.11 --fork-strategy fewest --annotation-style line --quiet --system-certs \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
	@sed -i.before -E '/^(cuda|nvidia)-/d' requirements.txt && rm requirements.txt.before
	@echo "requirements.txt is written: the next make installs it"

clean: ## remove what was built; .venv stays
	@rm -rf _build .pytest_cache .ruff_cache .jupyter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
