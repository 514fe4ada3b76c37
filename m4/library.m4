# SPDX-License-Identifier: Apache-2.0

# TDM_LIBRARY: can libtidemark.so.0 be linked? Not if Jansson, SQLite or libyaml are given as static libraries without position
# independent code, as for programs that are to run elsewhere. Sets have_library.
AC_DEFUN([TDM_LIBRARY], [
AC_ARG_ENABLE([library], [AS_HELP_STRING([--disable-library], [do not build the shared library])])
have_library=no
AS_IF([test "x$enable_library" != xno], [
  AC_MSG_CHECKING([whether a shared library can be linked])
  tdm_save_LIBS=$LIBS; tdm_save_CFLAGS=$CFLAGS; tdm_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $JANSSON_CFLAGS $SQLITE_CFLAGS $YAML_CFLAGS"
  CFLAGS="$CFLAGS -fPIC -shared"
  LIBS="$GLPK_LIBS $YAML_LIBS $SQLITE_LIBS $JANSSON_LIBS -lpthread -ldl -lm $LIBS"
  AC_LINK_IFELSE([AC_LANG_SOURCE([[
    #include <jansson.h>
    #include <sqlite3.h>
    #include <yaml.h>
    void *tdm_load(void);
    int tdm_begin(yaml_parser_t *parser);
    int tdm_open(sqlite3 **database);
    void *tdm_load(void) { return json_load_file("a", 0, 0); }
    int tdm_open(sqlite3 **database) { return sqlite3_open("a", database); }
    int tdm_begin(yaml_parser_t *parser) { return yaml_parser_initialize(parser); }]])],
    [have_library=yes])
  AC_MSG_RESULT([$have_library])
  LIBS=$tdm_save_LIBS; CFLAGS=$tdm_save_CFLAGS; CPPFLAGS=$tdm_save_CPPFLAGS
  AS_IF([test "$have_library" = yes],
    [TDM_SUMMARY([libtidemark], [yes], [], [])],
    [TDM_SUMMARY([libtidemark], [no (a static library is not position independent)], [], [])])
], [TDM_SUMMARY([libtidemark], [no (switched off)], [], [])])
AM_CONDITIONAL([BUILD_LIBRARY], [test "$have_library" = yes])
])
