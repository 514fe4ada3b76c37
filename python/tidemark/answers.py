# SPDX-License-Identifier: Apache-2.0
"""Models, machines, plans and predictions, as the commands give them with --json."""

import ctypes
import json

from tidemark import library


class Error(Exception):
    """What tidemark refused or could not do: `status` is a number of enum tidemark_status, `hint` a usual remedy or ""."""

    def __init__(self, status, message, hint):
        super().__init__(message + ("\nhint: " + hint if hint else ""))
        self.status = status
        self.message = message
        self.hint = hint


def raise_error(error):
    """Raises the error that the library filled."""
    raise Error(error.status, error.message.decode(), error.hint.decode())


def _answer(function, *arguments):
    """Calls a function that gives an answer; an answer that says "does not fit" is one, too."""
    lib = library.load()
    handle = ctypes.c_void_p()
    error = library.ErrorStruct()
    status = getattr(lib, function)(*arguments, ctypes.byref(handle), ctypes.byref(error))
    if status not in (library.OK, library.INFEASIBLE):
        raise_error(error)
    try:
        return json.loads(lib.tidemark_answer_json(handle))
    finally:
        lib.tidemark_answer_free(handle)


def _words(options):
    """Options of the command line: chunk_tokens=4 is --chunk-tokens 4, True is an option without a value, a list is one
    that is repeated, and of a dict each pair is KEY=VALUE."""
    words = []
    for name, value in options.items():
        word = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(library.text(word))
            continue
        if isinstance(value, dict):
            value = ["%s=%s" % (key, _plain(one)) for key, one in value.items()]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [library.text(word), library.text(one)]
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _plain(value):
    return ("yes" if value else "no") if isinstance(value, bool) else value


def version():
    """The library's version."""
    return library.load().tidemark_version().decode()


def models(model=None):
    """A list of the shipped models, or one with its tensors: a name, the path of a config.json or its folder."""
    answer = _answer("tidemark_models", None if model is None else library.text(model))
    return answer["models"] if model is None else answer


def machines(machine=None):
    """A list of the shipped machines, or one with its rates: a name, a file, or "local"."""
    answer = _answer("tidemark_machines", None if machine is None else library.text(machine))
    return answer["machines"] if machine is None else answer


def plan(model, **options):
    """The plan of a step, as `tidemark plan MODEL --json` prints it: its figures, and the "schedule".

    Options are those of the command, as context="64K", memory="24G", set={"chunk": "4K"}; output="plan.json" writes the
    schedule for `tidemark run`. If nothing fits, "fits" is False, and "message" and "hint" say what would.
    """
    return _answer("tidemark_plan", library.text(model), _words(options))


def predict(model, **options):
    """What another system needs for a step, as `tidemark predict MODEL --json` prints it.

    Options are those of the command, as context="16K", method="fsdp", gpus=2, machine="4090", set={"lora_rank": 16}. If
    it does not fit, "fits" is False, and "message" and "remedies" say what would help.
    """
    return _answer("tidemark_predict", library.text(model), _words(options))
