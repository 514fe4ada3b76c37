# SPDX-License-Identifier: Apache-2.0
"""Traces of runs, as tables of columns."""

import ctypes
import os

from tidemark import library
from tidemark.answers import raise_error

try:
    import numpy
except ImportError:
    numpy = None

EVERY_STEP = -1


def _column(lib, table, number, rows):
    """A numpy array, or a list where numpy is missing."""
    kind = lib.tidemark_table_type(table, number)
    if kind == library.TEXTS:
        values = lib.tidemark_table_texts(table, number)
        texts = [None if values[i] is None else values[i].decode() for i in range(rows)]
        if numpy is None:
            return texts
        array = numpy.empty(rows, dtype=object)
        array[:] = texts
        return array
    values = (lib.tidemark_table_integers if kind == library.INTEGERS else lib.tidemark_table_reals)(table, number)
    if numpy is None:
        return values[:rows]
    if rows == 0:
        return numpy.empty(0, dtype="int64" if kind == library.INTEGERS else "float64")
    return numpy.ctypeslib.as_array(values, shape=(rows,)).copy()


class Trace:
    """A trace that `tidemark run --trace FILE` wrote. It shows what it had when it was opened."""

    def __init__(self, path):
        self._handle = None
        self._library = library.load()
        handle = ctypes.c_void_p()
        error = library.ErrorStruct()
        if self._library.tidemark_trace_open(library.text(os.fspath(path)), ctypes.byref(handle), ctypes.byref(error)):
            raise_error(error)
        self._handle = handle

    def close(self):
        """Closes it. Tables that were read stay."""
        if self._handle is not None:
            self._library.tidemark_trace_close(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    __del__ = close

    @property
    def tables(self):
        """The names of all tables; docs/library.md describes them."""
        names = []
        while True:
            name = self._library.tidemark_trace_table_name(len(names))
            if name is None:
                return names
            names.append(name.decode())

    def table(self, name, program=0, step=EVERY_STEP, rank=0):
        """A table as a dict of columns, each a numpy array, or a list where numpy is missing. What is not known is -1, NaN
        or None. `program` is one of the table "programs", by default the first."""
        if self._handle is None:
            raise ValueError("the trace is closed")
        lib = self._library
        table = ctypes.c_void_p()
        error = library.ErrorStruct()
        program = library.number("program", program, ctypes.c_int64)
        step = library.number("step", step, ctypes.c_int64)
        rank = library.number("rank", rank, ctypes.c_uint32)
        if lib.tidemark_trace_read(
            self._handle, library.text(name), program, step, rank, ctypes.byref(table), ctypes.byref(error)
        ):
            raise_error(error)
        try:
            rows = lib.tidemark_table_rows(table)
            return {
                lib.tidemark_table_name(table, number).decode(): _column(lib, table, number, rows)
                for number in range(lib.tidemark_table_columns(table))
            }
        finally:
            lib.tidemark_table_free(table)
