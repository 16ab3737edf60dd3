"""Programs for tests, in processes forked from one that has imported torch: that takes longer than most of them do.

Each has a folder and arguments of its own, begins with nothing but imports, and ends as any program of Python does.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PATIENCE = 600
"""Seconds that a program may take."""

ROOT = Path(__file__).parents[1]

RANK = """
import atexit, importlib, json, os, pathlib, sys
import torch.distributed as dist
from monitorch.engine import meeting
meeting.PATIENCE = meeting.AGREEING = 60  # on a busy machine one process may be far behind the other
module, name, folder, options, *ranks = sys.argv[1:]
(world_size, rank), folder = map(int, ranks), pathlib.Path(folder)
if json.loads(options).get("device") != "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what spreads parameters over processes would choose a GPU that is there
meeting_point = dist.FileStore(str(folder / "meeting_point"), world_size)  # where the first says how to be reached
port = int(meeting_point.get("port")) if rank else 0
store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, wait_for_workers=False)  # the one of torchrun
meeting_point.set("port", str(store.port))
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
result = getattr(importlib.import_module(module), name)(rank, folder, **json.loads(options))
(folder / f"result-{rank}.json").write_text(json.dumps(result))
dist.destroy_process_group()
atexit._run_exitfuncs()  # as at the end of any program
os._exit(0)  # threads of gloo may outlive their group, and abort a process that takes itself apart
"""


class Programs:
    """Runs them, one after the other or several at once."""

    def __init__(self):
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        known = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # its threads do not live on in a fork
        self._forking = subprocess.Popen([sys.executable, __file__], env=known, **pipes)

    def run(self, code, *arguments, folder):
        """Run one in a folder; returns what ``subprocess.run`` would."""
        return self.run_several(code, [arguments], folder=folder)[0]

    def run_several(self, code, lists_of_arguments, *, folder):
        """Run one with each list of arguments, all at once."""
        with TemporaryDirectory() as logs:
            programs = [
                {
                    "code": code,
                    "arguments": [str(one) for one in arguments],
                    "folder": str(folder),
                    "printed": [f"{logs}/{name}-{number}" for name in ("stdout", "stderr")],
                }
                for number, arguments in enumerate(lists_of_arguments)
            ]
            self._forking.stdin.write(json.dumps(programs) + "\n")
            self._forking.stdin.flush()
            codes = json.loads(self._forking.stdout.readline())
            printed = [[Path(one).read_text() for one in program["printed"]] for program in programs]
        found = zip(programs, codes, printed, strict=True)
        return [subprocess.CompletedProcess(one["arguments"], code, *texts) for one, code, texts in found]

    def run_ranks(self, function, world_size, folder, **options):
        """Call ``function(rank, folder, **options)`` in gloo processes; returns what each of them returned."""
        same = function.__module__, function.__name__, folder, json.dumps(options), world_size
        done = self.run_several(RANK, [(*same, rank) for rank in range(world_size)], folder=ROOT)
        assert [one.returncode for one in done] == [0] * world_size, "\n".join(one.stderr for one in done)
        return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(world_size)]

    def close(self):
        self._forking.stdin.close()
        self._forking.wait(timeout=PATIENCE)
        self._forking.stdout.close()


def next_program():
    """Fork for every program that is asked for; returns only in the forks, each with its program."""
    for line in sys.stdin:
        forks = []
        for program in json.loads(line):
            fork = os.fork()
            if not fork:
                return program
            forks.append(fork)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    import pytest  # noqa: F401 - which tests import whose functions are called
    import torch._dynamo  # the first optimizer imports it
    import torch.distributed.fsdp  # noqa: F401

    import monitorch.watching  # noqa: F401

    gc.freeze()
    program = next_program()
    for number, name in enumerate([os.devnull, *program["printed"]]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    signal.alarm(PATIENCE)
    os.chdir(program["folder"])
    sys.argv = ["-c", *program["arguments"]]
    exec(compile(program["code"], "<string>", "exec"))
