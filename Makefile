# stragd: what a person types. `make demo` and `make test` set up what they need.

export STRAGD_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/stragd
PYTHON := .venv/bin/python
# Real libraries that the tests attach to; tests/fetch_libraries.sh puts them there.
include_libraries = set -a; . "$(STRAGD_CACHE)/environment"; set +a;

PACKAGE_VERSION ?=
PACKAGE_ARCH ?=
# Of the emulated machine: bookworm (kernel 6.1) or trixie (6.12).
VM_RELEASE ?= bookworm

.PHONY: help setup setup-tests ncclring demo pictures deb wheel test lint test-rust test-python \
	test-vm bench format clean

help:
	@echo "make demo    watch a real training job with one slow rank, and name it (root)"
	@echo "make test    lint and run all tests (root)"
	@echo "make test-vm install, upgrade and remove the package in an emulated machine (root)"
	@echo "make setup   put stragd and stragctl into .venv/bin"
	@echo "make deb     build target/deb/stragd_VERSION_ARCH.deb"
	@echo "make wheel   build target/wheel/stragd-VERSION-cp310-abi3-linux_ARCH.whl"
	@echo "make pictures  README's pictures from a real run (root)"
	@echo "make bench   the measurements of docs/performance.md (about an hour, root)"
	@echo "make format  format Rust, Python and C"

setup:
	@scripts/setup

setup-tests:
	@scripts/setup tests

# The plugin for NCCL and RCCL: target/ncclring/libnccl-profiler-stragd.so.
ncclring:
	@$(MAKE) -s -C ncclring

demo:
	@[ "$$(id -u)" = 0 ] || { echo "demo: eBPF probes need root, and nothing was started." \
		"Run it as: sudo make demo"; exit 1; }
	@scripts/setup
	@$(PYTHON) scripts/demo.py

# README's pictures, from a real run (root).
pictures: setup-tests
	@$(include_libraries) $(PYTHON) scripts/pictures.py

# PACKAGE_VERSION names a snapshot: make deb PACKAGE_VERSION=0.1.0+git20261130
# PACKAGE_ARCH=arm64 on amd64, or the other way round, builds with a cross-compiler.
deb:
	@scripts/setup package $(PACKAGE_ARCH)
	@packaging/deb/build $(addprefix --arch ,$(PACKAGE_ARCH)) $(PACKAGE_VERSION)

wheel:
	@scripts/setup package
	@packaging/wheel/build

test: setup-tests lint test-rust test-python

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --features python -- -D warnings
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	clang-format --dry-run -Werror $(shell git ls-files '*.c' '*.h')

test-rust:
	$(include_libraries) cargo test --quiet -- --test-threads=2

test-python:
	$(include_libraries) $(PYTHON) -m pytest

test-vm:
	@scripts/setup vm
	@$(PYTHON) -m tests.vm --release $(VM_RELEASE)

bench: setup-tests
	$(include_libraries) $(PYTHON) -m bench

format:
	cargo fmt --all
	$(PYTHON) -m ruff check --fix --quiet .
	$(PYTHON) -m ruff format --quiet .
	clang-format -i $(shell git ls-files '*.c' '*.h')

clean:
	rm -rf target .venv .mypy_cache .ruff_cache .pytest_cache
