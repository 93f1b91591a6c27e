"""Random cells, by kind. `random_cell` draws one."""

from random import Random

from tests.soak import programs
from tests.soak.cell import IMPORTS, KINDS, PATIENCE, Cell, kind, some_of_the_ranks, stopped
from tests.soak.programs import RANKS


def random_cell(seed: int, number: int) -> Cell:
    """Return the cell with this number."""
    random = Random(f"{seed}/{number}")
    names = list(KINDS)
    [name] = random.choices(names, [KINDS[name][0] for name in names])
    cell = KINDS[name][1](random)
    cell.kind = name
    cell.busy = random.random() < 0.15
    return cell


@kind(12)
def mpi_program(random: Random) -> Cell:
    return stopped(random, programs.mpi(random))


TORCH = "%%px --timeout 300\nimport torch, torch.distributed as dist\nfrom parlab.rank import group"


@kind(7)
def torch_program(random: Random) -> Cell:
    return stopped(random, programs.torch(random), before=[TORCH])


@kind(6)
def prints(random: Random) -> Cell:
    text = "".join(random.choices("abc äöü→\\n\\t<&", k=random.randint(1, 40))).strip() or "x"
    target = random.choice(["sys.stdout", "sys.stderr"])
    code = f"import sys\nprint('begin', {text!r}, rank * {random.randrange(2)}, file={target})"
    return Cell(f"%%px\n{code}", shows="begin")


@kind(3)
def large_output(random: Random) -> Cell:
    characters = random.choice([10**4, 10**5, 10**6, 2 * 10**7])
    line = random.choice([1, 80, 10**6])
    code = f"for _ in range({max(1, characters // (line + 1))}): print('z' * {line})"
    return Cell(f"%%px\n{some_of_the_ranks(random, code)}", shows="z")


@kind(2)
def values(random: Random) -> Cell:
    value = random.choice(["rank", "'text' * 100", "[rank] * 1000", "None", "x = 1; x", "comm"])
    return Cell(f"%%px\n{value}")


@kind(4)
def imports(random: Random) -> Cell:
    name = random.choice(["colorsys", "wave", "mailbox", "chunk_of_nothing", "xml.dom.minidom"])
    return Cell(f"%%px\n{some_of_the_ranks(random, f'import {name}')}")


@kind(2)
def module_that_waits(random: Random) -> Cell:
    wait = random.choice(
        ["while True: pass", "import time; time.sleep(1000)", "comm.recv(source=0)"]
    )
    name = f"mine_{random.randrange(10**9)}"
    code = (
        "import pathlib, sys, tempfile\nfolder = pathlib.Path(tempfile.gettempdir())\n"
        f"text = 'from parlab.rank import comm\\n{wait}'\n"
        f"if rank == 0: (folder / '{name}.py').write_text(text)\n"
        "comm.Barrier()\nsys.path[:0] = [str(folder)]\nsys.path_importer_cache.clear()\n"
        f"import {name}"
    )
    return stopped(random, code)


ERRORS = [
    "1 / 0",
    "raise ValueError('x' * 10_000)",
    "undefined",
    "raise SystemExit(3)",
    "raise KeyboardInterrupt",
    "import no_such_module",
    "def f(): return f()\nf()",
    "raise ExceptionGroup('both', [ValueError(1), OSError(2)])",
    "open('/no/such/file')",
    "input()",
    "comm.Send([b'1', 5, MPI.INT], dest=99)",
]


@kind(8)
def error(random: Random) -> Cell:
    after = random.choice(["", "comm.Barrier()", "comm.recv(source=rank)", "time.sleep(0.5)"])
    code = f"{some_of_the_ranks(random, random.choice(ERRORS))}\n{after}"
    return stopped(random, code)


@kind(1)
def syntax_error(random: Random) -> Cell:
    return Cell("%%px\nx = (1,\n", shows="SyntaxError")


EXITS = ["os._exit(0)", "os._exit(7)", "quit()", "exit()", "MPI.Finalize()"]


@kind(1.5)
def exits(random: Random) -> Cell:
    after = random.choice(["", "comm.Barrier()"])
    code = f"{some_of_the_ranks(random, random.choice(EXITS))}\n{after}"
    return stopped(random, code, keeps=False)


SIGNALS = ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGHUP", "SIGUSR2"]


@kind(1)
def signals(random: Random) -> Cell:
    code = f"import signal\nos.kill(os.getpid(), signal.{random.choice(SIGNALS)})"
    after = random.choice(["", "comm.Barrier()"])
    return stopped(random, f"{some_of_the_ranks(random, code)}\n{after}", keeps=False)


@kind(0.5)
def abort(random: Random) -> Cell:
    call = random.choice(["comm.Abort(3)", "MPI.COMM_WORLD.Abort()", "MPI.COMM_SELF.Abort(1)"])
    return stopped(random, some_of_the_ranks(random, call), shows="raise an error instead")


@kind(4)
def stopped_rank(random: Random) -> Cell:
    """Return a cell in which, or before which, a signal stops a rank."""
    stop = "import signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    others = random.choice(["comm.Barrier()", "while True: pass", "pass", "1 / 0"])
    if random.random() < 0.5:
        return stopped(random, f"{some_of_the_ranks(random, stop)}\n{others}")
    rank = random.randrange(RANKS)
    before = (
        f"import os, signal\nos.kill(cluster.current().channel.ranks[{rank}].pid, signal.SIGSTOP)"
    )
    return stopped(random, others, before=[before])


WINDOW = "import numpy as np\nwindow = MPI.Win.Create(np.zeros(4), comm=comm)\n"
IN_C = [
    "import itertools\nif rank == 1:\n    sum(itertools.count())",
    WINDOW + "if rank != 0:\n    window.Fence()",
    WINDOW + "window.Lock(0, MPI.LOCK_EXCLUSIVE)\ncomm.Barrier()",
    "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "import re\nif rank != 1:\n    re.match('(a+)+$', 'a' * 60 + 'b')",
    "import ctypes\nctypes.CDLL(None).sleep(1000)",
    "import ctypes\nctypes.PyDLL(None).sleep(1000)",
    "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "sum(range(10**12))",
]


@kind(1.5)
def c_code(random: Random) -> Cell:
    return stopped(random, random.choice(IN_C), keeps=False)


STUBBORN = [
    "while True:\n    try: comm.recv(source=rank)\n    except Exception as e: pass",
    "while True:\n    try: time.sleep(0.01)\n    except Exception: pass",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "try:\n    comm.recv(source=rank)\nfinally:\n    print('end')",
    "with open(os.devnull) as f:\n    comm.recv(source=rank)",
    "def f(n): return f(n - 1) if n else comm.recv(source=rank)\nf(300)",
    "list(map(lambda n: time.sleep(0.01), range(10**6)))",
    "import concurrent.futures as c\nwith c.ThreadPoolExecutor() as pool:\n"
    "    pool.submit(time.sleep, 4).result()",
]


@kind(5)
def stubborn(random: Random) -> Cell:
    return stopped(random, some_of_the_ranks(random, random.choice(STUBBORN)))


WAITS = ["while True: pass", "comm.recv(source=rank)", "time.sleep(1000)", "comm.Barrier()"]


@kind(7)
def interrupted(random: Random) -> Cell:
    """Return a cell for which the stop button is pressed once or twice, perhaps after its end."""
    first = round(random.uniform(0.0, 2.0), 2)
    presses = [first] + [round(first + random.uniform(0, 1.5), 2)] * random.randrange(2)
    in_c = random.random() < 0.15
    body = random.choice(IN_C) if in_c else some_of_the_ranks(random, random.choice(WAITS))
    cell = Cell(f"%%px --timeout 60\n{body}", presses[-1], presses=presses)
    if in_c:
        cell.ends_within, cell.keeps = first + PATIENCE, False
    return cell


LEFT = [
    "comm.bcast(rank, root=rank % 2)",
    "comm.isend('left', dest=(rank + 1) % 4)",
    "request = comm.Isend(bytearray(10**6), dest=(rank + 1) % 4)",
    "comm.isend('left', dest=(rank + 1) % 4)\n1 / 0",
    "request = comm.irecv(source=rank)",
    "for _ in range(1000): comm.isend(rank, dest=(rank + 1) % 4)",
    "comm.allreduce(rank, op=lambda a, b: 1 / 0)",
]


@kind(5)
def messages_left(random: Random) -> Cell:
    return stopped(random, random.choice(LEFT))


BROKEN = [
    "comm.Revoke()",
    "comm.Free()",
    "if rank == 1:\n    comm.Free()",
    "if rank == 1:\n    comm.Free()\nelse:\n    comm.Barrier()",
    "comm.Disconnect()",
    "MPI.COMM_WORLD.Free()",
    "MPI.COMM_SELF.Free()",
    "many = [comm.Dup() for _ in range(20)]\nfor one in many: one.Free()",
    "mine = comm.Split(rank % 2)\nmine.recv(source=mine.rank)",
    "mine = [comm.Dup()]\nmine[0].recv(source=rank)",
    "mine = comm.Create_cart([2, 2])\nmine.recv(source=mine.rank)",
    "import sys\nsys.stdout.close()\nsys.stdout = None",
    "import sys, io\nsys.stderr = io.StringIO()",
    "import os, tempfile\nos.chdir(tempfile.gettempdir())",
    "import gc\ngc.disable(); gc.enable(); gc.collect()",
]


@kind(6)
def broken_state(random: Random) -> Cell:
    return stopped(random, random.choice(BROKEN))


@kind(2)
def no_default_group(random: Random) -> Cell:
    code = random.choice(["dist.destroy_process_group()", "group.comm.Free()"])
    return stopped(random, some_of_the_ranks(random, code), before=[TORCH])


@kind(3)
def in_background(random: Random) -> Cell:
    """Return a cell that follows a running cell with `--noblock`."""
    first = random.choice(["time.sleep(0.5)", "1 / 0", "print(1)", "while True: pass"])
    targets = random.choice(["0", "1,2", "0:4"])
    before = [f"%%px --noblock --targets {targets}\n{first}"]
    others = random.choice(["comm.Barrier()", "pass", "comm.recv(source=rank)"])
    return stopped(random, others, before=before)


@kind(3)
def some_ranks(random: Random) -> Cell:
    targets = random.choice(["0", "3", "0,2", "1:4"])
    body = random.choice(["print(rank)", "comm.Barrier()", "1 / 0", "while True: pass"])
    cell = stopped(random, body)
    return Cell(cell.code.replace("\n", f" --targets {targets}\n", 1), cell.ends_within)


@kind(1)
def function_sent(random: Random) -> Cell:
    """Return a cell after a function was sent to a rank.

    The function can be interrupted if the notebook defines it.
    """
    rank = random.randrange(RANKS)
    seconds = random.choice([0.01, 0.7, 1000])
    function = random.choice(["lambda seconds: time.sleep(seconds)", "time.sleep"])
    before = (
        "import time\nfrom parlab import cluster\n"
        f"sent = cluster.current().client[{rank}].apply_async({function}, {seconds})"
    )
    return stopped(random, "comm.Barrier()", before=[before], keeps="lambda" in function)


@kind(0.4)
def controller_dies(random: Random) -> Cell:
    number = random.choice(["SIGKILL", "SIGTERM"])
    before = (
        "import os, signal\nos.kill("
        f"cluster.current().ranks.processes.cluster.controller.pid, signal.{number})"
    )
    # New ranks may have to start before the cell runs.
    return Cell("%%px --timeout 1\nwhile True: pass", 61, keeps=False, before=[before])


NEW_RANKS = ["cluster.restart()", "cluster.start(4)", "cluster.stop()\ncluster.start(4)"]


@kind(0.6)
def new_ranks(random: Random) -> Cell:
    return Cell(random.choice(NEW_RANKS), keeps=None, after=[IMPORTS])
