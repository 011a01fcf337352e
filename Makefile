# `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
UV_VERSION := $(shell sed -n 's/^uv==//p' requirements-dev.txt)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: lock
lock: ## pin every package again (requirements.txt, requirements-dev.txt) from pyproject.toml
	$(VENV)/bin/uv pip compile -q --universal --no-emit-index-url --no-emit-find-links --python-version 3.11 pyproject.toml -o requirements.txt
	$(VENV)/bin/uv pip compile -q --universal --no-emit-index-url --no-emit-find-links --python-version 3.11 --group dev -c requirements.txt -o requirements-dev.txt
