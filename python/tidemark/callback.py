# SPDX-License-Identifier: Apache-2.0
"""A callback for transformers' Trainer that logs predicted beside measured memory.

    trainer = Trainer(..., callbacks=[tidemark.MemoryCallback(context=4096, machine="local")])

It needs neither transformers nor torch to be imported; it has the methods that the Trainer calls.
"""

import json
import logging
import os
import sys
import tempfile

from tidemark.answers import Error, predict

logger = logging.getLogger("tidemark")

# Names of transformers' `optim` for the optimizers that predict has.
_OPTIMIZERS = {
    "adamw_torch": "adamw-foreach",
    "adamw_torch_fused": "adamw-fused",
    "sgd": "sgd",
}


def _named(value):
    """The text of a value that may be an enum, as training arguments have."""
    return str(getattr(value, "value", value))


def _settings(arguments):
    """What the Trainer's arguments say of a step, as settings of predict."""
    settings = {}
    if getattr(arguments, "gradient_checkpointing", False):
        options = getattr(arguments, "gradient_checkpointing_kwargs", None) or {}
        settings["checkpointing"] = "on-reentrant" if options.get("use_reentrant", True) else "on"
    optimizer = _OPTIMIZERS.get(_named(getattr(arguments, "optim", "")))
    if optimizer is not None:
        settings["optimizer"] = optimizer
    return settings


def _measured():
    """Most bytes of the device that PyTorch had since the last call; None where it has no GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    measured = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
    torch.cuda.reset_peak_memory_stats()
    return measured


class MemoryCallback:
    """Predicts when the training begins, measures at each step, and adds both to what the Trainer logs:
    memory_predicted_gib, memory_measured_gib (allocated bytes, at their most) and memory_error.

    `context` is the length of the sequences. Other options are those of tidemark.predict(); `model` by default is the
    config of the model that is trained, batch, checkpointing and optimizer those of the training arguments, and `set` adds
    settings or replaces them. `measure` gives {"allocated": bytes, "reserved": bytes} in place of PyTorch's counters.

    A prediction that is not possible is a warning, and the training goes on. `records` has a dict for each step:
    "step", "predicted" and "measured" with "allocated" and "reserved" bytes.
    """

    def __init__(self, context, model=None, measure=_measured, **options):
        self.context = context
        self.model = model
        self.measure = measure
        self.options = options
        self.prediction = None
        self.records = []

    def __getattr__(self, name):
        # events that the Trainer has and this class does not need
        if name.startswith("on_"):
            return lambda *arguments, **values: None
        raise AttributeError(name)

    def _predict(self, model, options):
        if self.model is not None:
            return predict(self.model, **options)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            with open(path, "w") as file:
                json.dump(model.config.to_dict(), file, default=str)
            return predict(path, **options)

    def on_train_begin(self, args, state, control, model=None, **_):
        """Predicts."""
        options = {"context": self.context, "batch": getattr(args, "per_device_train_batch_size", 1), **self.options}
        options["set"] = {**_settings(args), **self.options.get("set", {})}
        try:
            self.prediction = self._predict(model, options)
        except (Error, OSError, AttributeError) as reason:
            logger.warning("no prediction: %s", reason)
            return
        self.measure()  # from now on
        if not self.prediction["fits"]:
            logger.warning("%s", self.prediction["message"])

    def _predicted(self, step):
        """The peaks of a step of this process; later steps are as the last that is predicted."""
        steps = self.prediction.get("steps", [])
        of = steps[min(step, len(steps)) - 1] if steps else self.prediction
        return {"allocated": of["peak_allocated_bytes"], "reserved": of["peak_reserved_bytes"]}

    def on_step_end(self, args, state, control, **_):
        """Measures."""
        measured = self.measure() if self.prediction is not None else None
        if measured is None:
            return
        predicted = self._predicted(len(self.records) + 1)
        self.records.append({"step": state.global_step, "predicted": predicted, "measured": measured})

    def on_log(self, args, state, control, logs=None, **_):
        """Adds the last step to the log, and to the history, to which the Trainer has added a copy of the log."""
        if logs is None or not self.records:
            return
        predicted, measured = (self.records[-1][side]["allocated"] for side in ("predicted", "measured"))
        history = getattr(state, "log_history", None)
        for row in [logs, *(history[-1:] if history else [])]:
            row["memory_predicted_gib"] = round(predicted / 2**30, 3)
            row["memory_measured_gib"] = round(measured / 2**30, 3)
            row["memory_error"] = round(predicted / measured - 1, 5) if measured > 0 else None

    def on_train_end(self, args, state, control, **_):
        """Says how far apart they were."""
        if not self.records:
            return
        top = max(self.records, key=lambda record: record["measured"]["allocated"])
        logger.info(
            "peak of step %d: predicted %.2f GiB, measured %.2f GiB",
            top["step"],
            top["predicted"]["allocated"] / 2**30,
            top["measured"]["allocated"] / 2**30,
        )
