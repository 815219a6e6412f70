# Everything a person or a CI machine needs. Only Python 3.11+ and access to package registries are assumed.
# On Debian and Ubuntu missing system packages are installed when that is allowed.

VENV ?= .venv
# An interpreter of your choice: make setup PYTHON=/path/to/python3.12
PYTHON ?=
# Passed on: make test ARGS="-k scheduler", make bench ARGS=--quick
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
EXTRAS := dev,docs,fast,plot
# Installed beforehand, from the lock like the rest: an isolated build would fetch whatever is newest.
BUILD := hatchling editables
# Installs in a quarter of the time. Where it cannot (it knows nothing of pip's settings) pip does it.
INSTALLER := uv

.DEFAULT_GOAL := help
.PHONY: help setup native test test-fast coverage lint format docs demo bench bench-roaming bench-paper bench-grid bench-mpquic interop fuzz lock clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1|/' | while IFS='|' read -r target text; do \
		printf '  make %-13s %s\n' "$$target" "$$text"; done

setup: $(STAMP)  ## create .venv and install everything, once

# Not part of setup: it needs cargo 1.88 or newer and a C compiler, and takes a minute or two.
native: $(STAMP)  ## build the native QUIC engine (quic_config.engine "noq") and put it into .venv
	@$(BIN)/python native/build.py

test: $(STAMP)  ## run all tests
	$(BIN)/python -m tests $(ARGS)

# What one runs while working: about a minute on two processors, no network, no root.
test-fast: $(STAMP)  ## run the unit tests and the simulator
	$(BIN)/python -m tests --fast $(ARGS)

# The protocol and the schedulers by their own tests and the simulator alone: what sockets reach by the way does not count.
coverage: $(STAMP)  ## measure which branches of the protocol and the schedulers tests reach, fail below 95 %
	rm -rf .coverage
	$(BIN)/coverage run -m pytest -q tests/unit/protocol tests/unit/schedulers tests/sim -m "not slow" -n auto $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

lint: $(STAMP)  ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

format: $(STAMP)  ## format the code and repair what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP)  ## build the documents as a site, in build/site
	$(BIN)/python -m docs.build

demo: $(STAMP)  ## run the roaming demo
	$(BIN)/multi demo $(ARGS)

# One part alone: make bench ARGS="hardening --quick". Parts: loopback, channel, payload, opening, everyday, everyuse,
# hardening, memory, counted, scale, crowd, floods, links, herd, quic, grid, workers, balancer.
bench: $(STAMP)  ## measure against other parties and write a report
	$(BIN)/python -m benchmarks $(ARGS)

bench-roaming: $(STAMP)  ## measure sessions whose networks come, go and die; goes on where it was interrupted
	$(BIN)/python -m benchmarks.roaming $(ARGS)

bench-grid: $(STAMP)  ## measure schedulers over a grid of unequal paths, in virtual time and on the testbed; resumable
	$(BIN)/python -m benchmarks.grid $(ARGS)

bench-mpquic: $(STAMP)  ## do four papers on multipath QUIC again, in virtual time and on the testbed; goes on where it was interrupted
	$(BIN)/python -m benchmarks.mpquic $(ARGS)

bench-paper: $(STAMP)  ## do the paper's evaluation again; goes on where it was interrupted, ARGS=--quick for a look
	$(BIN)/python -m benchmarks.paper $(ARGS)

# Not part of setup: there are no wheels for every machine. Without atheris inputs are made without knowing what they
# reach, and the command says so.
fuzz: $(STAMP)  ## try to break what reads foreign bytes: ARGS="--seconds 10 --target segment", ARGS=--list
	@$(BIN)/python -c 'import atheris' 2>/dev/null || PIP_DISABLE_PIP_VERSION_CHECK=1 \
		$(BIN)/python -m pip install -q --only-binary atheris -c constraints.txt --no-build-isolation -e '.[fuzz]' || \
		echo "fuzz: atheris cannot be installed here" >&2
	nice -n 19 $(BIN)/python -m tests.fuzz.run $(ARGS)

# Not part of the tests: picoquic comes with a wheel for Python 3.12 and newer, noq is built with cargo 1.88 or newer.
interop: $(STAMP)  ## multipath QUIC with picoquic and noq, both roles; what cannot be had is skipped and said
	$(BIN)/python -m tests.interop

clean:  ## remove what runs have left behind; .venv stays
	rm -rf build dist demo-out .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Shell functions of the recipes below.
define SHELL_FUNCTIONS
set -eu
say() { echo "setup: $$*" >&2; }

# good_python COMMAND: it runs and is new enough. A name on the PATH alone proves nothing (pyenv shims).
good_python() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
can_make_venv() { "$$1" -c 'import ensurepip, venv' 2>/dev/null; }

# One that gets its own functions from a shared library, as pyenv can build it, takes half as long again for everything.
needs_libpython() { "$$1" -c 'import sys; sys.exit("libpython" not in open("/proc/self/maps").read())' 2>/dev/null; }

# Sets python to the first good one that can make an environment and is quick, else to the first that can make one, else
# to the first good one, else to nothing.
find_python() {
	python= slow=
	for candidate in $${PYTHON:-python3.13 python3.12 python3.11 python3 /usr/bin/python3}; do
		good_python "$$candidate" || continue
		python=$${python:-$$candidate}
		can_make_venv "$$candidate" || continue
		if ! needs_libpython "$$candidate"; then python=$$candidate; return; fi
		slow=$${slow:-$$candidate}
	done
	python=$${slow:-$$python}
}

# Install system packages if this is Debian-like and we may; otherwise fail without a fuss.
install_system() {
	command -v apt-get >/dev/null || return 1
	sudo=
	if [ "$$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || return 1
		sudo=sudo
		[ -t 0 ] || sudo='sudo -n'
	fi
	say "installing system packages: $$*"
	$$sudo apt-get update -qq || true
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$@" >&2
}
endef
export SHELL_FUNCTIONS PYTHON

$(STAMP): pyproject.toml constraints.txt
	@eval "$$SHELL_FUNCTIONS"; \
	PATH="$$PATH:/usr/sbin:/sbin"; export PATH; \
	if ! command -v ip >/dev/null; then \
		install_system iproute2 || say "no 'ip' command: tests and demo in network namespaces will be skipped"; \
	fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1 || ! good_python $(BIN)/python; then \
		find_python; \
		if [ -z "$$python" ]; then \
			[ -n "$$PYTHON" ] || install_system python3 python3-venv || true; \
			find_python; \
		fi; \
		if [ -z "$$python" ]; then \
			say "Python 3.11 or newer is needed, found: $$(python3 --version 2>/dev/null || echo none)"; \
			say "install it, or name one: make setup PYTHON=/path/to/python3"; \
			exit 1; \
		fi; \
		if ! can_make_venv "$$python"; then \
			version=$$("$$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
			install_system "$$version-venv" || install_system python3-venv || true; \
		fi; \
		if ! can_make_venv "$$python"; then \
			say "$$python has no venv module; on Debian and Ubuntu: apt-get install python3-venv"; \
			exit 1; \
		fi; \
		say "creating $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv --clear $(VENV); \
	fi; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	say "installing packages"; \
	set -- install -q -c constraints.txt; \
	$(BIN)/python -m pip "$$@" $(BUILD); \
	$(BIN)/python -m pip "$$@" --only-binary $(INSTALLER) $(INSTALLER) 2>/dev/null || true; \
	set -- "$$@" --no-build-isolation -e '.[$(EXTRAS)]'; \
	$(BIN)/python -m uv pip "$$@" --python $(BIN)/python --compile-bytecode 2>/dev/null || $(BIN)/python -m pip "$$@"
	@touch $@

lock:  ## resolve the newest versions in a clean environment and write constraints.txt
	@eval "$$SHELL_FUNCTIONS"; \
	find_python; \
	[ -n "$$python" ] || { say "no Python 3.11 or newer"; exit 1; }; \
	directory=$$(mktemp -d); trap 'rm -rf "$$directory"' EXIT; \
	"$$python" -m venv "$$directory"; \
	"$$directory/bin/python" -m pip install -q --upgrade pip; \
	"$$directory/bin/python" -m pip install -q '.[$(EXTRAS)]' $(BUILD) $(INSTALLER); \
	{ \
		echo "# Exact versions of everything that 'make setup' installs, for Python 3.11 to 3.13."; \
		echo "# Made by: make lock PYTHON=python3.11 (the oldest, so that the versions suit all)"; \
		"$$directory/bin/python" -m pip freeze --exclude multi-session; \
	} > constraints.txt
