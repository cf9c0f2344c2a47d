# A thin front for CMake.
#   make            set up what is missing, build, run all steps, print their table
#   make step04     build ./step04 (likewise yardstick, the row with cuBLAS)
#   make table      build and measure everything on this GPU: docs/results/<gpu>.json, the speedup table, the figures in documents, docs/figures
#   make test       build and pass the tests (the GPU's too, where there is one)
#   make plots      draw the figures of the results in docs/results, or of RESULTS=file: docs/figures/*.svg (needs Matplotlib)
#   make exercise04 step04 with holes to fill in; make hunt1: a step with a bug to find; make playground: your kernel beside step04
#   make diff04     show what step04 changes of step03 (diff06, diff07 and diff09: of step04), in colour on a terminal
# Variables: BUILD=folder, JOBS=n, CMAKE_FLAGS="-DATTN_CUDA=OFF", RUN_FLAGS="--device cpu --seqlen 1024", TABLE_FLAGS="--dtype fp16"
MAKEFLAGS += --no-print-directory
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
STEPS := $(sort $(foreach file,$(notdir $(wildcard steps/step[0-9][0-9]_*.cu)),$(firstword $(subst _, ,$(file)))))
EXERCISES := $(sort $(foreach file,$(notdir $(wildcard docs/exercises/exercise[0-9][0-9]_*.cu)),$(firstword $(subst _, ,$(file)))))
HUNTS := $(addprefix hunt,1 2 3 4 5 6 7)
PROGRAMS := $(STEPS) $(EXERCISES) $(HUNTS) playground yardstick
DIFFS := $(patsubst step%,diff%,$(filter-out step00 step01,$(STEPS)))
# setup.sh leaves a newer CMake in .tools where the system's is older than 3.24. Looked up when used: setup.sh runs first.
CMAKE = $(shell [ -x .tools/bin/cmake ] && echo $(CURDIR)/.tools/bin/cmake || echo cmake)
CTEST = $(shell [ -x .tools/bin/ctest ] && echo $(CURDIR)/.tools/bin/ctest || echo ctest)

.NOTPARALLEL:  # CMake has its own -j
.PHONY: demo steps table test clean $(PROGRAMS) $(DIFFS)
# Step by step, so that the first result is there after the first build; the table runs them all once more.
demo: $(BUILD)/CMakeCache.txt
	@set -e; for step in $(STEPS); do \
	  $(MAKE) $$step; \
	  [ $$step = step00 ] || ./$$step $(RUN_FLAGS) | grep -E '^(step|exact)' || true; \
	done
	@python3 plots/tables/steps_table.py --folder $(BUILD) $(RUN_FLAGS)

steps: $(STEPS)

$(PROGRAMS): $(BUILD)/CMakeCache.txt
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target $@
	@ln -sf $(BUILD)/$@ $@
	@case $@ in hunt*) echo "$@ is built from $(BUILD)/variants/$@/steps";; esac

# A step is compared with the one before it, step06, step07 and step09 with the forward that they go on from. Both programs end with 1 where the files differ.
BEFORE_06 := step04
BEFORE_07 := step04
BEFORE_09 := step04
$(DIFFS): diff%:
	@set -- $(if $(BEFORE_$*),steps/$(BEFORE_$*)_*.cu steps/step$*_*.cu,$$(ls steps/step*_*.cu | grep -B 1 "^steps/step$*_")); \
	if command -v git > /dev/null; then git --no-pager diff --no-index --no-ext-diff --histogram --color=auto $$1 $$2; else diff -u $$1 $$2; fi; [ $$? -le 1 ]

# Without a GPU, or with --out elsewhere, nothing new can be drawn. The yardstick is a target only where CMake has found CUDA and cuBLAS.
RESULTS_SUM := cat docs/results/*.json 2> /dev/null | cksum
table: $(BUILD)/CMakeCache.txt
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target $(STEPS) $$($(CMAKE) --build $(BUILD) --target help | grep -ow yardstick | head -n 1)
	@before=$$($(RESULTS_SUM)); \
	python3 plots/measuring/measure.py --folder $(BUILD) $(TABLE_FLAGS) || exit; \
	[ "$$before" = "$$($(RESULTS_SUM))" ] || $(MAKE) plots || true

test: $(BUILD)/CMakeCache.txt
	@$(CMAKE) --build $(BUILD) -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD) --output-on-failure

# What was drawn from the same results stays as it is. Without Matplotlib the script says how to get it.
.PHONY: plots
plots:
	@$$(sh cmake/python_with.sh matplotlib || echo python3) plots/figures/draw_all.py $(RESULTS)

$(BUILD)/CMakeCache.txt:
	@./setup.sh
	@$(CMAKE) -S . -B $(BUILD) $(CMAKE_FLAGS) || { rm -f $@; exit 1; }

clean:
	rm -rf $(BUILD) $(PROGRAMS)
