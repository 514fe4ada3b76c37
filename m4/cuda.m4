# SPDX-License-Identifier: Apache-2.0
# TDM_CUDA: looks for nvcc and the CUDA run-time library.
#
#   --with-cuda=DIR  use the toolkit in DIR; --with-cuda: any; missing is an error
#   --without-cuda   build without the GPU backend
#   neither          use it if found in $CUDA_HOME, $CUDA_PATH, on PATH or in /usr/local/cuda
#
#   --with-cuda-arch=native  compile for the GPUs of this computer, or if it has none for Hopper (default)
#   --with-cuda-arch=all     for every card since Ampere, as far as nvcc knows it; code for 80 runs on 86 and 89
#   --with-cuda-arch=80,90   for these
#
# Each architecture takes as long as the first one. NVCC_GENCODE, if set, is used as it is.
#
# Sets have_cuda, cuda_home, cuda_version, cuda_arch, cuda_why (why not); substitutes NVCC, NVCC_GENCODE,
# NVCCFLAGS, CUDA_CFLAGS, CUDA_LIBS; defines HAVE_CUDA for C and for automake. The run-time library
# is linked statically, and cuBLASLt loaded when the backend is used, so that a program built here
# starts anywhere.
AC_DEFUN([TDM_CUDA], [
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
    [build the GPU backend with the CUDA toolkit in DIR (default: if one is found)])],
  [], [with_cuda=guess])
AC_ARG_WITH([cuda-arch],
  [AS_HELP_STRING([--with-cuda-arch=ARCH],
    [architectures to compile GPU code for: native (default: the GPUs that are here, else Hopper), all, or
     a list such as 80,90])],
  [], [with_cuda_arch=native])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
AC_ARG_VAR([NVCC_GENCODE], [-gencode flags: the GPU architectures to build for])

have_cuda=no
cuda_home=
cuda_version=
cuda_why="switched off"
CUDA_CFLAGS=
CUDA_LIBS=
: ${NVCCFLAGS="-O3"}

AS_IF([test "x$with_cuda" != xno], [
  cuda_why="nvcc not found"
  AS_CASE(["$with_cuda"],
    [guess|yes], [tdm_cuda_dirs="$CUDA_HOME $CUDA_PATH"],
    [tdm_cuda_dirs=$with_cuda])
  AC_MSG_CHECKING([for nvcc])
  AS_IF([test -z "$NVCC"], [
    for tdm_dir in $tdm_cuda_dirs; do
      AS_IF([test -z "$NVCC" && test -x "$tdm_dir/bin/nvcc"], [NVCC=$tdm_dir/bin/nvcc])
    done
    AS_CASE(["$with_cuda"], [guess|yes], [
      AS_IF([test -z "$NVCC"], [NVCC=`command -v nvcc 2>/dev/null`])
      AS_IF([test -z "$NVCC" && test -x /usr/local/cuda/bin/nvcc], [NVCC=/usr/local/cuda/bin/nvcc])
    ])
  ])
  AC_MSG_RESULT([${NVCC:-no}])
])

AS_IF([test -n "$NVCC" && test "x$with_cuda" != xno], [
  # nvcc itself says where its toolkit is: that survives links and distributions' own layouts.
  tdm_nvcc_top=`$NVCC --dryrun -c -x cu /dev/null -o /dev/null 2>&1 | sed -n 's/^#\\$ TOP=//p'`
  AS_IF([test -n "$tdm_nvcc_top" && test -d "$tdm_nvcc_top"],
    [cuda_home=`cd "$tdm_nvcc_top" && pwd -P`],
    [cuda_home=`dirname "$NVCC"`; cuda_home=`cd "$cuda_home/.." && pwd`])
  cuda_version=`$NVCC --version 2>/dev/null | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`

  tdm_cuda_lib=
  for tdm_dir in "$cuda_home/lib64" "$cuda_home/lib" "$cuda_home/targets/x86_64-linux/lib" \
      "$cuda_home/targets/sbsa-linux/lib" "/usr/lib/`uname -m`-linux-gnu"; do
    AS_IF([test -z "$tdm_cuda_lib" && test -f "$tdm_dir/libcudart_static.a"], [tdm_cuda_lib=$tdm_dir])
  done
  AS_IF([test -f "$cuda_home/include/cuda_runtime_api.h"], [CUDA_CFLAGS="-isystem $cuda_home/include"])

  AS_IF([test -z "$tdm_cuda_lib"], [cuda_why="libcudart_static.a not found"],
    [test ! -f "$cuda_home/include/cublasLt.h"], [cuda_why="cublasLt.h not found"], [
    CUDA_LIBS="-L$tdm_cuda_lib -lcudart_static -ldl -lrt -lpthread -lstdc++"

    AS_IF([test -z "$NVCC_GENCODE"], [TDM_CUDA_ARCH])

    AC_MSG_CHECKING([whether $NVCC compiles and links])
    rm -rf conftest.dir
    mkdir conftest.dir
    AS_ECHO(["__global__ void k(float *x) { x@<:@threadIdx.x@:>@ *= 2; }
extern \"C\" int f(void) { int n = 0; k<<<1, 32>>>(0); return (int)cudaGetDeviceCount(&n); }"]) > conftest.dir/a.cu
    AS_ECHO(["int f(void); int main(void) { return f(); }"]) > conftest.dir/b.c
    AS_IF([$NVCC $NVCC_GENCODE $NVCCFLAGS -std=c++17 -c conftest.dir/a.cu -o conftest.dir/a.o >&AS_MESSAGE_LOG_FD 2>&1 &&
           $CC $CFLAGS $CUDA_CFLAGS conftest.dir/b.c conftest.dir/a.o $CUDA_LIBS -o conftest.dir/b >&AS_MESSAGE_LOG_FD 2>&1],
      [have_cuda=yes; AC_MSG_RESULT([yes])],
      [cuda_why="nvcc fails, see config.log"; AC_MSG_RESULT([no])])
    rm -rf conftest.dir
  ])
])

AS_IF([test "$have_cuda" = yes],
  [AC_DEFINE([HAVE_CUDA], [1], [Define to 1 if the GPU backend is built])
   AC_DEFINE_UNQUOTED([TDM_CUDA_LIBRARY_FOLDER], ["$tdm_cuda_lib"],
     [Where cuBLASLt is looked for if the system's linker does not find it])],
  [CUDA_CFLAGS= CUDA_LIBS=
   AS_CASE(["$with_cuda"], [no|guess], [],
     [AC_MSG_ERROR([--with-cuda=$with_cuda was asked for, but $cuda_why: name the toolkit's folder, or use --without-cuda])])])
# Kernels of Hopper's own instructions are compiled only if its architecture is asked for.
have_hopper=no
AS_CASE(["$have_cuda:$NVCC_GENCODE"], [yes:*sm_90a*], [have_hopper=yes])
AS_IF([test "$have_hopper" = yes],
  [AC_DEFINE([HAVE_HOPPER], [1], [Define to 1 if kernels for sm_90a are built])])
AM_CONDITIONAL([HAVE_HOPPER], [test "$have_hopper" = yes])
AC_SUBST([CUDA_CFLAGS])
AC_SUBST([CUDA_LIBS])
AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])

# TDM_CUDA_ARCH: sets NVCC_GENCODE by --with-cuda-arch, for architectures that this nvcc knows; and cuda_arch.
AC_DEFUN([TDM_CUDA_ARCH], [
tdm_codes=" `$NVCC --list-gpu-code 2>/dev/null | tr '\n' ' '`"
cuda_arch=
AS_CASE(["$with_cuda_arch"],
  [all], [tdm_archs="80 90 100 120"],
  [native|yes], [
    AC_MSG_CHECKING([for a GPU to compile for])
    # "9.0" a line; a tool without a GPU or a driver may print words
    tdm_archs=`nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
      sed -n 's/^\(@<:@0-9@:>@@<:@0-9@:>@*\)\.\(@<:@0-9@:>@\)$/\1\2/p' | $AWK '@S|@1 >= 80' | sort -u | tr '\n' ' '`
    AS_IF([test -n "$tdm_archs"], [AC_MSG_RESULT([$tdm_archs])],
      [AC_MSG_RESULT([none, so Hopper]); tdm_archs=90])],
  [tdm_archs=`AS_ECHO(["$with_cuda_arch"]) | tr ',' ' '`])
TDM_CUDA_CODES([$tdm_archs])
# nvcc is older than the GPU, or than Hopper: PTX of the newest that it knows, which the driver compiles.
AS_CASE(["$with_cuda_arch"],
  [native|yes], [
    tdm_newest=
    for tdm_arch in 80 86 89 90 100 120; do
      AS_CASE(["$tdm_codes"], [*" sm_$tdm_arch "*], [tdm_newest=$tdm_arch])
    done
    AS_IF([test -z "$cuda_arch"], [TDM_CUDA_CODES([$tdm_newest])])],
  [all], [],
  [AS_IF([test -z "$cuda_arch"],
    [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: $NVCC knows none of these; use native, all or numbers such as 80,90])])])
])

# TDM_CUDA_CODES(LIST): adds the architectures of a list that nvcc knows.
AC_DEFUN([TDM_CUDA_CODES], [
for tdm_arch in $1; do
  AS_CASE(["$tdm_codes"], [*" sm_$tdm_arch "*], [
    # Hopper's own instructions (wgmma, bulk copies) need 90a, known since CUDA 12. Such code is for Hopper alone;
    # the others have PTX too, for later cards.
    tdm_ptx=" -gencode arch=compute_$tdm_arch,code=compute_$tdm_arch"
    AS_CASE([$tdm_arch:$cuda_version], [90:11.*], [], [90:*], [tdm_arch=90a tdm_ptx=])
    NVCC_GENCODE="${NVCC_GENCODE:+$NVCC_GENCODE }-gencode arch=compute_$tdm_arch,code=sm_$tdm_arch$tdm_ptx"
    cuda_arch="${cuda_arch:+$cuda_arch,}sm_$tdm_arch"])
done
])
