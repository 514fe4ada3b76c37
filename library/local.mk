# SPDX-License-Identifier: Apache-2.0
# libtidemark.so.0, the installed library: the public functions, and behind them the objects that the programs are
# linked of. Its name changes with its interface (library/tidemark.h).
noinst_LIBRARIES += libpublic.a
libpublic_a_SOURCES = \
	library/answer.c \
	library/parts.h \
	library/table.h \
	library/table_kinds.c \
	library/trace.c
libpublic_a_CFLAGS = $(libtidemark_a_CFLAGS)
EXTRA_DIST += library/example.c library/tidemark.map

LIBRARY = libtidemark.so.0
libtidemark.so.0: libpublic.a libcommands.a libtidemark.a $(srcdir)/library/tidemark.map
	$(AM_V_CCLD)$(CC) $(TDM_CFLAGS) $(CFLAGS) -shared -Wl,-soname,$@ -Wl,--version-script=$(srcdir)/library/tidemark.map \
		$(AM_LDFLAGS) $(LDFLAGS) -o $@ -Wl,--whole-archive libpublic.a -Wl,--no-whole-archive $(COMMAND_LIBS)
CLEANFILES += $(LIBRARY)

# Not built where configure found that it cannot be linked. Programs are linked with the name without the number.
if BUILD_LIBRARY
include_HEADERS = library/tidemark.h
sharedlibdir = $(libdir)
nodist_sharedlib_DATA = $(LIBRARY)
pkgconfigdir = $(libdir)/pkgconfig
nodist_pkgconfig_DATA = library/tidemark.pc
install-data-hook:
	rm -f "$(DESTDIR)$(libdir)/libtidemark.so"
	$(LN_S) $(LIBRARY) "$(DESTDIR)$(libdir)/libtidemark.so"
else
EXTRA_DIST += library/tidemark.h
endif

cmocka_tests += tests/library/unit_library
tests_library_unit_library_LDADD = libpublic.a libcommands.a $(LDADD)

# The Python package, which pip installs from the sources: pip install ./python
python_files = python/README.md python/pyproject.toml python/tidemark/__init__.py python/tidemark/answers.py \
	python/tidemark/callback.py python/tidemark/library.py python/tidemark/traces.py
EXTRA_DIST += $(python_files)
script_tests += tests/library/python
EXTRA_DIST += tests/library/python.py
