# SPDX-License-Identifier: Apache-2.0
# The table at the end of configure: one row a feature, and the Debian package that brings it.
# Also the small checks that feed it.

AC_DEFUN([TDM_SUMMARY_INIT], [
tdm_summary=
tdm_missing=
])

# TDM_SUMMARY(FEATURE, FOUND, VERSION, PACKAGE): adds a row.
AC_DEFUN([TDM_SUMMARY], [
AS_VAR_APPEND([tdm_summary], ["m4_normalize([$1])|$2|$3|$4
"])
])

# TDM_SUMMARY_PRINT: prints the table on stdout.
AC_DEFUN([TDM_SUMMARY_PRINT], [
AS_ECHO([""])
AS_ECHO(["$PACKAGE_NAME $PACKAGE_VERSION"])
AS_ECHO([""])
AS_ECHO(["feature|found|version|Debian package
$tdm_summary"]) | $AWK -F'|' '
  NF == 4 { n++; for (i = 1; i <= 4; i++) { cell@<:@n, i@:>@ = $i == "" ? "-" : $i
              if (length(cell@<:@n, i@:>@) > width@<:@i@:>@) width@<:@i@:>@ = length(cell@<:@n, i@:>@) } }
  END { for (r = 1; r <= n; r++) { line = " "
          for (i = 1; i < 4; i++) line = line sprintf(" %-" width@<:@i@:>@ "s ", cell@<:@r, i@:>@)
          print line " " cell@<:@r, 4@:>@ } }'
AS_ECHO([""])
])

# TDM_ADD_CFLAG(FLAG): adds FLAG to TDM_CFLAGS if the compiler takes it.
AC_DEFUN([TDM_ADD_CFLAG], [
AC_MSG_CHECKING([whether $CC takes $1])
tdm_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -Werror $1"
AC_COMPILE_IFELSE([AC_LANG_SOURCE([[int main(void) { return 0; }]])],
  [AC_MSG_RESULT([yes]); TDM_CFLAGS="${TDM_CFLAGS:+$TDM_CFLAGS }$1"], [AC_MSG_RESULT([no])])
CFLAGS=$tdm_save_CFLAGS
])

# TDM_REQUIRE_MODULE(PREFIX, FEATURE, MODULE, LEAST VERSION, PACKAGE): a library that must be there.
AC_DEFUN([TDM_REQUIRE_MODULE], [
PKG_CHECK_MODULES([$1], [$3 >= $4],
  [TDM_SUMMARY([$2], [yes], [`$PKG_CONFIG --modversion $3`], [$5])],
  [AS_VAR_APPEND([tdm_missing], [" $5"])
   TDM_SUMMARY([$2], [MISSING (required, $4 or newer)], [`$PKG_CONFIG --modversion $3 2>/dev/null`], [$5])])
])

# TDM_REQUIRE_GLPK: the solver of linear programs, which has no pkg-config file. GLPK_LIBS, for tidemark alone.
AC_DEFUN([TDM_REQUIRE_GLPK], [
tdm_save_LIBS=$LIBS
have_glpk=no
AC_CHECK_HEADER([glpk.h], [AC_CHECK_LIB([glpk], [glp_simplex], [have_glpk=yes])])
LIBS=$tdm_save_LIBS
AS_IF([test "$have_glpk" = yes],
  [GLPK_LIBS=-lglpk
   TDM_SUMMARY([GLPK], [yes], [], [libglpk-dev])],
  [GLPK_LIBS=
   AS_VAR_APPEND([tdm_missing], [" libglpk-dev"])
   TDM_SUMMARY([GLPK], [MISSING (required)], [], [libglpk-dev])])
AC_SUBST([GLPK_LIBS])
])

# TDM_REQUIRE_CHECK: stops, after the table, if a required library was missing.
AC_DEFUN([TDM_REQUIRE_CHECK], [
AS_IF([test -n "$tdm_missing"], [
  TDM_SUMMARY_PRINT
  AC_MSG_ERROR([required libraries are missing: install the Debian packages$tdm_missing (or run ./quickstart, which does)])
])
])
