"""Runs many small cases in worker processes and writes down what each of them computed.

A case is a function that returns arrays by name. Every case runs by itself: with its own seed,
twice (so that the report says whether a repetition gives the same bits), and in a worker process
that is replaced when a case kills it, hangs, or leaves the GPU unusable. Of every array the
report keeps shape, type, norm, largest magnitude and SHA-256; a sample of the values goes to a
folder beside the report, so that two reports can be compared value by value.
"""

import argparse
import hashlib
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import unittest.mock
import zlib

import numpy as np

SAMPLE = 4096
REPEATED = "repeated run gives the same bits"
CASES = {}


class Skip(Exception):
    """Raised by a case that does not apply, with the reason."""


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules in place of the frameworks: the process that only hands out names need
    not load them."""

    ROOTS = ("torch", "transformer_engine", "jax", "flax")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = unittest.mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        pass


def without_frameworks():
    """Called before the cases are imported, unless this process is a worker."""
    if "--worker" not in sys.argv:
        sys.meta_path.insert(0, Absent())


class Case:
    def __init__(self, group, name, params, function, settings):
        self.group, self.params, self.function = group, params, function
        text = ",".join(f"{key}={value}" for key, value in params.items()).replace(" ", "")
        self.id = f"{group}/{name}" + (f"[{text}]" if text else "")
        self.environment = settings.get("environment") or {}
        self.compare = settings.get("compare", "values")
        self.tolerance = settings.get("tolerance", "auto")
        self.repeat = settings.get("repeat", True)
        self.timeout = settings.get("timeout", 90)


def case(
    group,
    name=None,
    when=None,
    environment=None,
    compare="values",
    tolerance="auto",
    repeat=True,
    timeout=90,
    **grid,
):
    """Registers a function as one case for every combination of the grid's values.

    `when` drops combinations: it takes the parameters and says whether the case exists.
    `environment` holds variables that the worker must have before it imports anything. `compare`
    is "values", "bits" (for whole numbers and copies) or "statistics" (for random results, of
    which only the norm is compared). `tolerance` names a row of the table in compare.py.
    """
    settings = dict(
        environment=environment,
        compare=compare,
        tolerance=tolerance,
        repeat=repeat,
        timeout=timeout,
    )

    def register(function):
        for values in itertools.product(*grid.values()):
            params = dict(zip(grid, values))
            if when is None or when(types.SimpleNamespace(**params)):
                made = Case(group, name or function.__name__, params, function, settings)
                if made.id in CASES:
                    raise ValueError(f"two cases are named {made.id}")
                CASES[made.id] = made
        return function

    return register


def summary(array):
    """What the report says of one array (NumPy, any type), and the sample that is kept of its
    values."""
    array = np.ascontiguousarray(array)
    wide = array.astype(np.float64).ravel()
    finite = wide[np.isfinite(wide)]
    step = max(1, -(-wide.size // SAMPLE))
    step += step > 1 and step % 2 == 0  # An odd step does not stay in one column of a power of two.
    facts = {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "norm": float(np.sqrt(np.sum(finite * finite))),
        "max": float(np.max(np.abs(finite))) if finite.size else 0.0,
        "not_finite": int(wide.size - finite.size),
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }
    return facts, wide[::step].astype(np.float32)


class Worker:
    """One process that runs the cases whose names it is sent."""

    failures = (
        0  # of starts in a row; a core that cannot be imported must not be tried for every case
    )

    def __init__(self, options, number, environment):
        self.environment = environment
        read, write = os.pipe()
        environ = dict(os.environ, **environment)
        self.log = open(os.path.join(options.folder, f"worker-{number}.log"), "ab")
        command = [sys.executable, sys.argv[0], "--worker", str(write), "--folder", options.folder]
        if options.exchange:
            command += ["--exchange", options.exchange]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[write],
            env=environ,
        )
        os.close(write)
        self.reply, self.buffer = read, b""
        self.failed = (
            None
            if self.receive(120) == {"ready": True}
            else "the worker did not start" + self.last_words()
        )
        Worker.failures = Worker.failures + 1 if self.failed else 0

    def receive(self, timeout):
        """The next line that the worker sends, "timeout", or None when it has ended."""
        end = time.time() + timeout
        while b"\n" not in self.buffer:
            left = end - time.time()
            if left <= 0 or not select.select([self.reply], [], [], left)[0]:
                return "timeout"
            data = os.read(self.reply, 1 << 16)
            if not data:
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def run(self, item):
        try:
            self.process.stdin.write((item.id + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return {
                "status": "crash",
                "error": "the worker had ended before this case",
                "usable": False,
            }
        answer = self.receive(item.timeout)
        if answer == "timeout":
            self.process.kill()
            return {"status": "timeout", "error": f"no answer in {item.timeout} s", "usable": False}
        if answer is None:
            code = self.process.wait()
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return {
                "status": "crash",
                "error": f"the process ended: {name}{self.last_words()}",
                "usable": False,
            }
        return answer

    def last_words(self):
        """The last line of the log that names an error, since a terminated process leaves no
        exception."""
        with open(self.log.name, "rb") as log:
            lines = log.read()[-20000:].decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if re.search(r"what\(\)|rror|terminate|ault", line)]
        return f": {said[-1][:300]}" if said else ""

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
        os.close(self.reply)
        self.log.close()


def run_chunks(options, number, chunks, results, progress):
    worker, starts = None, 0
    while True:
        try:
            chunk = chunks.get_nowait()
        except queue.Empty:
            break
        for item in chunk:
            if time.time() > options.deadline:
                results[item.id] = {
                    "status": "not run",
                    "error": "the time for the whole run was spent",
                }
                continue
            if worker and worker.environment != item.environment:
                worker.close()
                worker = None
            if worker is None and Worker.failures > 2 * options.jobs:
                results[item.id] = {"status": "not run", "error": "workers do not start"}
                continue
            if worker is None:
                worker = Worker(options, f"{number}-{starts}", item.environment)
                starts += 1
            answer = (
                {"status": "crash", "error": worker.failed, "usable": False}
                if worker.failed
                else worker.run(item)
            )
            if not answer.pop("usable", True):
                worker.close()
                worker = None
            results[item.id] = answer
            progress(item, answer)
    if worker:
        worker.close()


def chunked(cases, size=24):
    """Cases in chunks of one group and one environment; long chunks first come first."""
    chunks = []
    for _, members in itertools.groupby(
        cases, key=lambda c: (c.group, sorted(c.environment.items()), c.timeout)
    ):
        members = list(members)
        width = size if members[0].timeout <= 90 else 2
        chunks += [members[i : i + width] for i in range(0, len(members), width)]
    # Slow cases first; a worker keeps its process while the environment stays the same.
    return sorted(
        chunks, key=lambda chunk: (-chunk[0].timeout, sorted(chunk[0].environment.items()))
    )


def serve(adapter, reply_fd, options):
    """The worker's side: reads names of cases, answers one line each."""
    os.set_inheritable(
        reply_fd, False
    )  # A child that outlives this process would hide its end from the parent.
    reply = os.fdopen(reply_fd, "w", buffering=1)
    adapter.start(options)
    print(json.dumps({"ready": True}), file=reply)
    for line in sys.stdin:
        item = CASES[line.strip()]
        begin = time.time()
        print(f"=== {item.id}", flush=True)
        try:
            first = adapter.run(item)
            answer = {"status": "pass", "arrays": {}, "flags": {}}
            samples = {}
            for name, value in first.items():
                if isinstance(value, bool):
                    answer["flags"][name] = value
                else:
                    answer["arrays"][name], samples[name] = summary(value)
            if item.repeat:
                again = {k: v for k, v in adapter.run(item).items() if not isinstance(v, bool)}
                same = all(
                    summary(again[name])[0]["sha256"] == facts["sha256"]
                    for name, facts in answer["arrays"].items()
                )
                answer["flags"][REPEATED] = bool(same)
            np.savez(
                os.path.join(options.folder, file_name(item.id)),
                **{f"a{i}": s for i, s in enumerate(samples.values())},
            )
        except Skip as reason:
            answer = {"status": "skip", "error": str(reason)}
        except Exception as error:  # Whatever a case raises is its result.
            traceback.print_exc()
            answer = {
                "status": "fail",
                "error": f"{type(error).__name__}: {str(error).strip()[:1500]}",
            }
        sys.stdout.flush()
        answer["usable"] = adapter.clean()
        answer["seconds"] = round(time.time() - begin, 3)
        answer["compare"], answer["tolerance"], answer["params"] = (
            item.compare,
            item.tolerance,
            {k: str(v) for k, v in item.params.items()},
        )
        print(json.dumps(answer), file=reply)
        if not answer["usable"]:
            os._exit(0)
    os._exit(0)  # Destructors at exit are not what is tested here.


def file_name(case_id):
    return hashlib.sha1(case_id.encode()).hexdigest()[:16] + ".npz"


def seed_of(case_id):
    return zlib.crc32(case_id.encode()) & 0x7FFFFFFF


def main(adapter):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--filter", default="", help="regular expression that a case's name must contain"
    )
    parser.add_argument(
        "--out",
        default="results.json",
        help="the report; the samples go to the folder of that name without .json",
    )
    parser.add_argument("--jobs", type=int, default=6, help="worker processes on the one GPU")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds after which no further case starts"
    )
    parser.add_argument(
        "--exchange", help="folder of samples of the other core's run, whose checkpoints are loaded"
    )
    parser.add_argument("--every", type=int, default=1, help="run every n-th case only")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        serve(adapter, options.worker, options)
    cases = [c for c in CASES.values() if re.search(options.filter, c.id)][:: options.every]
    if not options.exchange:
        cases = [c for c in cases if c.group != "exchange"]
    if options.list:
        print("\n".join(c.id for c in cases))
        return
    options.folder = os.path.abspath(options.out.removesuffix(".json"))
    if options.exchange:
        options.exchange = os.path.abspath(options.exchange)
    os.makedirs(options.folder, exist_ok=True)
    options.deadline = time.time() + options.limit
    begin, results, chunks = time.time(), {}, queue.Queue()
    for chunk in chunked(cases):
        chunks.put(chunk)
    lock, counts = threading.Lock(), {}

    def progress(item, answer):
        with lock:
            counts[answer["status"]] = counts.get(answer["status"], 0) + 1
            if sum(counts.values()) % 100 == 0:
                print(f"{time.time() - begin:6.1f} s  {counts}", flush=True)

    threads = [
        threading.Thread(target=run_chunks, args=(options, n, chunks, results, progress))
        for n in range(options.jobs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = round(time.time() - begin, 1)
    with open(options.out, "w") as out:
        json.dump({"seconds": seconds, "cases": results}, out)
    groups = {}
    for item in cases:
        row = groups.setdefault(item.group, {})
        state = results.get(item.id, {}).get("status", "not run")
        row[state] = row.get(state, 0) + 1
        row["seconds"] = row.get("seconds", 0) + results.get(item.id, {}).get("seconds", 0)
    for group, row in groups.items():
        print(f"{group:24s} {row.pop('seconds'):7.1f} s  {row}")
    print(f"{len(cases)} cases in {seconds} s: {counts}")
