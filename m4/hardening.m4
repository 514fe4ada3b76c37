# SPDX-License-Identifier: Apache-2.0
# Flags with which memory errors stop the program instead of taking it over, as distributions build all programs.

# TDM_HARDENING: adds to TDM_CFLAGS and TDM_LDFLAGS what compiler and linker take. Nothing of it under sanitizers, which
# see more and do not go together with it.
AC_DEFUN([TDM_HARDENING], [
AC_ARG_ENABLE([hardening],
  [AS_HELP_STRING([--disable-hardening], [build without _FORTIFY_SOURCE, stack protector, RELRO and BIND_NOW])])
tdm_hardened=
AS_CASE(["$enable_hardening $enable_sanitizers $CFLAGS"], [no\ * | *\ yes\ * | *-fsanitize=*], [], [
  TDM_HARDENING_FLAG([-fstack-protector-strong], [stack protector])
  TDM_HARDENING_FLAG([-fstack-clash-protection], [])
  # Who sets it in the flags of the build decides. It warns without optimization, and is then left out.
  AS_CASE(["$CPPFLAGS $CFLAGS"], [*_FORTIFY_SOURCE*], [],
    [TDM_HARDENING_FLAG([-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3], [_FORTIFY_SOURCE])])
  AC_MSG_CHECKING([whether the linker takes -z relro -z now])
  tdm_save_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS -Wl,-z,relro,-z,now"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes])
     TDM_LDFLAGS="${TDM_LDFLAGS:+$TDM_LDFLAGS }-Wl,-z,relro,-z,now"
     tdm_hardened="${tdm_hardened:+$tdm_hardened, }BIND_NOW"],
    [AC_MSG_RESULT([no])])
  LDFLAGS=$tdm_save_LDFLAGS
])
TDM_SUMMARY([hardening], [${tdm_hardened:-no}], [], [])
])

# TDM_HARDENING_FLAG(FLAG, NAME)
AC_DEFUN([TDM_HARDENING_FLAG], [
AC_MSG_CHECKING([whether $CC takes $1])
tdm_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -Werror $1"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <string.h>]], [[char text[20]; memset(text, 1, 20); return text[3];]])],
  [AC_MSG_RESULT([yes])
   TDM_CFLAGS="${TDM_CFLAGS:+$TDM_CFLAGS }$1"
   m4_ifval([$2], [tdm_hardened="${tdm_hardened:+$tdm_hardened, }$2"])],
  [AC_MSG_RESULT([no])])
CFLAGS=$tdm_save_CFLAGS
])
