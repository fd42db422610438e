PYTHON ?= python3
BIN := .venv/bin

.PHONY: help venv test lint pgtap parity test-docker test-embedded migration freeze demo bench clean

help: ## show these lines
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' Makefile | expand -t 16

venv: .venv/dev ## make the environment .venv with all that development needs

test: .venv/dev lint ## run every test; on Debian, root installs what they need first
	@tests/prerequisites.sh
	$(BIN)/pytest

lint: .venv/dev ## check the Python sources with ruff and mypy
	$(BIN)/ruff check
	$(BIN)/mypy

pgtap: .venv/dev ## run the pgTAP files in pgtap/
	@tests/prerequisites.sh
	$(BIN)/pytest tests/test_pgtap.py

parity: .venv/dev ## prove that migrations/ and sql/ build the same database
	$(BIN)/pytest tests/test_parity.py

test-docker: .venv/dev ## repeat what depends on the server on PostgreSQL 17 in Docker
	OUTBOX_TEST_DSN= OUTBOX_TEST_SERVER=docker $(BIN)/pytest -m 'not once'

test-embedded: .venv/dev ## repeat what depends on the server on PostgreSQL 18 from PyPI
	OUTBOX_TEST_DSN= OUTBOX_TEST_SERVER=embedded $(BIN)/pytest -m 'not once'

migration: .venv/dev ## draft migrations/NNNN.NAME.sql from what changed in sql/, or update the draft
	$(BIN)/python tests/tools/migrations.py draft $(NAME)

freeze: .venv/dev ## list every migration in migrations/SHA256SUMS: released, never changed again
	$(BIN)/python tests/tools/migrations.py freeze

demo: .venv/demo ## play a shop, or send the events of INPUT=file.jsonl; needs nothing but Python
	$(BIN)/python -m pgoutbox.demo $(if $(INPUT),--input "$(INPUT)")

bench: .venv/dev ## measure against the textbook outbox
	$(BIN)/python tests/bench

clean: ## remove what the other targets made
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo 'Python 3.10 or later is needed; PYTHON=python3.12 names another one'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
		{ echo "Python's venv is missing: install Debian's package python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ .venv/demo
