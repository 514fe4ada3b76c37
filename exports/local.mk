# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	exports/chrome.c \
	exports/csv.c \
	exports/export.h \
	exports/formats.c \
	exports/memory_viz.c \
	exports/page.c exports/page.h \
	exports/pickle.c exports/pickle.h \
	exports/step.c exports/step.h

# Style and scripts of a page as C strings, one literal a line.
page_files = exports/page.css exports/page_data.js exports/page_view.js
nodist_libtidemark_a_SOURCES += exports/page_text.c
EXTRA_DIST += $(page_files)
CLEANFILES += exports/page_text.c
exports/page_text.c: $(page_files)
	@$(MKDIR_P) exports
	$(AM_V_GEN)rm -f $@ && { \
		echo '/* Made from exports/page*.css and .js. */'; \
		echo '#include "exports/page.h"'; \
		for file in $(page_files); do \
			echo "const char tdm_$$(basename $$file | tr . _)[] ="; \
			sed -e 's/[\\"]/\\&/g' -e 's/.*/    "&\\n"/' $(srcdir)/$$file; \
			echo '    ;'; \
		done; \
	} >$@.tmp && mv -f $@.tmp $@

cmocka_tests += tests/exports/unit_exports
tests_exports_unit_exports_SOURCES = tests/exports/unit_exports.c tests/support/unpickle.c \
	tests/support/unpickle.h tests/support/random_schedule.c tests/support/random_schedule.h \
	tests/support/cases.c tests/support/cases.h tests/support/slot_tensors.h
script_tests += tests/exports/page-in-browser tests/exports/perfetto-reads
EXTRA_DIST += tests/exports/perfetto.py
long_tests += tests/exports/unit_exports
