# SPDX-License-Identifier: Apache-2.0
# TDM_MPI: looks for MPI, of which a module of its own is built (executor/mpi_module.c).
#
#   --with-mpi     missing is an error
#   --without-mpi  build no module
#   neither        build it if mpicc of Open MPI, or pkg-config's module ompi-c or mpich, is found
#
# Sets have_mpi; substitutes MPI_CFLAGS and MPI_LIBS; defines HAVE_MPI for C and for automake.
AC_DEFUN([TDM_MPI], [
AC_ARG_WITH([mpi],
  [AS_HELP_STRING([--with-mpi], [build the module for runs of several processes (default: if MPI is found)])],
  [], [with_mpi=guess])
have_mpi=no
mpi_version=
AS_IF([test "x$with_mpi" != xno], [
  PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes; mpi_version=`$PKG_CONFIG --modversion ompi-c`],
    [PKG_CHECK_MODULES([MPI], [mpich], [have_mpi=yes; mpi_version=`$PKG_CONFIG --modversion mpich`], [:])])
  AS_IF([test "$have_mpi" = no && test "x$with_mpi" != xguess],
    [AC_MSG_ERROR([--with-mpi was asked for, but MPI was not found: install the Debian package libopenmpi-dev])])
])
AS_IF([test "$have_mpi" = yes],
  [AC_DEFINE([HAVE_MPI], [1], [Define to 1 if the module for MPI is built])],
  [MPI_CFLAGS= MPI_LIBS=])
AC_SUBST([MPI_CFLAGS])
AC_SUBST([MPI_LIBS])
AM_CONDITIONAL([HAVE_MPI], [test "$have_mpi" = yes])
])
