# A thin front for CMake.
#   make            set up what is missing, build, run all steps, print their table
#   make step04     build ./step04, with the tiles that it takes by default (likewise yardstick, the row with cuBLAS)
#   make step04-tiles  the same with all its tiles, for --sweep-tiles and --tile: a longer build
#   make step04-timeline  the same, and on a GPU --timeline shows which warp does what when, by its clock
#   make exercise04 step04 with holes to fill in; make hunt1: a step with a bug to find; make playground: your kernel beside step04
#   make diff04     show what step04 changes of the step before it, in colour on a terminal
#   make test       build and pass the tests (the GPU's too, where there is one)
#   make table      build and measure everything on this GPU: docs/results/<gpu>.json, the speedup table, the figures in documents, docs/figures
#   make plots      draw the figures of the results in docs/results, or of RESULTS=file (needs Matplotlib)
#   make films      the gallery: films/index.html, a page for each step that plays what the CPU executor saw of its kernel
#   make pictures   draw the stills of films and the timelines in docs/pictures anew (needs Chromium)
#   make clean      remove the build folder and the links to programs
# Variables: BUILD=folder, JOBS=n, CMAKE_FLAGS="-DATTN_CUDA=OFF", RUN_FLAGS="--device cpu --seqlen 1024", TABLE_FLAGS="--dtype fp16"
MAKEFLAGS += --no-print-directory
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
named = $(shell sed -n 's/^== \([^ ]*\).*/\1/p' docs/exercises/$(1).txt 2> /dev/null)
STEPS := $(sort $(foreach file,$(notdir $(wildcard steps/step[0-9][0-9]_*.cu)),$(firstword $(subst _, ,$(file)))))
PROGRAMS := $(STEPS) $(call named,exercises) $(call named,hunts) playground yardstick
KINDS := $(foreach kind,tiles timeline,$(addsuffix -$(kind),$(filter-out step00,$(STEPS))))
DIFFS := $(patsubst step%,diff%,$(filter-out step00 step01,$(STEPS)))
# setup.sh leaves a newer CMake in .tools where the system's is older than 3.24. Looked up when used: setup.sh runs first.
CMAKE = $(shell [ -x .tools/bin/cmake ] && echo .tools/bin/cmake || echo cmake)
CTEST = $(shell [ -x .tools/bin/ctest ] && echo .tools/bin/ctest || echo ctest)
CONFIGURE = $(CMAKE) -S . -B $(BUILD) $(CMAKE_FLAGS)
LINK = ln -sfn $(2) $(1) 2> /dev/null || echo "$(1) is $(2): no link to it can be made here"
KNOWS = grep -qw $(1) $(BUILD)/steps/known

.NOTPARALLEL:  # CMake has its own -j
.PHONY: demo help steps table test clean $(PROGRAMS) $(KINDS) $(DIFFS)
# Step by step, so that the first result is there after the first build; the table runs them all once more.
demo: $(BUILD)/CMakeCache.txt
	@set -e; for step in $(STEPS); do \
	  $(MAKE) $$step; \
	  [ $$step = step00 ] || $(BUILD)/$$step $(RUN_FLAGS) | grep -E '^(step|exact)' || true; \
	done
	@python3 plots/tables/steps_table.py --folder $(BUILD) $(RUN_FLAGS)

help:
	@sed -n '/^#   make/s/^#//p; s/^# Variables/Variables/p' Makefile

steps: $(STEPS)

# A step that is new since CMake last looked is no target yet.
$(PROGRAMS): $(BUILD)/CMakeCache.txt
	@case $@ in step*) $(call KNOWS,$@) || $(CONFIGURE) > /dev/null;; esac
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target $@
	@$(call LINK,$@,$(BUILD)/$@)
	@case $@ in hunt*) echo "$@ is built from $(BUILD)/variants/$@/steps";; esac

$(KINDS): $(BUILD)/CMakeCache.txt
	@$(call KNOWS,$(firstword $(subst -, ,$@))) || $(CONFIGURE) > /dev/null
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target $@
	@$(call LINK,$(firstword $(subst -, ,$@)),$(BUILD)/$(lastword $(subst -, ,$@))/$(firstword $(subst -, ,$@)))

# What the step itself says, once it is built; until then the one before it. Both programs end with 1 where the files differ.
$(DIFFS): diff%:
	@before=$$($(BUILD)/step$* --describe 2> /dev/null | sed -n 's/.*"before": *"\([^"]*\)".*/\1/p'); \
	set -- $$(if [ "$$before" ]; then ls steps/$${before}_*.cu; else ls steps/step[0-9][0-9]_*.cu | grep -B 1 "^steps/step$*_" | head -n 1; fi) steps/step$*_*.cu; \
	if command -v git > /dev/null; then git --no-pager diff --no-index --no-ext-diff --histogram --color=auto $$1 $$2; else diff -u $$1 $$2; fi; [ $$? -le 1 ]

# Without a GPU, or with --out elsewhere, nothing new can be drawn. The yardstick is a target only where CMake has found CUDA and cuBLAS.
RESULTS_SUM := cat docs/results/*.json 2> /dev/null | cksum
table: $(BUILD)/CMakeCache.txt
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target $(STEPS) step04-tiles $$($(CMAKE) --build $(BUILD) --target help | grep -ow yardstick | head -n 1)
	@before=$$($(RESULTS_SUM)); \
	python3 plots/measuring/measure.py --folder $(BUILD) $(TABLE_FLAGS) || exit; \
	[ "$$before" = "$$($(RESULTS_SUM))" ] || $(MAKE) plots || true

# Mutants, hunts and exercises follow the steps' text. One that an edit has left without its place fails alone, in its test.
test: $(BUILD)/CMakeCache.txt
	@$(CMAKE) --build $(BUILD) -j $(JOBS)
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target variants -- $(if $(wildcard $(BUILD)/build.ninja),-k 0,-k) || echo "go on: their tests say which are missing"
	@$(CTEST) --test-dir $(BUILD) --output-on-failure

# What was drawn from the same results stays as it is. Without Matplotlib the script says how to get it.
# The films are small: FILM_FLAGS chooses the problem.
FILM_FLAGS ?= --seqlen 256 --heads 2
.PHONY: films
films: steps
	@python3 plots/films/make_films.py --folder $(BUILD) --out films $(FILM_FLAGS)

# The pictures of films and timelines in docs/pictures.
.PHONY: pictures
pictures: steps
	@python3 plots/films/make_films.py --folder $(BUILD) --pictures docs/pictures

.PHONY: plots
plots:
	@$$(sh cmake/python_with.sh matplotlib || echo python3) plots/figures/draw_all.py $(RESULTS)

$(BUILD)/CMakeCache.txt:
	@./setup.sh
	@$(CONFIGURE) || { rm -f $@; exit 1; }

clean:
	rm -rf $(BUILD) $(PROGRAMS)
