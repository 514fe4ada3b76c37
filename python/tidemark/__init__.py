# SPDX-License-Identifier: Apache-2.0
"""Plans and predicts the memory of a transformer's training step, and reads traces of tidemark's runs.

    import tidemark

    needs = tidemark.predict("qwen2.5-7b", context="16K", machine="4090", set={"lora_rank": 16})
    needs["fits"], needs["peak_bytes"]

    plan = tidemark.plan("qwen2.5-7b", context="64K", memory="24G", output="plan.json")
    plan["step_seconds"]

    with tidemark.Trace("run.db") as trace:
        steps = trace.table("steps")
        steps["loss"], steps["seconds"]

Answers are those of the commands with --json; keyword arguments are their options. It needs libtidemark.so.0 (`make
install` of tidemark); the environment variable TIDEMARK_LIBRARY names another file.
"""

from tidemark.answers import Error, machines, models, plan, predict, version
from tidemark.callback import MemoryCallback
from tidemark.traces import Trace

__all__ = ["Error", "MemoryCallback", "Trace", "machines", "models", "plan", "predict", "version"]
