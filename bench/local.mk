# SPDX-License-Identifier: Apache-2.0
# Benchmarks: built by `make bench`, never by make or make check. Add programs to bench_programs.
bench_programs =
EXTRA_PROGRAMS = $(bench_programs)
CLEANFILES += $(bench_programs)

bench: $(bench_programs)
.PHONY: bench
