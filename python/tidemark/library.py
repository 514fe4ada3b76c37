# SPDX-License-Identifier: Apache-2.0
"""The C library, with the types of its functions (tidemark.h)."""

import ctypes
import functools
import operator
import os
import sys

NAME = "libtidemark.so.0"

OK, INFEASIBLE = 0, 3
INTEGERS, REALS, TEXTS = range(3)


class ErrorStruct(ctypes.Structure):
    """struct tidemark_error"""

    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 768), ("hint", ctypes.c_char * 1536)]


_handle, _text, _number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
_handle_out, _error = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ErrorStruct)

_FUNCTIONS = {
    "tidemark_version": (_text, []),
    "tidemark_models": (ctypes.c_int, [_text, _handle_out, _error]),
    "tidemark_machines": (ctypes.c_int, [_text, _handle_out, _error]),
    "tidemark_plan": (ctypes.c_int, [_text, ctypes.POINTER(_text), _handle_out, _error]),
    "tidemark_predict": (ctypes.c_int, [_text, ctypes.POINTER(_text), _handle_out, _error]),
    "tidemark_answer_json": (_text, [_handle]),
    "tidemark_answer_free": (None, [_handle]),
    "tidemark_trace_open": (ctypes.c_int, [_text, _handle_out, _error]),
    "tidemark_trace_close": (None, [_handle]),
    "tidemark_trace_read": (
        ctypes.c_int,
        [_handle, _text, ctypes.c_int64, ctypes.c_int64, _number, _handle_out, _error],
    ),
    "tidemark_trace_table_name": (_text, [_number]),
    "tidemark_table_rows": (ctypes.c_uint64, [_handle]),
    "tidemark_table_columns": (_number, [_handle]),
    "tidemark_table_name": (_text, [_handle, _number]),
    "tidemark_table_type": (ctypes.c_int, [_handle, _number]),
    "tidemark_table_integers": (ctypes.POINTER(ctypes.c_int64), [_handle, _number]),
    "tidemark_table_reals": (ctypes.POINTER(ctypes.c_double), [_handle, _number]),
    "tidemark_table_texts": (ctypes.POINTER(_text), [_handle, _number]),
    "tidemark_table_free": (None, [_handle]),
}


def text(value):
    """Bytes for C: a text that would end at a zero byte is refused."""
    words = os.fsencode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value).encode()
    if b"\0" in words:
        raise ValueError("a text has a zero byte: %r" % (value,))
    return words


def number(name, value, kind):
    """A whole number, numpy's too, which C has as `kind`: one that it would cut is refused."""
    value = operator.index(value)
    if kind(value).value != value:
        raise ValueError("%s is out of range: %d" % (name, value))
    return value


def _places():
    """Where the library may be: what the user says, what the system finds, and where make install puts it."""
    if os.environ.get("TIDEMARK_LIBRARY"):
        return [os.environ["TIDEMARK_LIBRARY"]]
    return [NAME, os.path.join(sys.prefix, "lib", NAME), os.path.join("/usr/local/lib", NAME)]


@functools.lru_cache(maxsize=None)
def load():
    """The loaded library; OSError if there is none."""
    reasons = []
    for place in _places():
        try:
            library = ctypes.CDLL(place)
            break
        except OSError as reason:
            reasons.append(str(reason))
    else:
        raise OSError(
            "%s was not found: run make install of tidemark, or name it in TIDEMARK_LIBRARY (%s)"
            % (NAME, "; ".join(reasons))
        )
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
