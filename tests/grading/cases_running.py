"""Code that does not end, ends its process, or uses too much. The other exercises are right.

The grader looks at a submission a few times a second, and more rarely on a busy machine. Therefore,
code that uses too much keeps it until the grader ends it.
"""

from pathlib import Path

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)

FOREVER = "import time\ntime.sleep(10**6)"
FIRST = "exercise-add"
SECOND = "exercise-total"
AFTER_THE_FIRST = {"total": "not_reached", "mean": "not_reached"}


@case("partial", case.without("add"), says="SyntaxError", add="error")
def syntax_error(copy: Copy, path: Path) -> None:
    copy.answer("add", "def add(a, b)\n    return a + b\n")


@case("partial", case.without("add"), says="no_such_package", add="error")
def missing_package(copy: Copy, path: Path) -> None:
    copy.answer("add", "import no_such_package\n" + copy.reference("add"))


@case("passed", case.all)
def sys_exit(copy: Copy, path: Path) -> None:
    """It calls `sys.exit`, which in a notebook ends only the cell."""
    copy.insert("import sys\nsys.exit(3)", before=FIRST)


@case("partial", 3, says="its process ended", **AFTER_THE_FIRST)
def quits(copy: Copy, path: Path) -> None:
    """It quits: the kernel replies, and ends a moment later."""
    copy.insert("quit()", before=SECOND)
    copy.insert(FOREVER, before=SECOND)


@case("partial", 3, says="its process ended", **AFTER_THE_FIRST)
def exits_at_once(copy: Copy, path: Path) -> None:
    copy.insert("import os\nos._exit(0)", before=SECOND)


@case("partial", 3, says="its process ended", **AFTER_THE_FIRST)
def kills_itself(copy: Copy, path: Path) -> None:
    copy.insert("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", before=SECOND)


@case("partial", 3, says="its process ended", **AFTER_THE_FIRST)
def segfault(copy: Copy, path: Path) -> None:
    copy.insert("import ctypes\nctypes.string_at(0)", before=SECOND)


@case("passed", case.all)
def endless_loop(copy: Copy, path: Path) -> None:
    """It is interrupted at its time limit, and the other cells run."""
    copy.insert("while True:\n    pass", before=SECOND)


@case("partial", 3, says="could not be interrupted", **AFTER_THE_FIRST)
def endless_and_deaf(copy: Copy, path: Path) -> None:
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "while True:\n    try:\n        while True: time.sleep(9)\n    except BaseException: pass"
    )
    copy.insert(deaf, before=SECOND)


@case("passed", case.all)
def sleeps(copy: Copy, path: Path) -> None:
    copy.insert(FOREVER, before=SECOND)


@case("passed", case.all)
def prints_for_ever(copy: Copy, path: Path) -> None:
    copy.insert("while True:\n    print('x' * 1000)", before=SECOND)


@case("passed", case.all)
def prints_one_long_line(copy: Copy, path: Path) -> None:
    copy.insert("print('x' * 20_000_000)", before=SECOND)


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_a_gigabyte(copy: Copy, path: Path) -> None:
    copy.insert(f"held = bytearray(b'1') * 2**30\n{FOREVER}", before=SECOND)


@case("partial", 3, says="more than", **AFTER_THE_FIRST)
def fork_bomb(copy: Copy, path: Path) -> None:
    copy.insert(f"import os\nfor _ in range(11):\n    os.fork()\n{FOREVER}", before=SECOND)


@case("passed", case.all)
def fills_the_disk(copy: Copy, path: Path) -> None:
    """It fills a disk, which is small and belongs only to this submission."""
    fill = (
        "for folder in ('/tmp', '/home/learner', '.'):\n"
        "    try:\n"
        "        with open(f'{folder}/full', 'wb') as file:\n"
        "            while True: file.write(bytes(2**20))\n"
        "    except OSError as error: print(folder, error)\n"
        "import os\n"
        "for folder in ('/tmp', '/home/learner'): os.unlink(f'{folder}/full')"
    )
    copy.insert(fill, before=SECOND)


@case("partial", 3, says="it wrote more than", **AFTER_THE_FIRST)
def fills_the_door(copy: Copy, path: Path) -> None:
    """It fills the folder of the kernel's sockets, the only one on the machine's disk."""
    fill = (
        "import glob, os\n"
        "[door] = {os.path.dirname(p) for p in glob.glob('/tmp/*/door/kernel.json')}\n"
        "with open(f'{door}/full', 'wb') as file:\n"
        "    for _ in range(100): file.write(bytes(2**20))\n"
    )
    copy.insert(fill + FOREVER, before=SECOND)


IN_THE_DOOR = (
    "import glob, os\n"
    "[door] = {os.path.dirname(p) for p in glob.glob('/tmp/*/door/kernel.json')}\n"
    "os.chdir(door)\n"
)


@case("partial", 3, says="next to the kernel's sockets", **AFTER_THE_FIRST)
def hides_in_the_door(copy: Copy, path: Path) -> None:
    """It writes below a path that is too long to read the sizes of its files."""
    deep = "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'w').close()\n"
    copy.insert(IN_THE_DOOR + deep + FOREVER, before=SECOND)


@case("partial", 3, says="next to the kernel's sockets", **AFTER_THE_FIRST)
def writes_without_a_name(copy: Copy, path: Path) -> None:
    """It writes to a file that it has removed, which still uses space on the disk."""
    write = "file = open('x', 'wb')\nos.unlink('x')\nfor _ in range(100): file.write(bytes(2**20))"
    copy.insert(f"{IN_THE_DOOR}{write}\nfile.flush()\n{FOREVER}", before=SECOND)


@case("passed", case.all)
def litters_the_door(copy: Copy, path: Path) -> None:
    """It creates files with names and kinds that are hard to remove."""
    litter = (
        "os.mkfifo('pipe')\nos.symlink('/etc', 'link')\nos.mkdir('new\\nline')\n"
        "os.chmod('new\\nline', 0o500)\nos.unlink('kernel.json')\nos.mkdir('kernel.json')\n"
    )
    copy.insert(IN_THE_DOOR + litter, before="check-mean")


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_shared_memory(copy: Copy, path: Path) -> None:
    hungry = "import mmap\nheld = mmap.mmap(-1, 2**30)\nheld.write(bytearray(b'1') * 2**30)\n"
    copy.insert(hungry + FOREVER, before=SECOND)


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_memory_as_files(copy: Copy, path: Path) -> None:
    hungry = (
        "import os\nheld = [os.memfd_create('x') for _ in range(4)]\n"
        "for file in held: os.write(file, b'1' * 2**28)\n"
    )
    copy.insert(hungry + FOREVER, before=SECOND)


FILL = (
    "import os, socket\nheld = []\n"
    "def fill(one):\n"
    "    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)\n"
    "    one.setblocking(False)\n"
    "    try:\n"
    "        while True: one.send(bytes(200_000))\n"
    "    except BlockingIOError: pass\n"
)


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_memory_in_sockets(copy: Copy, path: Path) -> None:
    """It leaves data in sockets, which belongs to no process after the sender is closed."""
    hungry = (
        "for _ in range(6):\n"
        "    if os.fork() == 0: break\n"
        "for _ in range(900):\n"
        "    one, other = socket.socketpair()\n    fill(one)\n    held.append(other)\n"
    )
    copy.insert(FILL + hungry + FOREVER, before=SECOND)


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_memory_in_datagrams(copy: Copy, path: Path) -> None:
    hungry = (
        "for i in range(800):\n"
        "    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))\n"
        "    held[-1].bind(f'\\0{i}')\n"
        "    for _ in range(12):\n"
        "        one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "        one.connect(f'\\0{i}')\n        fill(one)\n        one.close()\n"
    )
    copy.insert(FILL + hungry + FOREVER, before=SECOND)


@case("partial", 3, says="GiB of memory", **AFTER_THE_FIRST)
def takes_memory_in_connections(copy: Copy, path: Path) -> None:
    hungry = (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "for _ in range(450):\n"
        "    held.append(socket.create_connection(server.getsockname()))\n"
        "    fill(held[-1])\n    held.append(server.accept()[0])\n"
        "    fill(held[-1])\n"
    )
    copy.insert(FILL + hungry + FOREVER, before=SECOND)


@case("partial", 3, says="memory to read", **AFTER_THE_FIRST)
def sends_endlessly(copy: Copy, path: Path) -> None:
    """It sends messages with many parts, each of which is short enough."""
    flood = (
        "thread = get_ipython().kernel.iopub_thread\n"
        "parts = [bytes(60 * 2**20)] * 60\n"
        "for _ in range(20):\n"
        "    thread.schedule(lambda: thread.socket.send_multipart(parts, copy=False))\n"
    )
    copy.insert(flood + FOREVER, before=SECOND)


@case("passed", case.all)
def asks_for_input(copy: Copy, path: Path) -> None:
    copy.insert("name = input('who are you? ')", before=SECOND)


@case("passed", case.all)
def warns(copy: Copy, path: Path) -> None:
    noisy = "import sys, warnings\nwarnings.warn('careful')\nprint('oh', file=sys.stderr)\n"
    copy.answer("add", noisy + copy.reference("add"))


@case("passed", case.all)
def late_thread(copy: Copy, path: Path) -> None:
    """Its thread prints during later cells, and raises an error."""
    late = (
        "import threading, time\n"
        "def chatter():\n"
        "    for _ in range(200): print('✓ add: from a thread'); time.sleep(0.02)\n"
        "    raise RuntimeError('late')\n"
        "threading.Thread(target=chatter, daemon=True).start()"
    )
    copy.insert(late, before=FIRST)
