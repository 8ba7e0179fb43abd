# The commands of this repository. What they do stands behind `##`; `make help` prints it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# `make test PROFILE=release` and `make quickstart PROFILE=release` use optimised builds. The
# default is one dev build for both, so that nothing is compiled twice.
PROFILE ?= dev
BINARIES := $(or $(CARGO_TARGET_DIR),target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
# Where RocksDB is and which Python has torch: tests/prepare finds out and writes it down.
ENVIRONMENT := source target/environment
PYTHON_FILES = $(shell git ls-files '*.py') tests/prepare

# Which seeds `make sim` tries, what it plants, at which point nodes crash, and where it keeps which were tried.
SEEDS ?= 1..1000
PLANTED ?=
CRASH ?=
SIM_OUT ?= $(or $(CARGO_TARGET_DIR),target)/seeds

# Which fuzz targets `make fuzz` runs, by default all, and for how many inputs each.
TARGET ?=
RUNS ?= 100000

# Programs with defects lie apart from all others.
PLANTED_BINARIES := $(or $(CARGO_TARGET_DIR),target)/planted

.PHONY: help quickstart demo-elastic demo-comm test launch-table upgrade-test check fix bench chaos chaos-rounds chaos-planted chaos-crash build-planted compose-test sim fuzz build

help: ## Print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## See it: 3 nodes, an agent, 4 PyTorch ranks, and the leader killed (NO_TORCH=1: no PyTorch)
	@tests/prepare build torch
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --bins
	@$(ENVIRONMENT); python3 tests/quickstart/quickstart.py --binaries $(BINARIES) \
		--python "$${HOLDFAST_PYTHON:-python3}"

demo-elastic: ## See it: rank 0's host and the leader killed at once, under torchrun and with holdfast.Job
	@tests/prepare build torch
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --bins
	@tests/prepare python
	@$(ENVIRONMENT); python3 tests/elastic/demo.py --binaries $(BINARIES)

demo-comm: ## See it: ranks of one DDP group and the leader killed; the group is formed anew in place
	@tests/prepare build torch
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --bins
	@tests/prepare python
	@$(ENVIRONMENT); python3 tests/elastic/comm.py --binaries $(BINARIES)

test: ## All tests; installs what is missing, saying what and why
	@tests/prepare build torch older-torch nccl hosts docs
	@# With the tests: built without them first, most crates would be compiled twice, with other features.
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins --tests
	@tests/prepare python
	@# No test runs this build, which is made for the defects and crash points alone.
	@$(ENVIRONMENT); cargo check --profile $(PROFILE) --package holdfast-chaos --features planted
	@$(ENVIRONMENT); if cargo nextest --version > /dev/null 2>&1; then \
		cargo nextest run --cargo-profile $(PROFILE) --workspace; \
		cargo test --profile $(PROFILE) --workspace --doc; \
	else \
		cargo test --profile $(PROFILE) --workspace --no-fail-fast; \
	fi
	@python3 -m unittest discover --start-directory tests/quickstart
	@python3 -m unittest discover --start-directory tests/docs
	@$(ENVIRONMENT); python3 tests/quickstart/quickstart.py --binaries $(BINARIES) \
		--python "$${HOLDFAST_PYTHON:-python3}"
	@$(ENVIRONMENT); python3 tests/elastic/demo.py --quick --binaries $(BINARIES)
	@$(ENVIRONMENT); python3 tests/elastic/comm.py --quick --binaries $(BINARIES)
	@$(ENVIRONMENT); tests/docs/docs.py --binaries $(BINARIES)
	@$(ENVIRONMENT); "$${HOLDFAST_PYTHON_TOOLS:-python3}" tests/docs/manifests.py --binaries $(BINARIES)
	@python3 tests/docker/compose_test.py

launch-table: ## All rows of the launch table, also DeepSpeed's and Ray's, which are installed for it (1 GB)
	@tests/prepare build torch older-torch hosts docs
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins --tests
	@tests/prepare python launchers
	@$(ENVIRONMENT); cargo test --profile $(PROFILE) --workspace --test all -- --test-threads 2 \
		launch:: capture:: published:: torch:: kubernetes:: hosts:: python::

upgrade-test: ## From the last release to this tree, node by node and agent by agent, under running jobs; and back
	@tests/prepare build docs
	@$(ENVIRONMENT); cargo build --workspace --bins
	@$(ENVIRONMENT); HOLDFAST_RELEASE_BINARIES="$$(tests/upgrade/build)"; export HOLDFAST_RELEASE_BINARIES; \
		cargo test --workspace --test upgrade -- --nocapture --test-threads 1; \
		tests/docs/docs.py --release "$$HOLDFAST_RELEASE_BINARIES" store/docs/upgrade.md

check: ## Formatting, clippy, docs, licences and sources of all crates; only reads
	@tests/prepare build check
	cargo fmt --all --check
	cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
	@$(ENVIRONMENT); set -x; cargo clippy --workspace --all-targets -- -D warnings
	@$(ENVIRONMENT); set -x; cargo clippy --workspace --all-targets --features holdfast-chaos/planted -- -D warnings
	@$(ENVIRONMENT); set -x; RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo deny --log-level error check licenses bans sources
	@if timeout 20 git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD > /dev/null 2>&1; \
		then cargo deny --log-level error check advisories; \
		else echo "SKIPPED: advisories: the advisory database, a git repository, cannot be reached from here"; fi
	@python3 -c 'import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]' $(PYTHON_FILES)
	@echo "make check: all good"

fix: ## Format, and apply what clippy can apply by itself; writes
	@tests/prepare build check
	cargo fmt --all
	cargo fmt --manifest-path tests/fuzz/Cargo.toml
	@$(ENVIRONMENT); set -x; cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

bench: ## The benchmarks (release build); arguments in ARGS
	@tests/prepare build hosts
	@$(ENVIRONMENT); cargo build --release --workspace --bins
	@$(ENVIRONMENT); cargo run --release --package holdfast-bench --bin holdfast-bench -- $(ARGS)

chaos: ## Five minutes of everything that can be broken on this machine, judged; arguments in ARGS
	@tests/prepare build
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --bins
	@$(BINARIES)/holdfast-chaos run $(if $(findstring --duration,$(ARGS))$(findstring --ops,$(ARGS)),,--duration 5min) $(ARGS)

chaos-rounds: ## 10 000 rounds, votes and blocks of jobs that are killed and paused, judged; arguments in ARGS
	@tests/prepare build
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins
	@$(BINARIES)/chaos-rounds $(ARGS)

chaos-planted: build-planted ## Defects in a build of their own, each to be found; arguments in ARGS (--quick, NAME...)
	@$(PLANTED_BINARIES)/holdfast-chaos planted $(ARGS)

chaos-crash: build-planted ## Nodes ended before and after each durable step, 20 times each; arguments in ARGS (--quick, NAME...)
	@$(PLANTED_BINARIES)/holdfast-chaos crash $(ARGS)

build-planted:
	@tests/prepare build
	@# In the folder of all others, so that only these crates are compiled twice; then those are put back.
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins --features holdfast-chaos/planted
	@mkdir -p $(PLANTED_BINARIES)
	@find $(BINARIES) -maxdepth 1 -type f -executable -exec cp {} $(PLANTED_BINARIES) \;
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins

compose-test: ## The compose file with an image made of the programs here, where no registry can be reached
	@tests/prepare build
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --workspace --bins
	@python3 tests/docker/compose_test.py --binaries $(BINARIES)

sim: ## Whole clusters in one thread, from the seeds SEEDS=1..1000; again goes on; PLANTED=NAME finds a defect
	@tests/prepare build
	@$(ENVIRONMENT); cargo build --profile sim --package holdfast-sim $(if $(PLANTED)$(CRASH),--features holdfast-api/planted)
	@$(or $(CARGO_TARGET_DIR),target)/sim/holdfast-sim --seeds $(SEEDS) --out $(SIM_OUT) \
		$(if $(PLANTED),--planted $(PLANTED) --until-found) $(if $(CRASH),--crash $(CRASH)) $(ARGS)

fuzz: ## Every decoder of bytes from outside, fed what an engine makes up; TARGET=NAME one; RUNS=100000 inputs
	@tests/prepare build
	@$(ENVIRONMENT); RUNS=$(RUNS) tests/fuzz/run $(TARGET)

build: ## The binaries: holdfast-store, holdfast, holdfast-agent
	@tests/prepare build
	@$(ENVIRONMENT); cargo build --profile $(PROFILE) --bins
	@echo "built into $(BINARIES)"
