# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	traces/check_schema.c \
	traces/companions.c traces/companions.h \
	traces/create.c traces/create.h \
	traces/query.c traces/query.h \
	traces/reader.c traces/reader.h \
	traces/reader_memory.c traces/reader_ranks.c traces/reader_time.c \
	traces/sqlite.c traces/sqlite.h \
	traces/trace.h \
	traces/waits.c traces/waits.h \
	traces/writer.c

# The schema as a C string, one literal a line.
nodist_libtidemark_a_SOURCES = traces/schema.c
EXTRA_DIST += traces/schema.sql
CLEANFILES += traces/schema.c
cmocka_tests += tests/traces/unit_traces tests/traces/unit_waits

traces/schema.c: $(srcdir)/traces/schema.sql
	@$(MKDIR_P) traces
	$(AM_V_GEN)rm -f $@ && { \
		echo '/* Made from traces/schema.sql. */'; \
		echo '#include "traces/sqlite.h"'; \
		echo 'const char tdm_trace_schema[] ='; \
		sed -e 's/[\\"]/\\&/g' -e 's/.*/    "&\\n"/' $(srcdir)/traces/schema.sql; \
		echo '    ;'; \
	} >$@.tmp && mv -f $@.tmp $@
