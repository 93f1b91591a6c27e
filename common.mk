# `make lab` sets .venv up first, so it is the only command that a new machine needs. A student's copy
# of a lab has these targets as its Makefile.

BIN := .venv/bin
# The system's own Python comes first: distributions build it with profile-guided optimization, and
# pyenv does not, unless it is asked to.
PYTHONS := /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11

# In any locale, files and the output of programs are UTF-8.
export PYTHONUTF8 := 1

.DEFAULT_GOAL := help
.PHONY: help setup lab doctor clean

help: ## show the targets
	@echo "make TARGET …; targets are:"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name does; \
		do printf '  %-10s %s\n' "$$name" "$$does"; done

# Uses the first suitable Python that also has venv and the headers, which Triton compiles with, or else
# the first suitable one. PYTHON=… chooses another one; .venv is then created again.
setup: ## create or refresh .venv; other targets do it when they need it (PYTHON=python3.12)
	@for try in 'import ensurepip; open(sysconfig.get_path("include") + "/Python.h")' pass; do \
	for python in $(or $(PYTHON),$(PYTHONS)); do \
		if $$python -c "import sys, sysconfig; $$try; \
			sys.exit(not (3, 11) <= sys.version_info < (3, 15))" 2>/dev/null; \
		then exec $$python -m parlab.setup.venv $(if $(PYTHON),--this-python); fi; \
	done; done; \
	echo "make setup: found no Python 3.11 to 3.14 named $(or $(PYTHON),python3). Install" \
		"one, or choose one with: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1

lab: setup ## open JupyterLab in labs/ (ARGS="--no-browser --port 8899")
	@$(BIN)/parlab lab $(ARGS)

doctor: setup ## check this machine, and report what it means for the labs
	@$(BIN)/parlab doctor $(ARGS)

clean: ## remove everything that was built, but not .venv
	@rm -rf _build .pytest_cache .ruff_cache .jupyter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
