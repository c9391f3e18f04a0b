# Builds libmoepage, its command-line tools and its tests (GNU make, no recursion into directories).
#
#   make               lib/libmoepage.so.0, lib/libmoepage.a, build/bin/*
#   make demo          installs what is missing, builds, runs the demonstration
#   make test T=name   the tests of that name: programs, scripts, single cases
#   make check         installs what is missing, runs what an edit can break: tests/README.md
#   make check-later   the studies, and what follows a GPU's machine or its compiler: what check leaves out
#   make check-long    every program plain, sanitized and under TSan, with more rounds; the studies
#   make check-device  the kernels' suites, from the PTX that nvcc makes of them, and their machine code read:
#                      tests/ptx/README.md, tests/sass/README.md
#   make check-layers  the order of the folders, and the headers that they show
#   make asan | ubsan | tsan    the test programs under one sanitizer
#   make coverage      lines run, room by room
#   make check-python  the same of the Python package, with transformers, in an environment of its own
#   make check-llama   the plug-in for llama.cpp, with the llama.cpp of PyPI, which it builds outside the tree
#   make abi | docs    the tests of headers and exports, of documents
#   make man           a manual page for every function
#   make fuzz TARGET=trace [FUZZ_SECONDS=60]    libFuzzer on one target: tests/fuzz/README.md
#   make llama GGML=DIR         lib/libggml-moepage.so, for llama.cpp: docs/llama.md
#   make sim           a simulated GPU for programs and tools: docs/cuda.md
#   make gpu-first | gpu-check | gpu-bench | gpu-pack       on a real one: docs/gpu-status.md
#   make compile_commands                       for editors
#   make install | uninstall                    to $(DESTDIR)$(PREFIX)
#
# Variables: CC CXX NVCC CFLAGS LDFLAGS BUILD LIB PREFIX DESTDIR; CUDA=0 leaves the CUDA module out,
# CUDA=1 insists on it; NUMA=0 leaves libnuma out; WERROR=1 makes warnings errors; V=1 shows
# commands. A new source, tool or test file needs no change here: the lists below are found by name.

BUILD    ?= build
LIB      ?= lib
PREFIX   ?= /usr/local
CFLAGS   ?= -O2 -g
CXX      ?= g++
NVCC     ?= nvcc
CUDA     ?= auto
NUMA     ?= auto
CUDA_ARCHS ?= 80 90
SAN      ?=
WERROR   ?= 0
V        ?= 0
TEST_TIMEOUT ?= 300

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDEXPANSION:
MAKEFLAGS += --no-builtin-rules
Q := $(if $(filter 0,$(V)),@)
comma := ,
version_part = $(shell sed -n 's/^.define MOEPAGE_VERSION_$(1) *//p' include/moepage.h)
VERSION := $(call version_part,MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)
export CC CXX NVCC CUDA NUMA CFLAGS CPPFLAGS LDFLAGS WERROR BUILD LIB TEST_TIMEOUT PKGS

# ---- What there is -------------------------------------------------------------------------

# One object directory per set of sanitizers; only the plain build writes to lib/.
CONFIG  := $(if $(SAN),$(subst $(comma),-,$(SAN)),release)
OBJ     := $(BUILD)/$(CONFIG)
BIN     := $(if $(SAN),$(OBJ)/bin,$(BUILD)/bin)
ARCHIVE := $(if $(SAN),$(OBJ),$(LIB))/libmoepage.a
SHARED  := $(if $(SAN),,$(LIB)/libmoepage.so.0)

SIMULATED_SRC := $(sort $(wildcard src/simulated/*.c))
LIB_SRC      := $(filter-out $(SIMULATED_SRC),$(sort $(wildcard src/*/*.c)))
TOOL_SRC     := $(sort $(wildcard examples/*.c))
PLUGIN_SRC   := $(sort $(wildcard examples/cuda/*.c))
SIM_SRC      := $(sort $(wildcard examples/sim/*.c))
LLAMA_SRC    := $(sort $(wildcard examples/llama/*.c))
PART_SRC     := $(filter-out $(PLUGIN_SRC) $(SIM_SRC) $(LLAMA_SRC),$(sort $(wildcard examples/*/*.c)))
TEST_SRC     := $(sort $(wildcard tests/*/test_*.c))
SUPPORT_SRC  := $(filter-out $(TEST_SRC) $(foreach d,bench cuda fuzz gpu hosts sim suite walk,tests/$(d)/%), \
                             $(sort $(wildcard tests/*/*.c)))
FUZZ_SRC     := $(sort $(wildcard tests/fuzz/fuzz_*.c))
GPU_BENCH_SRC := $(sort $(wildcard tests/gpu/bench_*.c))
TEST_SCRIPTS := $(sort $(wildcard tests/*/test_*.sh))
CUDA_SRC     := $(sort $(wildcard cuda/*.c))
KERNEL_SRC   := $(sort $(wildcard cuda/kernels/*.cu))

objects   = $(patsubst %.c,$(OBJ)/%.o,$(1))
LIB_OBJ  := $(call objects,$(LIB_SRC))
TOOLS    := $(TOOL_SRC:examples/%.c=$(BIN)/%)
FUZZERS  := $(FUZZ_SRC:%.c=$(OBJ)/%)
fuzzers   = $(FUZZ_SRC:%.c=$(BUILD)/$(1)/%)
items     = $(foreach p,$(2),$(BUILD)/$(1)/suites/$(call suite_of,$(p)):$(notdir $(p)))
programs  = $(call items,$(1),$(PROGRAMS)) $(fuzzers)

# Why the CUDA module is not built, in words; empty when it is.
have_nvcc = $(shell command -v $(NVCC) 2>/dev/null)
NO_CUDA  := $(if $(filter 0,$(CUDA)),CUDA=0,$(if $(have_nvcc),,no nvcc))
ifeq ($(CUDA) $(NO_CUDA),1 no nvcc)
$(error CUDA=1, but '$(NVCC)' is not on PATH: set NVCC, or leave CUDA out)
endif

# Why the library binds memory to no NUMA node, in words; empty when it does.
have_numa = $(shell pkg-config --exists numa 2>/dev/null && echo y)
NO_NUMA  := $(if $(filter 0,$(NUMA)),NUMA=0,$(if $(have_numa),,no libnuma))

# ---- Flags ---------------------------------------------------------------------------------

# Only packages whose header some source includes are asked for and linked.
uses = $(if $(shell grep -rlsF 'include <$(1)>' src | head -1),$(2))
PKGS := $(strip $(call uses,jansson.h,jansson) $(call uses,xxhash.h,libxxhash) \
                $(call uses,zstd.h,libzstd) $(if $(NO_NUMA),,$(call uses,numaif.h,numa)))
# What a benchmark compares with, where it is installed.
BENCH_PKGS := $(if $(shell pkg-config --exists liblz4 2>/dev/null && echo y),liblz4)

# Asked once, and only when a recipe needs it: `make setup` must work without pkg-config.
once = $(eval $(1) := $(shell $(2)))$($(1))
# 12040 = 12.4, as the driver counts.
nvcc_version = $(call once,nvcc_version,$(NVCC) --version | \
    sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | \
    { read a b && echo $$((a * 1000 + b * 10)); })
PKG_CFLAGS = $(if $(PKGS),$(call once,PKG_CFLAGS,pkg-config --cflags $(PKGS)))
PKG_LIBS   = $(if $(PKGS),$(call once,PKG_LIBS,pkg-config --libs $(PKGS)))
BENCH_LIBS = $(if $(BENCH_PKGS),$(call once,BENCH_LIBS,pkg-config --libs $(BENCH_PKGS)))

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
            $(if $(filter 1,$(WERROR)),-Werror)

# -ffp-contract=off: otherwise, where a compiler fuses a * b + c depends on the instruction set of
# the file and on its version, and the same sum would differ in the last bit from one CPU to the
# next. Fused multiply-adds are written where they are meant.
BASE_FLAGS := -std=gnu11 -D_GNU_SOURCE -fPIC -pthread -ffp-contract=off $(WARNINGS) \
              $(if $(filter numa,$(PKGS)),-DMP_NUMA)

# Tests and sanitized builds are optimised for being built: at -O1 that takes half to two thirds of the
# time, and runs are no slower (GCC's guess at truncated text is made for -O2).
QUICK := -O1 -g1 -Wno-format-truncation

# GCC clears the upper halves of vector registers on leaving AVX code only with this, which -O2 has. Without
# it all scalar code behind the first vector kernel is up to thirty times slower on Intel's processors.
IS_CLANG    := $(findstring clang,$(shell $(CC) --version 2>/dev/null))
CLEAN_UPPER := $(if $(IS_CLANG),,-fexpensive-optimizations)

# The shipped library keeps no assert, for it never aborts, and what only asserts use is unused in
# it; sanitized builds have both. Recovering from an undefined operation would hide it from the exit
# status.
ifeq ($(SAN),)
BASE_FLAGS += -DNDEBUG -Wno-unused-function -Wno-unused-variable -Wno-unused-but-set-variable
else
SAN_FLAGS := $(QUICK) $(CLEAN_UPPER) -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif

# What makes a test file's main() one program of its suite.
AS_PROGRAM = -include tests/suite/program.h -DPROGRAM=$(*F)

COMPILE = $(CC) $(BASE_FLAGS) $(CFLAGS) $(SAN_FLAGS) $(PKG_CFLAGS) $(CPPFLAGS)
LINK    = $(CC) -pthread $(SAN_FLAGS) $(LDFLAGS) -Wl,--as-needed

$(OBJ)/src/%.o:      PART = -DMOEPAGE_BUILD -fvisibility=hidden -Iinclude -Isrc $(ISA)
$(OBJ)/examples/%.o: PART = -Iinclude -Iexamples -Iexamples/common
$(OBJ)/examples/sim/%.o $(OBJ)/examples/moepage-sim.o: \
                     PART = -Iinclude -Isrc -Iexamples -Iexamples/common
$(OBJ)/cuda/%.o:     PART = -DMOEPAGE_BUILD -fvisibility=hidden -Iinclude -Isrc -Icuda $(TOOLKIT)
$(OBJ)/cuda/entry.o $(OBJ)/cuda/toolkit: \
                     TOOLKIT = $(if $(NO_CUDA),,-DMP_CUDA_TOOLKIT=$(nvcc_version))
$(OBJ)/cuda/ranges.o: TOOLKIT = $(if $(NO_CUDA),,-isystem $(dir $(have_nvcc))../include)
$(OBJ)/tests/%.o:    PART = -UNDEBUG -Iinclude -Isrc -Icuda -Itests/support -Itests/conformance \
                       -Iexamples $(QUICK)

# Code for one instruction set lives in a file of its own, chosen at run time.
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
AVX2       := -mavx2 -mfma -mf16c
AVX512     := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
$(OBJ)/src/device/%_avx2.o:       ISA = $(AVX2)
$(OBJ)/src/device/%_avx512.o:     ISA = $(AVX512)
# One function for each format or width, math and number of rows, all inlined: sanitizers and optimizers
# together take long for them. Of the two largest only the memory is checked, by calls: checks in line take
# three times as long to compile.
ONLY_MEMORY := $(if $(findstring undefined,$(SAN)),-fno-sanitize=undefined) \
               $(if $(SAN),$(if $(IS_CLANG),,--param asan-instrumentation-with-call-threshold=0))
$(OBJ)/src/device/host_integers_avx512.o: ISA = $(AVX512) $(if $(SAN),-O0)
$(OBJ)/src/device/host_blocks_avx512.o:   ISA = $(AVX512) $(ONLY_MEMORY)
$(OBJ)/src/device/host_blocks_avx2.o:     ISA = $(AVX2) $(ONLY_MEMORY)
$(OBJ)/src/device/host_int8_avx2.o:       ISA = $(AVX2) $(if $(SAN),-O0)
$(OBJ)/src/device/host_int8_vnni.o $(OBJ)/src/device/host_int8_vnni_row.o: \
                                          ISA = $(AVX512) -mavx512vnni $(if $(SAN),-O0)
endif

# ---- Library and tools ---------------------------------------------------------------------

.PHONY: all lib tools tests cuda setup
all: lib tools cuda
lib: $(ARCHIVE) $(SHARED)
tools: $(TOOLS)

# Says which packages are missing, once per build directory.
$(BUILD)/setup.ok: .ci/setup
	$(Q).ci/setup check && mkdir -p $(@D) && touch $@

# Objects are rebuilt when the compiler or its flags change.
$(OBJ)/flags: FORCE | $(BUILD)/setup.ok
	$(Q)mkdir -p $(@D); echo '$(COMPILE) $(AS_PROGRAM)' | cmp -s - $@ || \
	    echo '$(COMPILE) $(AS_PROGRAM)' >$@
FORCE:

$(OBJ)/%.o: %.c $(OBJ)/flags
	@echo "  CC    $<"
	$(Q)mkdir -p $(@D) && $(COMPILE) $(PROGRAM) $(PART) -MMD -MP -c $< -o $@

$(ARCHIVE): $(LIB_OBJ)
	@echo "  AR    $@$(if $(NO_NUMA), ($(NO_NUMA): host memory is bound to no NUMA node))"
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcsD $@ $^

$(LIB)/libmoepage.so.0: $(LIB_OBJ) lib/moepage.map
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,-soname,libmoepage.so.0 \
	    -Wl,--version-script=lib/moepage.map -Wl,-z,now -Wl,-z,relro -Wl,-z,defs \
	    $(LIB_OBJ) $(PKG_LIBS) -ldl -lm -o $@ && ln -sf libmoepage.so.0 $(LIB)/libmoepage.so

# Simulated devices, and models without weights: not in the library that is shipped. The clients'
# tests load a library that has them too.
SIMULATED        := $(OBJ)/libmoepage-sim.a
SIMULATED_SHARED := $(OBJ)/simulated/libmoepage.so.0
$(SIMULATED): $(call objects,$(SIMULATED_SRC))
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcsD $@ $^
$(SIMULATED_SHARED): $(call objects,$(SIMULATED_SRC)) $(LIB_OBJ) lib/moepage.map
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,-soname,$(@F) -Wl,--version-script=lib/moepage.map \
	    -Wl,-z,defs $(filter %.o,$^) $(PKG_LIBS) -ldl -lm -o $@

# Tools see the public header and the shared library alone, as any host program would; but for
# moepage-sim, which simulates, and runs the library's policies and controllers by themselves too.
$(OBJ)/examples/libparts.a: $(call objects,$(PART_SRC))
$(OBJ)/examples/libsim.a: $(call objects,$(SIM_SRC))
$(OBJ)/examples/libparts.a $(OBJ)/examples/libsim.a:
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcsD $@ $^

LINK_TOOL = $(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
            $(filter-out %.o %.a,$^) $(PKG_LIBS) $(BENCH_LIBS) -ldl -lm -o $@
tool_needs = $(OBJ)/examples/$(1).o $(OBJ)/examples/libparts.a $(if $(filter moepage-sim,$(1)),\
             $(OBJ)/examples/libsim.a $(SIMULATED) $(ARCHIVE),$(or $(SHARED),$(ARCHIVE)))
$(TOOLS): $(BIN)/%: $$(call tool_needs,$$*)
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(LINK_TOOL) -Wl,-rpath,$(abspath $(LIB))

# As they are installed: they find the library beside the directory that they are in.
INSTALLED := $(filter $(BIN)/moepage-%,$(TOOLS))
INSTALLED := $(INSTALLED:$(BIN)/%=$(OBJ)/install/%)
$(INSTALLED): $(OBJ)/install/%: $$(call tool_needs,$$*)
	$(Q)mkdir -p $(@D) && $(LINK_TOOL) -Wl,-rpath,'$$ORIGIN/../lib'

# The CUDA module is C, built everywhere: the tests run it over a simulated driver. Only its
# kernels, and so the shared object, need nvcc: machine code for CUDA_ARCHS, and the last one's PTX
# for newer GPUs.
CUDA_DEVICE := $(OBJ)/libcuda-device.a
$(OBJ)/cuda/entry.o $(OBJ)/cuda/ranges.o: $(OBJ)/cuda/toolkit
$(OBJ)/cuda/toolkit: FORCE
	$(Q)mkdir -p $(@D); echo '$(TOOLKIT)' | cmp -s - $@ || echo '$(TOOLKIT)' >$@
$(CUDA_DEVICE): $(call objects,$(filter-out cuda/entry.c cuda/services.c,$(CUDA_SRC)))
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcsD $@ $^

cuda: $(if $(NO_CUDA)$(SAN),,$(LIB)/libmoepage-cuda.so $(BIN)/libmoepage-generate-cuda.so)
FATBINS  := $(KERNEL_SRC:cuda/kernels/%.cu=$(BUILD)/cuda/%.fatbin)
NEWEST    = $(lastword $(CUDA_ARCHS))
GENCODE   = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
            -gencode arch=compute_$(NEWEST)$(comma)code=compute_$(NEWEST)
NVCC_LINE = $(NVCC) -O3 -std=c++17 -Icuda -Isrc -Iinclude $(GENCODE) $(NVCCFLAGS)
$(BUILD)/cuda/nvcc: FORCE
	$(Q)mkdir -p $(@D); echo '$(NVCC_LINE) # $(nvcc_version)' | cmp -s - $@ || \
	    echo '$(NVCC_LINE) # $(nvcc_version)' >$@
# -fmad=false for what -ffp-contract=off is for in C.
$(BUILD)/cuda/%.fatbin: cuda/kernels/%.cu $(wildcard cuda/kernels/*.h) $(BUILD)/cuda/nvcc \
    src/device/path_mail.h src/device/fast_scratch.h
	@echo "  NVCC  $<"
	$(Q)$(NVCC_LINE) -fmad=false -fatbin $< -o $@
# The PTX that is in between, for the machine of tests/ptx.
PTX := $(foreach a,$(CUDA_ARCHS),$(KERNEL_SRC:cuda/kernels/%.cu=$(BUILD)/cuda/ptx/$(a)/%.ptx))
.PHONY: ptx
ptx: $(if $(NO_CUDA),,$(PTX))
$(PTX): $(BUILD)/cuda/ptx/%.ptx: cuda/kernels/$$(notdir $$*).cu $(wildcard cuda/kernels/*.h) \
    $(BUILD)/cuda/nvcc src/device/path_mail.h src/device/fast_scratch.h
	@echo "  PTX   $< for $(patsubst %/,%,$(dir $*))"
	$(Q)mkdir -p $(@D) && $(filter-out $(GENCODE),$(NVCC_LINE)) -fmad=false -ptx \
	    -arch=compute_$(patsubst %/,%,$(dir $*)) $< -o $@
$(OBJ)/cuda/images.o: cuda/images.S $(FATBINS)
	$(Q)mkdir -p $(@D) && $(CC) -c -Wa,-I$(BUILD)/cuda $< -o $@
# What it shares with the library it takes from the archive, and keeps to itself.
$(LIB)/libmoepage-cuda.so: $(call objects,$(CUDA_SRC)) $(OBJ)/cuda/images.o $(ARCHIVE) \
    cuda/entry.map
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,--version-script=cuda/entry.map -Wl,-z,now \
	    -Wl,-z,relro -Wl,-z,defs $(filter %.o,$^) $(ARCHIVE) $(PKG_LIBS) -ldl -lm -o $@

# The plug-in for llama.cpp, against the headers of the one that will load it: GGML is the folder `ggml` of its
# sources. What it calls of ggml it finds in the process that loads it. SAN gives one with sanitizers, in the folder of
# its objects. These are made anew when GGML is another.
LLAMA_LIB := $(if $(SAN),$(OBJ),$(LIB))/libggml-moepage.so
.PHONY: llama
$(OBJ)/ggml: FORCE
	$(Q)mkdir -p $(@D); echo '$(GGML)' | cmp -s - $@ || echo '$(GGML)' >$@
$(call objects,$(LLAMA_SRC)): PART = -Iinclude -Iexamples/llama -isystem $(GGML)/include \
    -isystem $(GGML)/src -fvisibility=hidden
$(call objects,$(LLAMA_SRC)): $(OBJ)/ggml
llama: $(LLAMA_LIB)
$(LLAMA_LIB): $(call objects,$(LLAMA_SRC)) $(ARCHIVE)
	@echo "  LD    $@"
	$(Q)$(LINK) -shared -Wl,--exclude-libs,ALL $(filter %.o,$^) $(ARCHIVE) $(PKG_LIBS) -ldl -lm -o $@
ifneq ($(filter llama,$(MAKECMDGOALS)),)
$(if $(wildcard $(GGML)/src/ggml-backend-impl.h),,$(error make llama GGML=DIR: DIR is the folder ggml of \
    llama.cpp's sources, and has src/ggml-backend-impl.h))
endif

# What moepage-generate loads to run a whole model on a GPU: C, and kernels of its own.
PLUGIN_OBJ := $(call objects,$(PLUGIN_SRC))
PLUGIN_LD   = $(LINK) -shared -Wl,--version-script=examples/cuda/plugin.map -Wl,-z,defs \
              $(filter %.o,$^) $(OBJ)/examples/libparts.a -ldl -lm -o
$(BUILD)/cuda/examples/dense.fatbin: $(wildcard examples/cuda/*.cu examples/cuda/*.h) \
    $(BUILD)/cuda/nvcc
	@echo "  NVCC  $<"
	$(Q)mkdir -p $(@D) && $(NVCC_LINE) -fatbin $< -o $@
$(OBJ)/examples/cuda/images.o: examples/cuda/images.S $(BUILD)/cuda/examples/dense.fatbin
	$(Q)mkdir -p $(@D) && $(CC) -c -Wa,-I$(BUILD)/cuda/examples $< -o $@
$(BIN)/libmoepage-generate-cuda.so: $(PLUGIN_OBJ) $(OBJ)/examples/cuda/images.o \
    $(OBJ)/examples/libparts.a examples/cuda/plugin.map
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(PLUGIN_LD) $@

# ---- Tests ---------------------------------------------------------------------------------

$(OBJ)/tests/libsupport.a: $(call objects,$(SUPPORT_SRC))
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcsD $@ $^

# The programs of a folder are linked into one suite, $(OBJ)/suites/<folder>, in which each keeps its name;
# those that put themselves between the library and the system in a way of their own are a suite alone.
PROGRAMS := $(TEST_SRC:tests/%.c=%)
ALONE    := fault/test_cuda_device fault/test_host_device fault/test_numa unit/test_no_numa \
            unit/test_pack_read unit/test_route_cost
suite_of  = $(if $(filter $(ALONE),$(1)),$(subst /test_,-,$(1)),$(patsubst %/,%,$(dir $(1))))
in_suite  = $(foreach p,$(2),$(if $(filter $(1),$(call suite_of,$(p))),$(p)))
suites_of = $(sort $(foreach p,$(1),$(call suite_of,$(p))))
SUITES   := $(call suites_of,$(PROGRAMS))
TEST_OBJ := $(call objects,$(TEST_SRC))
$(TEST_OBJ): PROGRAM = $(AS_PROGRAM)

# With gold, where there is one, a link takes a third of the time.
TEST_LINK = $(LINK) $(call once,GOLD,command -v ld.gold >/dev/null && echo -fuse-ld=gold)
wrapped   = $(patsubst %,-Wl$(comma)--wrap=%,$(1))
$(OBJ)/%/fault: WRAP = $(call wrapped,mp_alloc mp_realloc)
$(OBJ)/%/fault-cuda_device: WRAP = $(call wrapped,mp_alloc mp_realloc mp_thread_start \
                                     mp_host_memory_map mp_host_memory_unmap)
$(OBJ)/%/fault-host_device: WRAP = $(call wrapped,mp_alloc mp_realloc mp_thread_start \
                                     mmap munmap mprotect madvise)
$(OBJ)/%/fault-numa: WRAP = $(call wrapped,access mbind move_pages numa_available numa_max_node \
                              numa_num_possible_cpus numa_node_to_cpus numa_sched_getaffinity)

# Linked with the archive, so that internal functions are reachable.
SUITE_PARTS := $(OBJ)/tests/suite/suite.o $(OBJ)/tests/libsupport.a $(OBJ)/examples/libsim.a \
               $(OBJ)/examples/libparts.a $(CUDA_DEVICE) $(SIMULATED) $(ARCHIVE)
LINK_SUITE   = $(TEST_LINK) $(call wrapped,_cmocka_run_group_tests) $(WRAP) $(filter %.o,$^) \
               -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(PKG_LIBS) -lcmocka -ldl -lm -o $@
$(SUITES:%=$(OBJ)/suites/%): $(OBJ)/suites/%: \
    $$(addsuffix .o,$$(addprefix $(OBJ)/tests/,$$(call in_suite,$$*,$(PROGRAMS)))) $(SUITE_PARTS)
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(LINK_SUITE)

tests: $(TOOLS) $(SUITES:%=$(OBJ)/suites/%) fuzzers $(if $(SAN),,sim gpu-benches $(SIMULATED_SHARED))

# The tests that T names, linked by themselves: they answer while others do not compile. Scripts are about
# the plain build.
T      ?=
CHOICE  = $(call once,CHOICE,tests/choose.sh '$(T)')
CHOSEN  = $(foreach c,$(filter-out %.sh,$(CHOICE)),$(firstword $(subst :, ,$(c))))
CHOSEN_SCRIPTS = $(if $(SAN),,$(filter %.sh,$(CHOICE)))
chosen_items   = $(foreach c,$(filter-out %.sh,$(CHOICE)),'$(OBJ)/chosen/$(call \
                   suite_of,$(firstword $(subst :, ,$(c)))):$(notdir $(c))')
$(SUITES:%=$(OBJ)/chosen/%): $(OBJ)/chosen/%: \
    $$(addsuffix .o,$$(addprefix $(OBJ)/tests/,$$(call in_suite,$$*,$$(CHOSEN)))) $(SUITE_PARTS) FORCE
	@echo "  LD    $@"
	$(Q)mkdir -p $(@D) && $(LINK_SUITE)
.PHONY: chosen
chosen: $$(addprefix $(OBJ)/chosen/,$$(call suites_of,$$(CHOSEN))) \
    $$(if $$(CHOSEN_SCRIPTS),all tests) \
    $$(if $$(filter e2e/%,$$(CHOSEN)),$(TOOLS) $(if $(SAN),,sim))

# The PTX machine's loops over lanes are made vectors of.
$(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/ptx/ptx_*.c)): PART += $(if $(SAN),,-O3) $(AVX2)

# Tests that include sim/*.h test parts of moepage-sim.
$(call objects,$(shell grep -ls 'include "sim/' $(TEST_SRC))): PART += -Iexamples/common

# Each fuzz target is a program that replays files, or libFuzzer's where that is asked for.
MAKE_CORPUS := $(OBJ)/tests/fuzz/make_corpus
FUZZ_PARTS  := fuzz.o seal.o $(if $(findstring fuzzer,$(SAN)),,replay.o)
fuzzers: $(FUZZERS) $(MAKE_CORPUS)
$(FUZZERS): ENGINE = $(if $(findstring fuzzer,$(SAN)),-fsanitize=fuzzer)
$(FUZZERS): $(FUZZ_PARTS:%=$(OBJ)/tests/fuzz/%)
$(MAKE_CORPUS): $(call objects,$(wildcard tests/fuzz/corpus_*.c))
$(FUZZERS) $(MAKE_CORPUS): %: %.o $(OBJ)/tests/libsupport.a $(OBJ)/examples/libparts.a $(CUDA_DEVICE) $(ARCHIVE)
	@echo "  LD    $@"
	$(Q)$(LINK) $(ENGINE) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	    $(PKG_LIBS) -lcmocka -ldl -lm -o $@

# A machine for the tools to run "cuda:0" on: a simulated libcuda, and, for want of nvcc, a module
# whose images hold nothing. What it is given, the simulation runs in its CPU form.
SIM      := $(OBJ)/sim
SIM_OBJ  := $(call objects,tests/sim/libcuda.c tests/sim/sim_generate.c \
                           tests/support/cpu_clock.c $(wildcard tests/support/sim_*.c tests/ptx/ptx_*.c))
.PHONY: sim
sim: $(SIM)/libcuda.so.1 $(SIM)/libmoepage-cuda.so $(SIM)/libmoepage-generate-cuda.so \
    $(SIM)/blas/libcublas.so.13
$(SIM)/blas/libcublas.so.13: $(call objects,tests/sim/libcublas.c)
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,-z,defs $^ -ldl -o $@
$(SIM)/libcuda.so.1: $(SIM_OBJ) $(ARCHIVE)
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,-soname,$(@F) -Wl,-z,defs $(SIM_OBJ) \
	    -Wl,--exclude-libs,ALL $(ARCHIVE) $(PKG_LIBS) -lcmocka -ldl -lm -o $@
$(SIM)/images.o: cuda/images.S cuda/images.h
	$(Q)mkdir -p $(SIM)/none && touch $(FATBINS:$(BUILD)/cuda/%=$(SIM)/none/%) && \
	    $(CC) -c -Wa,-I$(SIM)/none $< -o $@
$(SIM)/libmoepage-cuda.so: $(call objects,$(CUDA_SRC)) $(SIM)/images.o $(ARCHIVE) cuda/entry.map
	$(Q)$(LINK) -shared -Wl,--version-script=cuda/entry.map -Wl,-z,defs $(filter %.o,$^) \
	    $(ARCHIVE) $(PKG_LIBS) -ldl -lm -o $@
$(SIM)/dense.o: examples/cuda/images.S
	$(Q)mkdir -p $(SIM)/none && touch $(SIM)/none/dense.fatbin && \
	    $(CC) -c -Wa,-I$(SIM)/none $< -o $@
$(SIM)/libmoepage-generate-cuda.so: $(PLUGIN_OBJ) $(SIM)/dense.o $(OBJ)/examples/libparts.a \
    examples/cuda/plugin.map
	$(Q)$(PLUGIN_LD) $@

# Programs that measure a GPU, and what they share.
GPU_BENCHES := $(GPU_BENCH_SRC:%.c=$(OBJ)/%)
GPU_PARTS   := $(call objects,$(filter-out $(GPU_BENCH_SRC) $(TEST_SRC),$(wildcard tests/gpu/*.c)))
.PHONY: gpu-benches
gpu-benches: $(GPU_BENCHES)
$(GPU_BENCHES): %: %.o $(GPU_PARTS) $(OBJ)/tests/libsupport.a $(CUDA_DEVICE) $(ARCHIVE)
	@echo "  LD    $@"
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	    $(PKG_LIBS) -lcmocka -ldl -lm -o $@

RUN     = tests/run.sh -o $(BUILD)/logs
JOBS    = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))
SUBMAKE = +$(Q)$(MAKE) --no-print-directory $(JOBS)
CUDA_SKIP = $(if $(NO_CUDA),-s 'cuda module ($(NO_CUDA))')

.PHONY: check check-later check-long check-device check-layers coverage test asan ubsan tsan fuzzers fuzz-replay fuzz fuzz-corpus
.PHONY: gpu-first gpu-check gpu-bench gpu-pack bench abi abi-update bindings docs check-python \
        check-llama
# check: each program in the build in which it says most for its time. Sanitized, with every assert, but
# for what is about the shipped build's code, what drives whole tools, and long sums over numbers.
PLAIN  := conformance/% e2e/% gpu/% unit/test_route_cost unit/test_policy unit/test_replay \
          unit/test_miss_counts unit/test_reuse unit/test_sampled unit/test_synthetic \
          property/test_same_bits property/test_version_outputs property/test_miss_curve \
          property/test_mvwsa property/test_residency
# check-long alone: studies, and what follows a GPU's machine or its compiler.
LATER  := e2e/test_eval e2e/test_predict_studies e2e/test_sim_studies e2e/test_split_study e2e/test_turns_study \
          e2e/test_big_pack.sh cuda/test_gpu_scripts.sh cuda/test_sim_suites.sh cuda/test_ptxas.sh \
          cuda/test_rounding.sh
# Sums of many shapes: all of them plain, some of them sanitized, too.
BOTH   := unit/test_host_blocks
SANITIZED      := address,undefined
NOW            := $(filter-out $(LATER),$(PROGRAMS))
NOW_PLAIN      := $(filter $(PLAIN) $(BOTH),$(NOW))
NOW_SANITIZED  := $(filter-out $(PLAIN),$(NOW))
LATER_SCRIPTS  := $(filter $(LATER:%=tests/%),$(TEST_SCRIPTS))
NOW_SCRIPTS    := $(filter-out $(LATER_SCRIPTS),$(TEST_SCRIPTS))
now_items       = $(foreach p,$(2),$(BUILD)/$(1)/chosen/$(call suite_of,$(p)):$(notdir $(p)))
# Scripts first: they take longest, and at the end one processor would wait for the other.
check: setup
	$(SUBMAKE) all sim $(SIMULATED_SHARED) chosen CHOICE='$(NOW_PLAIN)'
	$(SUBMAKE) fuzzers chosen CHOICE='$(NOW_SANITIZED)' SAN=$(SANITIZED)
	$(Q)$(RUN) $(CUDA_SKIP) $(NOW_SCRIPTS) $(call now_items,release,$(NOW_PLAIN)) \
	    $(call now_items,address-undefined,$(NOW_SANITIZED)) $(call fuzzers,address-undefined)

# What check leaves out, once, in the plain build.
check-later: setup
	$(SUBMAKE) all tests
	$(Q)$(RUN) $(CUDA_SKIP) $(LATER_SCRIPTS) $(call items,release,$(filter $(LATER),$(PROGRAMS)))

# check-long: every program in every build, and what check leaves out. Plain ones run many more rounds;
# MP_TEST_LONG=1 asks that of all, which takes hours.
MP_TEST_LONG ?= plain
LONG_SCRIPTS  = $(sort $(LATER_SCRIPTS) $(shell grep -l MP_TEST_LONG $(TEST_SCRIPTS)))
LONG_SANITIZED = $(if $(filter plain,$(MP_TEST_LONG)),$(filter-out $(NOW_SANITIZED),$(PROGRAMS)),$(PROGRAMS))
check-long: setup
	$(SUBMAKE) all tests
	$(SUBMAKE) tests SAN=$(SANITIZED)
	$(SUBMAKE) tests SAN=thread
	$(Q)MP_TEST_LONG=$(MP_TEST_LONG) TEST_TIMEOUT=3600 $(RUN) $(CUDA_SKIP) $(LONG_SCRIPTS) \
	    $(call programs,release) $(call items,address-undefined,$(LONG_SANITIZED)) \
	    $(call programs,thread)

# The suites that run kernels, each from the PTX of every architecture in place of the CPU forms.
PTX_PROGRAMS  := $(addprefix unit/test_cuda_,decode elementwise rows topk remap path_kernels quant experts coded fast \
                   fast_session kv session device stream handshake) unit/test_kv_pool $(addprefix property/test_, \
                   cuda_decode cuda_path cuda_path_failure cuda_readers cuda_streams kv_pool)
PTX_SIMULATED := property/test_same_bits property/test_pool_stress property/test_version_outputs unit/test_versions_ffn
check-device: setup
	$(SUBMAKE) ptx $(if $(NO_CUDA),,all sim chosen CHOICE='ptx/test_ptx_entries $(PTX_PROGRAMS) $(PTX_SIMULATED)')
	$(Q)TEST_TIMEOUT=1200 PTX_PROGRAMS='$(PTX_PROGRAMS)' PTX_SIMULATED='$(PTX_SIMULATED)' \
	    tests/run.sh -o $(BUILD)/logs-device $(if $(NO_CUDA),-s 'kernels from PTX and machine code ($(NO_CUDA))',\
	    tests/ptx/check.sh tests/sass/check.sh)
	$(Q)sed -n 's/^# \(sm_\|not run\)/\1/p' $(BUILD)/logs-device/*check.sh*.log 2>/dev/null || true

# T=name: the tests of that name alone, in one build (SAN=address,undefined for the sanitized one).
test: setup
	$(SUBMAKE) chosen
	$(Q)$(RUN) $(chosen_items) $(CHOSEN_SCRIPTS:%=tests/%)

# Lines run by the programs of check, in a build directory of its own, which it leaves for gcov.
COVERED  := $(filter unit/% property/% fault/% conformance/%,$(NOW))
COVERAGE := $(BUILD)/coverage
coverage: setup
	$(Q)find $(COVERAGE) -name '*.gcda' -delete 2>/dev/null || true
	$(SUBMAKE) chosen CHOICE='$(COVERED)' BUILD=$(COVERAGE) LIB=$(COVERAGE)/lib CFLAGS='-O1 -g --coverage' \
	    LDFLAGS='$(LDFLAGS) --coverage'
	$(Q)tests/run.sh -o $(COVERAGE)/logs $(foreach p,$(COVERED),$(COVERAGE)/release/chosen/$(call \
	    suite_of,$(p)):$(notdir $(p)))
	$(Q)tests/coverage.sh $(COVERAGE)/release

# Needs PyPI, for torch and transformers, or MOEPAGE_PYTHON: an interpreter that has them.
check-python: setup
	$(SUBMAKE) all
	$(Q)TEST_TIMEOUT=3600 tests/run.sh -o $(BUILD)/logs-python tests/ffi/check_python.sh

# Needs PyPI, for llama.cpp.
check-llama: setup
	$(SUBMAKE) all
	$(Q)TEST_TIMEOUT=2700 tests/run.sh -o $(BUILD)/logs-llama tests/hosts/llama.sh

asan: sanitizer = address
ubsan: sanitizer = undefined
tsan: sanitizer = thread
asan ubsan tsan: setup
	$(SUBMAKE) tests SAN=$(sanitizer)
	$(Q)$(RUN) $(call programs,$(sanitizer))

abi: lib
	$(Q)$(RUN) $(wildcard tests/abi/test_*.sh)

# The order of the rooms and the walls around them: tests/layers/layers.sh.
check-layers: $(call objects,$(sort $(wildcard src/*/*.c)) $(CUDA_SRC))
	$(Q)tests/layers/layers.sh $(OBJ)

# Rewrites the baseline, and the bindings made from it: only after docs/abi.md has been read.
abi-update:
	$(Q)tests/abi/symbols.sh >lib/abi/symbols.txt && tests/abi/structs.sh >lib/abi/structs.txt
	@echo "lib/abi/symbols.txt and lib/abi/structs.txt rewritten"
	$(SUBMAKE) bindings

# What the clients know of the ABI; cgo reads the headers themselves, and keeps a table to check it.
bindings:
	$(Q)python3 lib/abi/bindings/python.py && python3 lib/abi/bindings/rust.py
	$(Q)cd examples/go && { ! command -v go >/dev/null || go generate ./...; }

docs: lib tools
	$(Q)$(RUN) $(wildcard tests/docs/test_*.sh)

fuzz-replay: setup
	$(SUBMAKE) fuzzers
	$(SUBMAKE) fuzzers SAN=address,undefined
	$(Q)$(RUN) $(call fuzzers,release) $(call fuzzers,address-undefined)

# What it finds stays under $(BUILD)/fuzz. The inputs' files are written again and again: to memory.
FUZZ_SECONDS ?= 60
FUZZ_SAN     := fuzzer-no-link,address,undefined
FUZZER        = $(BUILD)/$(subst $(comma),-,$(FUZZ_SAN))/tests/fuzz/fuzz_$(TARGET)
fuzz: setup
	$(if $(wildcard tests/fuzz/fuzz_$(TARGET).c),,$(error TARGET is one of: \
	    $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%)))
	$(Q)command -v clang >/dev/null || { echo "make fuzz needs clang and its libFuzzer" >&2; exit 1; }
	$(SUBMAKE) CC=clang SAN=$(FUZZ_SAN) $(FUZZER)
	$(Q)mkdir -p $(BUILD)/fuzz/$(TARGET) && TMPDIR=$$([ ! -w /dev/shm ] || echo /dev/shm) $(FUZZER) \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 \
	    -artifact_prefix=$(BUILD)/fuzz/$(TARGET)- $(FUZZ_ARGS) \
	    $(BUILD)/fuzz/$(TARGET) tests/fuzz/corpus/$(TARGET)

# Writes the seeds afresh; a new format version needs it.
fuzz-corpus: setup
	$(SUBMAKE) fuzzers
	$(Q)$(BUILD)/release/tests/fuzz/make_corpus

# On a machine with a GPU; GPU_SIM=1 runs them on the simulated one, which checks the scripts. gpu-first: all of
# it in order, and one JSON.
# gpu-pack: the same for a machine with a driver and nothing else (tests/gpu/pack.sh).
GPU_OUT  ?= $(BUILD)/gpu
GPU_PACK ?= $(BUILD)/gpu-pack
GPU_ENV   = GPU_PROGRAMS=$(OBJ) GPU_TOOLS=$(BIN) GPU_LIB=$(abspath $(LIB)) \
            GPU_SIM_LIB=$(abspath $(SIM))
gpu-check gpu-bench gpu-first: setup
	$(SUBMAKE) all tests
	$(Q)$(GPU_ENV) tests/gpu/$(@:gpu-%=%).sh $(GPU_OUT) || [ $$? = 77 ]
gpu-pack: setup
	$(SUBMAKE) all tests
	$(Q)$(GPU_ENV) tests/gpu/pack.sh $(GPU_PACK)

# Prints figures; tests nothing. docs/host-kernels.md says how to compare with oneDNN.
bench: all
	$(Q)$(BIN)/moepage-pack examples/models/tiny-qwen3moe $(BUILD)/tiny.moepack \
	    --expert-versions dense,exph >/dev/null 2>&1
	$(Q)for b in route ffn "prefetch --model examples/models/tiny-qwen3moe" codec \
	    "tiers --model $(BUILD)/tiny.moepack --bus 400M"; do \
	    $(BIN)/moepage-bench $$b || exit 1; echo; done

# ---- Style ---------------------------------------------------------------------------------

.PHONY: format-check format tidy
STYLED = $(LIB_SRC) $(SIMULATED_SRC) $(CUDA_SRC) $(KERNEL_SRC) $(TOOL_SRC) $(PART_SRC) $(SIM_SRC) $(PLUGIN_SRC) \
         $(LLAMA_SRC) $(TEST_SRC) $(SUPPORT_SRC) $(wildcard $(foreach d,bench fuzz gpu sim suite walk,tests/$(d)/*.c)) \
         $(wildcard src/*/*.h cuda/*.h cuda/*/*.h include/*.h examples/*/*.h tests/*/*.h)
format-check:
	$(Q)clang-format --dry-run --Werror $(STYLED)
format:
	$(Q)clang-format -i $(STYLED)
TIDY       = clang-tidy --quiet --warnings-as-errors='*'
TIDY_FLAGS = $(BASE_FLAGS) -UNDEBUG -DMOEPAGE_BUILD -Iinclude -Isrc
tidy:
	$(Q)$(TIDY) $(LIB_SRC) $(TOOL_SRC) $(PART_SRC) $(PLUGIN_SRC) -- $(TIDY_FLAGS) -Iexamples \
	    -Iexamples/common $(AVX512)
	$(Q)$(TIDY) $(CUDA_SRC) -- $(TIDY_FLAGS) -Icuda

# How each file is compiled, for editors and tools, as the plain build does it.
.PHONY: compile_commands
compile_commands:
	$(Q)$(MAKE) --no-print-directory --always-make --dry-run V=1 all tests | \
	    awk -v directory='$(CURDIR)' 'match($$0, / -MMD -MP -c [^ ]+ -o /) { \
	        split(substr($$0, RSTART), words, " "); sub(/^.* && /, ""); gsub(/["\\]/, "\\\\&"); \
	        printf "%s{\"directory\": \"%s\", \"file\": \"%s\",\n  \"command\": \"%s\"}", \
	            n++ ? ",\n " : "[", directory, words[4], $$0 } END { print "]" }' >compile_commands.json
	@echo "compile_commands.json: $$(grep -c '"file"' compile_commands.json) files"

# ---- Set-up, demonstration, installation ---------------------------------------------------

.PHONY: demo install uninstall dist clean
setup:
	$(Q).ci/setup install

demo: setup
	$(SUBMAKE) all
	$(Q)examples/demo.sh $(BIN)

bindir     := $(PREFIX)/bin
libdir     := $(PREFIX)/lib
includedir := $(PREFIX)/include
docdir     := $(PREFIX)/share/doc/libmoepage
mandir     := $(PREFIX)/share/man
DOCS        = README.md LICENSE $(wildcard docs/*.md)
HEADERS     = $(wildcard include/*.h)
PLUGIN      = $(if $(NO_CUDA),,$(BIN)/libmoepage-generate-cuda.so)

# A manual page for every function, from the headers' comments.
.PHONY: man
man: $(BUILD)/man/done
$(BUILD)/man/done: $(HEADERS) $(wildcard docs/man/*)
	@echo "  MAN   $(BUILD)/man"
	$(Q)docs/man/man.sh $(@D) && touch $@

install: lib cuda man $(INSTALLED)
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(includedir) $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(docdir) \
	    $(DESTDIR)$(mandir)/man3 $(DESTDIR)$(mandir)/man7
	install -m 644 $(BUILD)/man/man3/*.3 $(DESTDIR)$(mandir)/man3
	install -m 644 $(BUILD)/man/man7/moepage.7 $(DESTDIR)$(mandir)/man7
	install -m 644 $(HEADERS) $(DESTDIR)$(includedir)
	install -m 755 $(INSTALLED) $(PLUGIN) $(DESTDIR)$(bindir)
	install -m 755 $(LIB)/libmoepage.so.0 $(if $(NO_CUDA),,$(LIB)/libmoepage-cuda.so) \
	    $(DESTDIR)$(libdir)
	ln -sf libmoepage.so.0 $(DESTDIR)$(libdir)/libmoepage.so
	install -m 644 $(LIB)/libmoepage.a $(DESTDIR)$(libdir)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(PKGS)|' \
	    pkgconfig/moepage.pc.in >$(DESTDIR)$(libdir)/pkgconfig/moepage.pc
	chmod 644 $(DESTDIR)$(libdir)/pkgconfig/moepage.pc
	install -m 644 $(DOCS) $(DESTDIR)$(docdir)

uninstall:
	rm -f $(foreach f,$(notdir $(INSTALLED)) libmoepage-generate-cuda.so,$(DESTDIR)$(bindir)/$(f))
	rm -f $(HEADERS:include/%=$(DESTDIR)$(includedir)/%)
	rm -f $(foreach f,libmoepage.so.0 libmoepage.so libmoepage.a libmoepage-cuda.so \
	    pkgconfig/moepage.pc,$(DESTDIR)$(libdir)/$(f))
	rm -f $(DESTDIR)$(mandir)/man3/moepage_*.3 $(DESTDIR)$(mandir)/man7/moepage.7
	rm -rf $(DESTDIR)$(docdir)

dist:
	mkdir -p $(BUILD)
	git archive --prefix=libmoepage-$(VERSION)/ -o $(BUILD)/libmoepage-$(VERSION).tar.gz HEAD

clean:
	rm -rf $(BUILD) $(LIB)/libmoepage*.so* $(LIB)/libmoepage.a

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
