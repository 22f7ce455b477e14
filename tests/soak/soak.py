"""Open, slice, compute, export and follow files while workers, files and disks fail.

Run as a program: ``python soak.py --minutes 60``. Each operation and its fault are drawn from
``--seed`` and the operation's number, and its pixels are known. The last line is PASS, or FAIL with
the reason.
"""

import argparse
import faulthandler
import gc
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
USERS = 2


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="duration")
    parser.add_argument("--operations", type=int, help="number of operations")
    parser.add_argument("--first", type=int, default=0, help="number of the first operation")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--warm-up", type=int, help="operations before growth is measured")
    parser.add_argument("--only", type=int, help="run only the operation of this number")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds before a hang is reported"
    )
    parser.add_argument("--plant", default="", help="faults of preloaded.py, comma-separated")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments):
    """Run the soak in a child process that may mount disks, and report processes left behind."""
    options = options_of(arguments)
    if options.inside:
        return Soak(options).run()
    mark = f"soak-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for name in ("tmp", "disks"):
            (Path(folder) / name).mkdir()
        alone = ["unshare", "--map-root-user", "--mount"]
        with suppress(OSError):
            if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
                alone = []
        paths = [HERE.parents[1], HERE.parent, HERE]
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TMPDIR": f"{folder}/tmp",
            "DASK_TEMPORARY_DIRECTORY": f"{folder}/scratch",
            # By default a thousand profiles and messages with graphs are kept: 100 MiB.
            "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "100",
            # Return freed memory to the system, so that growth shows memory in use.
            "MALLOC_ARENA_MAX": "2",
            "MALLOC_TRIM_THRESHOLD_": "65536",
            "SOAK_MARK": mark,
            "SOAK_PLANTED": options.plant,
        }
        command = [*alone, sys.executable, __file__, *arguments, "--inside", folder]
        process = subprocess.Popen(command, env=os.environ | environment)
        for number in (signal.SIGINT, signal.SIGTERM):  # the child then stops and reports
            signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
        code = process.wait()
        patience = time.monotonic() + 60
        while (left := processes(mark)) and time.monotonic() < patience:
            time.sleep(0.1)
        for pid, command in left.items():
            print(f"FAIL: process {pid} is left: {command}")
            os.kill(pid, signal.SIGKILL)
    return code or bool(left)


def processes(mark):
    """Return the running processes of a soak, with their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"SOAK_MARK={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # zombies have none
                    found[int(folder.name)] = command
    return found


async def _turn():
    """Run on an event loop after what was queued before."""


class Cluster:
    """A scheduler and three workers.

    One is killed, stopped and paused at times; the machine of another fails in some operations.
    """

    def __init__(self, folder, faults, stack):
        from clusters import started
        from distributed import Client

        self.folder, self.faults, self.stack = folder, faults, stack
        faults.mkdir()
        self.address = str(folder / "scheduler.json")
        self.lock, self.lives = threading.Lock(), itertools.count()
        self.logs = {}
        self.happened, self.deaths = Counter(), 0
        self.started = partial(started, PYTHONPATH=os.environ["PYTHONPATH"])
        preload = ["--preload", str(HERE / "preloaded.py"), "--no-dashboard"]
        self.common = [*preload, "--scheduler-file", self.address, "--host", "127.0.0.1"]
        folder.mkdir()
        scheduler = ["scheduler", *self.common, "--port", "0"]
        stack.enter_context(self.started(folder / "s", *scheduler))
        self.steady, self.mortal = self._worker("steady"), self._worker("mortal")
        self.failing = self._worker("failing")
        self.client = stack.enter_context(Client(scheduler_file=self.address, timeout=300))
        self.client.wait_for_workers(3, timeout=300)

    def _worker(self, name):
        where = self.folder / str(next(self.lives))
        command = ["worker", *self.common, "--no-nanny", "--nthreads", "2", "--death-timeout", "60"]
        command += ["--memory-limit", "2GB"]  # room to grow: a paused worker would hide growth
        more = {}
        if name == "failing":
            command += ["--preload", str(HERE / "failing.py")]
            more["SOAK_FAULTS"] = str(self.faults)
        process = self.stack.enter_context(self.started(where, *command, **more))
        self.logs[process.pid] = where / "log"
        return process

    def happen(self, fault, number):
        """Cause a fault of a worker if all run; return whether it happened."""
        with self.lock:
            works = len(self.client.scheduler_info(n_workers=-1)["workers"]) == 3
            if not works:
                return False
            if fault == "worker killed":
                self.mortal.kill()
                self.mortal.wait()
                self.mortal = self._worker("mortal")
            elif fault == "worker stopped":
                os.kill(self.mortal.pid, signal.SIGSTOP)
                time.sleep(2)
                os.kill(self.mortal.pid, signal.SIGCONT)
            elif fault == "worker paused":
                self._pause(for_seconds=2)
            else:
                beside = self.faults.with_name(f"fault-{number}")
                beside.write_text(fault.removeprefix("worker "))
                beside.rename(self.faults / str(number))
            self.happened[fault] += 1
        return True

    def end(self, number):
        """End the fault of the failing worker in an operation."""
        (self.faults / str(number)).unlink(missing_ok=True)

    def forget_errors(self):
        """Release the futures of failed tasks: dask returns their errors while futures live.

        The event loop of the client releases futures in turn: first that of the result, whose
        error holds the frames of the call, and with them the futures of a persisted array.
        """
        self.client.sync(_turn)
        gc.collect()
        self.client.sync(_turn)

    def _pause(self, for_seconds):
        from distributed import Status

        def set_status(status, pid, dask_worker):
            if os.getpid() == pid:
                dask_worker.status = status

        for status in (Status.paused, Status.running):
            self.client.run(set_status, status, self.mortal.pid)
            time.sleep(for_seconds)

    def tasks_left(self):
        """Return the number of tasks that stay on the scheduler for a minute."""
        for _ in range(600):
            gc.collect()
            count = self.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
            if not count:
                break
            time.sleep(0.1)
        return count

    def look_for_deaths(self):
        """Count and restart workers that ended by themselves."""
        with self.lock:
            for name in ("steady", "mortal", "failing"):
                process = getattr(self, name)
                code = process.poll()
                if code is not None:
                    print(f"a worker has ended by itself, with code {code}:", flush=True)
                    print(self.logs[process.pid].read_text(errors="replace")[-5000:], flush=True)
                    self.deaths += 1
                    setattr(self, name, self._worker(name))


class Soak:
    """Users that run operations, and the judgement of the whole run."""

    def __init__(self, options):
        import preloaded  # noqa: F401 - prepares this process

        self.options, self.root = options, options.inside
        self.warm = options.warm_up
        self.counts = {
            name: Counter() for name in ("operations", "right", "typed errors", "faults")
        }
        self.wrong = dict.fromkeys(
            ("checksums", "unnoticed", "errors", "hangs", "deaths", "leftovers"), 0
        )
        self.next, self.done = itertools.count(options.first), 0
        self.since = {}
        self.lock = threading.Lock()
        self.stop, self.parent = False, os.getppid()

    def mount(self, folder, size):
        """Mount a tmpfs in this namespace, and return whether that worked."""
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "none", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True)
        return done.returncode == 0

    def run(self):
        """Run the soak, print the report, and exit."""
        from watching import Course, files_in, taken_by

        options = self.options
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop", True))
        self.disks = [self.root / "disks" / str(k) for k in range(USERS)]
        shared = Path("/dev/shm")
        mounted = all(self.mount(disk, 96) for disk in self.disks) and self.mount(shared, 512)
        if not mounted:
            self.disks = []
            print("no tmpfs can be mounted: no disk is filled", flush=True)
        self.ios = ["auto", "auto", "mmap", "buffered"] + ["direct"] * self._takes_direct()
        temporary = [Path(tempfile.gettempdir())] + [shared] * mounted
        with ExitStack() as stack:
            self.cluster = Cluster(self.root / "cluster", self.root / "faults", stack)

            def look():
                self.cluster.look_for_deaths()
                return self.done, {
                    "client": taken_by(os.getpid()),
                    "worker": taken_by(self.cluster.steady.pid),
                    "failing worker": taken_by(self.cluster.failing.pid),
                    "worker that is killed": taken_by(self.cluster.mortal.pid),
                    "all": files_in(*temporary),
                }

            # Short runs have a sample after each operation, however fast these are.
            course = self.course = Course(options.minutes and options.minutes * 60 / 1000, look)
            course.start()
            began = time.monotonic()
            self._work(began)
            course.stop()
            tasks = 0 if self.wrong["hangs"] else self.cluster.tasks_left()
            seconds = time.monotonic() - began
        self.warm = self.warm or self.done // 3
        left = [str(path) for folder in temporary for path in folder.rglob("*")]
        left += [str(path) for path in (self.root / "operations").glob("*")]
        self.wrong["leftovers"] += len(left) + bool(tasks)
        self.wrong["deaths"] += self.cluster.deaths
        self.counts["faults"] += self.cluster.happened
        for path in left[:10]:
            print(f"left: {path}")
        if tasks:
            print(f"left: {tasks} tasks of the scheduler")
        print(course.table(self.warm))
        print(f"{self.done} operations in {seconds:.0f} s, seed {options.seed}")
        for name, counted in self.counts.items():
            print(f"{name}: {sum(counted.values())} {json.dumps(dict(sorted(counted.items())))}")
        print(f"wrong: {json.dumps(self.wrong)}")
        failed = [f"{count} {name}" for name, count in self.wrong.items() if count]
        if options.only is None:
            grown = course.judge(self.warm, ["client", "worker", "failing worker"])
            failed += [f"{name} {grew}" for name, grew in grown.items()]
        print("FAIL: " + ", ".join(failed) if failed else "PASS", flush=True)
        # A hanging thread would keep the process alive.
        sys.stdout.flush()
        os._exit(bool(failed))

    def _takes_direct(self):
        path = self.root / "direct"
        path.write_bytes(b"0" * 4096)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
        return True

    def _work(self, began):
        """Run users until the end, and report operations that hang."""
        options = self.options
        threads = [self._user(k) for k in range(USERS if options.only is None else 1)]
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            self.stop |= os.getppid() != self.parent
            if options.minutes and time.monotonic() - began > options.minutes * 60:
                self.stop = True
            for thread in threads:
                begun, what = self.since.get(thread, (None, None))
                if begun is not None and time.monotonic() - begun > options.limit:
                    print(f"HANGS: {what}", flush=True)
                    faulthandler.dump_traceback(file=sys.stderr)
                    self.wrong["hangs"] += 1
                    self.stop = True  # a hang holds workers and locks that later operations need
                    threads = [other for other in threads if other is not thread]

    def _user(self, k):
        thread = threading.Thread(target=self._operate, args=(k,), daemon=True)
        thread.start()
        return thread

    def _operate(self, k):
        me = threading.current_thread()
        while not self.stop:
            number = next(self.next)
            if self.options.only is not None:
                number, self.stop = self.options.only, True
            elif number >= self.options.first + (self.options.operations or math.inf):
                return
            self.since[me] = time.monotonic(), number
            self._operation(k, number)
            del self.since[me]

    def _operation(self, k, number):
        from operations import FoundError, Operation, Run

        disks = self.disks
        operation = Operation.of(self.options.seed, number, self.ios, full_disks=bool(disks))
        run = failed = kind = None
        try:
            run = Run(operation, self.root, disks[k] if disks else None, self.cluster)
            self.since[threading.current_thread()] = time.monotonic(), operation
            run()
        except FoundError as error:
            failed, kind = error, error.kind
        except Exception as error:  # noqa: BLE001 - counted, and shown
            failed, kind = error, "errors"
        self._count(operation, run, failed, kind)
        if not self.options.minutes:
            self.course.sample()

    def _count(self, operation, run, failed, kind):
        from faults import OF_WORKERS

        with self.lock:
            self.done += 1
            self.counts["operations"][operation.work] += 1
            if run is not None:
                if run.faults and operation.fault not in OF_WORKERS:
                    self.counts["faults"][operation.fault] += 1
                self.counts["typed errors"].update(run.errors)
            if failed is None:
                self.counts["right"]["with an error first" if run.errors else "at once"] += 1
                return
            self.wrong[kind] += 1
            print(f"WRONG: {operation}\n{''.join(traceback.format_exception(failed))}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
