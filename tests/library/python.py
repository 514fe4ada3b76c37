# SPDX-License-Identifier: Apache-2.0
"""Cases of tests/library/python: answers against the commands, tables against SQL, and the callback with a Trainer's
calls. Prints TAP."""

import importlib
import importlib.metadata
import json
import logging
import math
import os
import sqlite3
import subprocess
import sys
import types

HAS_NUMPY = importlib.util.find_spec("numpy") is not None


def command(*words):
    done = subprocess.run(["tidemark", *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def answers(tidemark):
    assert tidemark.version() == importlib.metadata.version("tidemark")
    assert tidemark.models() == command("models")["models"]
    assert tidemark.models("byte-1m") == command("models", "byte-1m")
    assert tidemark.machines("h200") == command("machines", "h200")
    words = ["--context", "4K", "--machine", "rtx-4090", "--set", "lora_rank=16", "--set", "use_cache=yes"]
    predicted = tidemark.predict(
        "qwen2.5-0.5b", context="4K", machine="rtx-4090", set={"lora_rank": 16, "use_cache": True}
    )
    assert predicted == command("predict", "qwen2.5-0.5b", *words)
    refused = tidemark.predict("qwen2.5-0.5b", context="64K", machine="4090", gpus=None, verbose=False)
    assert not refused["fits"] and refused["peak_bytes"] > 2**34 and refused["remedies"]
    plan = tidemark.plan("byte-1m", context=512, set=["chunk=128", "inputs=host"], output="again.json", force=True)
    assert plan["fits"] and plan["schedule"]["chunk_tokens"] == 128 and os.path.exists("again.json")
    try:
        tidemark.plan("byte-1m", contex_t=512)
    except tidemark.Error as error:
        assert error.status == 1 and "--contex-t" in error.message, error
    else:
        raise AssertionError("a wrong option was taken")
    try:
        tidemark.models("byte-1m\0x")
    except ValueError:
        return
    raise AssertionError("a name was cut at a zero byte")


def rows(text):
    database = sqlite3.connect("file:run.db?mode=ro", uri=True)
    found = database.execute(text).fetchall()
    database.close()
    return found


def same(columns, expected):
    """Are the columns the rows of a query? NULL is -1, NaN or None."""
    got = list(zip(*[list(column) for column in columns]))
    assert len(got) == len(expected), (len(got), len(expected))
    for left, right in zip(got, expected):
        for a, b in zip(left, right):
            unknown = a is None or a == -1 or a != a
            assert (unknown if b is None else a == b or math.isclose(a, b, rel_tol=1e-12)), (left, right)


def tables(tidemark):
    with tidemark.Trace("run.db") as trace:
        assert trace.tables[:4] == ["run", "programs", "places", "steps"]
        every = {name: trace.table(name) for name in trace.tables}
        steps, ops = trace.table("steps"), trace.table("ops", step=3)
        memory, observed = trace.table("memory"), trace.table("observed", step=1)
        buffers, used, arenas = trace.table("buffers", step=1), trace.table("used"), trace.table("arenas", step=1)
        peaks, lanes, times = trace.table("peaks"), trace.table("lanes", step=3), trace.table("times", step=3)
        for words, named in (
            (("nothing",), "nothing"),
            (("ops", 0, 4), "step 4"),
            (("steps", 7), "program 7"),
            (("lanes", 0, 1, 1), "rank 1"),
        ):
            try:
                trace.table(*words)
            except tidemark.Error as error:
                assert named in error.message, error.message
            else:
                raise AssertionError(named + " does not exist and was read")
        for words in ("ops", 0, 2**64 + 3), ("ops", 0, 3, 2**32), ("ops", 0, 3, -1), ("ops\0x",):
            try:
                trace.table(*words)
            except ValueError:
                continue
            raise AssertionError("C takes %r for something else, and it was read" % (words,))
        for step in every["steps"]["step"]:  # numpy's whole numbers, too
            assert len(trace.table("ops", step=step)["op_number"]) == len(ops["op_number"])
    for columns in every.values():
        assert len({len(column) for column in columns.values()}) == 1
    assert list(every["run"]["backend"]) == ["cpu"] and list(every["programs"]["steps"]) == [3]
    assert sorted(every["places"]["place"]) == ["device", "host"]
    names = "step", "loss", "gradient_norm", "seconds", "tokens"
    same([steps[name] for name in names], rows("SELECT %s FROM step ORDER BY step" % ", ".join(names)))
    names = "op_number", "kind", "phase", "lane", "layer", "chunk", "flops", "bytes", "predicted_start_ns", "start_ns", "end_ns"
    same(
        [ops[name] for name in names],
        rows(
            "SELECT number, kind, phase, lane, layer, chunk, flops, bytes, predicted_start_ns, start_ns, end_ns FROM op "
            "JOIN timing ON op_number = number AND step = 3 ORDER BY number"
        ),
    )
    names = "op_number", "place", "category", "value_bytes"
    order = " ORDER BY op_number, place, category"
    for columns, query in (memory, "memory"), (observed, "observed WHERE step = 1"):
        got = sorted(zip(*[list(columns[name]) for name in names]))
        assert got and got == rows("SELECT op_number, place, category, value_bytes FROM " + query + order), query
    assert len(buffers["name"]) > 0 and len(buffers["name"]) == rows("SELECT count(DISTINCT buffer) FROM touched WHERE step = 1")[0][0]
    assert sum(buffers["touched_bytes"]) == rows("SELECT sum(bytes) FROM touched WHERE step = 1")[0][0]
    assert len(used["time_ns"]) == rows("SELECT count(*) FROM used_memory")[0][0]
    got = sorted(zip(arenas["place"], arenas["planned_bytes"], arenas["touched_bytes"]))
    assert got and got == rows("SELECT place, planned_bytes, touched_bytes FROM arena WHERE step = 1 ORDER BY place")
    got = sorted(zip(*[list(column) for column in peaks.values()]))
    assert [tuple(row) for row in got] == rows(
        "SELECT place, category, ifnull(predicted_at_peak_bytes, 0), ifnull(measured_at_peak_bytes, 0), "
        "predicted_most_bytes, measured_most_bytes FROM peak_by_category ORDER BY place, category"
    )
    got = dict(zip(lanes["lane"], lanes["measured_busy_seconds"]))
    for lane, seconds in rows("SELECT lane, measured_busy_seconds FROM stalls WHERE step = 3"):
        assert math.isclose(got[lane], seconds), lane
    assert math.isclose(
        sum(times["measured_seconds"]), rows("SELECT sum(seconds) FROM measured_time WHERE step = 3")[0][0]
    )
    if "numpy" in sys.modules and sys.modules["numpy"] is not None:
        assert steps["loss"].dtype == "float64" and ops["op_number"].dtype == "int64"
    else:
        assert isinstance(steps["loss"], list)


class Trainer:
    """Calls a callback as transformers' Trainer does."""

    def __init__(self, callback, config):
        self.callback = callback
        self.model = types.SimpleNamespace(config=types.SimpleNamespace(to_dict=lambda: config))
        self.state = types.SimpleNamespace(global_step=0, log_history=[])
        self.arguments = types.SimpleNamespace(
            per_device_train_batch_size=2, gradient_checkpointing=True, gradient_checkpointing_kwargs=None, optim="sgd"
        )

    def call(self, event, **values):
        getattr(self.callback, event)(self.arguments, self.state, "control", model=self.model, **values)

    def train(self, steps):
        logs = {"loss": 1.0}
        self.call("on_init_end")
        self.call("on_train_begin")
        for step in range(1, steps + 1):
            self.call("on_step_begin")
            self.state.global_step = step
            self.call("on_step_end")
        self.state.log_history.append({**logs, "step": steps})
        self.call("on_log", logs=logs)
        self.call("on_train_end")
        return logs


def callback(tidemark):
    with open(os.path.join(os.environ["TDM_SRCDIR"], "models/configs/qwen2.5-0.5b.json")) as file:
        config = json.load(file)
    measured = {"allocated": 2**31, "reserved": 2**32}
    memory = tidemark.MemoryCallback(context=1024, measure=lambda: measured)
    trainer = Trainer(memory, config)
    logs = trainer.train(4)
    settings = {"checkpointing": "on-reentrant", "optimizer": "sgd"}
    expected = tidemark.predict("qwen2.5-0.5b", context=1024, batch=2, set=settings)
    assert memory.prediction["peak_bytes"] == expected["peak_bytes"]
    assert [record["step"] for record in memory.records] == [1, 2, 3, 4]
    for record, step in zip(memory.records, [0, 1, 2, 2]):
        step = expected["steps"][step]
        assert record["predicted"] == {
            "allocated": step["peak_allocated_bytes"],
            "reserved": step["peak_reserved_bytes"],
        }
        assert record["measured"] == measured
    peak = expected["steps"][2]["peak_allocated_bytes"]
    assert logs["memory_measured_gib"] == 2 and logs["memory_predicted_gib"] == round(peak / 2**30, 3)
    assert logs["memory_error"] == round(peak / 2**31 - 1, 5)

    assert trainer.state.log_history == [{**logs, "step": 4}]

    # without a GPU nothing is logged; without a prediction the training goes on
    assert Trainer(tidemark.MemoryCallback(context=1024), config).train(2) == {"loss": 1.0}
    for wrong in {"context": 1024, "machine": "nothing"}, {"context": "x"}:
        memory = tidemark.MemoryCallback(measure=lambda: measured, **wrong)
        assert Trainer(memory, config).train(2) == {"loss": 1.0} and memory.prediction is None
    own = tidemark.MemoryCallback(context=512, model="byte-1m", measure=lambda: measured, set={"optimizer": "none"})
    Trainer(own, {}).train(1)
    assert own.prediction["settings"]["optimizer"] == "none"
    try:
        own.nothing
    except AttributeError:
        return
    raise AssertionError("an attribute that does not exist was found")


def absent(tidemark):
    code = "import tidemark\ntry:\n tidemark.version()\nexcept OSError as e:\n print(e)"
    environment = dict(os.environ, TIDEMARK_LIBRARY="/nowhere/lib.so")
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert "TIDEMARK_LIBRARY" in done.stdout and "/nowhere/lib.so" in done.stdout


def main():
    logging.disable(logging.CRITICAL)
    cases = [(case, True) for case in (answers, tables, callback, absent)] + [(tables, False)]
    print("1..%d" % len(cases))
    failed = False
    for number, (case, with_numpy) in enumerate(cases, 1):
        name = case.__name__ + ("" if with_numpy else " without numpy")
        for module in [module for module in sys.modules if module.split(".")[0] == "tidemark"]:
            del sys.modules[module]
        if not with_numpy:
            sys.modules["numpy"] = None  # cannot be imported
        try:
            case(importlib.import_module("tidemark"))
            print("ok %d - %s" % (number, name))
        except Exception:
            import traceback

            print("# " + traceback.format_exc().replace("\n", "\n# "))
            print("not ok %d - %s" % (number, name))
            failed = True
    sys.exit(failed)


main()
