# `make lab` is all that a fresh machine needs: it sets .venv up first. These targets are also what
# a student's copy of a lab has, as its Makefile.

BIN := .venv/bin
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11

.DEFAULT_GOAL := help
.PHONY: help setup lab doctor clean

help: ## show this
	@echo "make TARGET …; targets are:"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name does; \
		do printf '  %-10s %s\n' "$$name" "$$does"; done

# The first Python that fits; PYTHON=… names another one, and .venv is made anew where it differs.
setup: ## create or refresh .venv; targets that need it do so by themselves (PYTHON=python3.12)
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
		if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
			2>/dev/null; \
		then exec $$python -m parlab.venv $(if $(PYTHON),--this-python); fi; \
	done; \
	echo "make setup: no Python 3.11 to 3.14 under the name $(or $(PYTHON),python3): install" \
		"one, or name one, as in: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1

lab: setup ## open JupyterLab in labs/ (ARGS="--no-browser --port 8899")
	@$(BIN)/parlab lab $(ARGS)

doctor: setup ## say what this machine has, and what that means for the labs
	@$(BIN)/parlab doctor $(ARGS)

clean: ## remove what was built; .venv stays
	@rm -rf _build .pytest_cache .ruff_cache .jupyter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
