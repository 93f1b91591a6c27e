"""The output of a rank cell: in rank order, equal outputs once, the same on every run."""

from pathlib import Path

import psutil
import pytest

from parlab.cluster.outputs import OUTPUT_SECONDS
from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases

DEADLINE = 3


def test_outputs_are_shown_in_rank_order(notebook: Notebook):
    code = (
        "%%px\nfor turn in range(3, -1, -1):\n    if rank == turn:\n"
        "        print('rank', rank)\n    comm.Barrier()"
    )
    for _ in range(3):
        ran = notebook.run(code)
        assert ran.text == "".join(f"[rank {rank}] rank {rank}\n" for rank in range(4))


def test_equal_outputs_are_shown_once(notebook: Notebook):
    assert notebook.run("%%px\nprint('same')").text == "[all ranks] same\n"
    ran = notebook.run("%%px\nprint('zero' if rank == 0 else 'other')")
    assert ran.text == "[rank 0] zero\n[ranks 1-3] other\n"
    assert notebook.run("%%px\nprint(rank % 2)").text == "[ranks 0, 2] 0\n[ranks 1, 3] 1\n"


def test_several_lines_are_shown_below_their_rank(notebook: Notebook):
    assert notebook.run("%%px\nprint('a\\nb')").text == "[all ranks]\na\nb\n"


def test_results_stderr_and_pictures(notebook: Notebook):
    assert notebook.run("%%px\nworld_size").text == "[all ranks] 4\n"
    assert notebook.run("%px rank").text == "".join(f"[rank {r}] {r}\n" for r in range(4))
    ran = notebook.run("%%px\nimport sys\nif rank == 1: print('careful', file=sys.stderr)")
    assert ran.text == "[rank 1] careful\n"
    ran = notebook.run(
        "%%px\nfrom IPython.display import display, HTML\nif rank == 2: display(HTML('<b>2</b>'))"
    )
    assert ran.text == "[rank 2]\n<IPython.core.display.HTML object>"


def test_a_long_cell_shows_its_progress_and_removes_it_at_the_end(
    notebook: Notebook, tmp_path: Path
):
    flag = tmp_path / "may_end"
    sent = notebook.send(
        "%%px\nprint('half way', flush=True)\n"
        f"while not os.path.exists({str(flag)!r}): time.sleep(0.1)\nprint('done')"
    )
    seen, cleared = "", 0
    while True:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["msg_type"] == "stream":
            seen += message["content"]["text"]
        cleared += message["msg_type"] == "clear_output"
        if cleared >= 2 and "ranks 0-3  half way" in seen:
            flag.touch()
        if message["content"].get("execution_state") == "idle":
            break
    assert "s of 60 s, ranks 0-3  half way" in seen
    assert seen.endswith("[all ranks]\nhalf way\ndone\n")
    assert cleared >= 3


def test_what_is_told_only_once_stays_after_a_long_cell(notebook: Notebook) -> None:
    """The progress of a cell clears all that the cell has shown."""
    notebook.run(
        "import os\nchannel = cluster.current().channel\nos.kill(channel.ranks[1].pid, 9)\n"
        "while not channel.deaths(): pass"
    )
    ran = notebook.run("%%px\nimport time\ntime.sleep(4)\nprint('done')")
    assert "Rank 1" in ran.text and ran.text.endswith("[all ranks] done\n"), ran.text


def test_a_cell_may_be_indented(notebook: Notebook) -> None:
    ran = notebook.run("%%px\n    x = 1\n    print(x)")
    assert ran.text == "[all ranks] 1\n", ran.message


def test_stop_in_the_kernels_own_part_does_not_start_the_ranks(notebook: Notebook) -> None:
    code = "%%px --local\nimport os, signal\nstarted = True\nos.kill(os.getpid(), signal.SIGINT)"
    assert notebook.run("%%px\nstarted = False").status == "ok"
    ran = notebook.run(code)
    assert ran.error == "RankInterrupted" and "did not begin on any rank" in ran.message
    assert notebook.run("%%px\nprint(started)").text == "[all ranks] False\n"


def test_local_runs_here_too(notebook: Notebook):
    assert notebook.run("%%px --local\nhere = 5").status == "ok"
    assert notebook.run("here").text == "5"
    assert notebook.run("%px here").text == "[all ranks] 5\n"


def test_what_a_rank_prints_after_it_was_freed_is_not_shown(notebook: Notebook) -> None:
    """In MPI, a freed rank may continue as if its message had arrived. This cell emulates that."""
    ran = notebook.run(
        "%%px --timeout 1\nprint('before')\nif rank == 0:\n    try:\n        comm.recv(source=1)\n"
        "    except MPI.Exception:\n        pass\n    print('after')"
    )
    assert ran.error == "DeadlineExceeded" and "rank 0" in ran.message
    assert "before" in ran.text and "after" not in ran.text


def test_messages_of_mpi_about_freed_collectives_are_not_shown(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px --timeout 1\nimport sys\nprint('mine', file=sys.stderr, flush=True)\n"
        "if rank > 0: comm.Ibarrier().Wait()"
    )
    assert (ran.error, ran.text) == ("DeadlineExceeded", "[all ranks] mine\n"), ran.message
    printed = notebook.run("print(cluster.current().last.result.stderr[1])").text
    assert "NBC_Progress" in printed, "this test needs a cell for which Open MPI prints a message"


def test_the_first_of_thousands_of_displays_are_shown(notebook: Notebook) -> None:
    ran = notebook.run(
        "%%px\nfrom IPython.display import HTML, display\n"
        "for i in range(1100):\n    display(HTML(str(i)))"
    )
    assert ran.status == "ok", ran.message
    assert ran.text.count("HTML object") == 100
    assert "1,000 more displays of this cell left out" in ran.text


def test_lines_that_are_flushed_all_arrive(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nfor i in range(2000): print(i, flush=True)")
    lines = "".join(f"{i}\n" for i in range(2000))
    assert ran.text == f"[all ranks]\n{lines}", ran.message


def test_the_start_and_the_end_of_long_output_are_kept(notebook: Notebook) -> None:
    ran = notebook.run("%%px\nfor i in range(13_000): print(i, '.' * 1000)")
    assert ran.text.startswith("[rank 0]\n0 ...") or ran.text.startswith("[all ranks]\n0 ...")
    assert "\n12999 ..." in ran.text and ran.text.endswith("...\n"), ran.message
    assert "characters left out; cluster.output(0) has more" in ran.text
    sent = notebook.run("len(cluster.output(0)), ' characters left out …' in cluster.output(0)")
    assert sent.text.startswith("(12010") and sent.text.endswith("True)")


def test_endless_displays_end_at_the_deadline(notebook: Notebook) -> None:
    ran = notebook.run(
        f"%%px --timeout {DEADLINE}\nfrom IPython.display import HTML, clear_output, display\n"
        "while True:\n    clear_output()\n    display(HTML('x'))"
    )
    assert ran.error == "DeadlineExceeded", ran.message
    assert ran.seconds < DEADLINE + OUTPUT_SECONDS
    assert " more displays of this cell left out" in ran.text
    sent = notebook.run("[len(of['outputs']) for of in cluster.current().last.outputs().values()]")
    assert sent.text == str([101] * 4), "a hundred, and how many there were"
    assert notebook.run("%%px\nprint(comm.allreduce(1))").text == "[all ranks] 4\n"


LINES = ["print('x' * 50)", "print('x', flush=True)", "print('x' * 1000, flush=True)"]


@pytest.mark.parametrize("code", cases(LINES, LINES[1:2]))
def test_endless_printing_ends_at_the_deadline(notebook: Notebook, code: str) -> None:
    """Without a limit, the kernel would read this output for `OUTPUT_SECONDS` more."""
    ran = notebook.run(f"%%px --timeout {DEADLINE}\nwhile True: {code}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert f"ranks 0-3  line 2: while True: {code}" in ran.message
    assert ran.seconds < DEADLINE + OUTPUT_SECONDS
    assert notebook.run("%%px\nprint(comm.allreduce(1))").text == "[all ranks] 4\n"


RESULTS = """\
import gc
gc.collect()
print(sum(type(kept).__name__ == "AsyncResult" for kept in gc.get_objects()))"""


def test_the_results_of_earlier_cells_are_freed(notebook: Notebook) -> None:
    kept = []
    for _ in range(2):
        for _ in range(5):
            assert notebook.run("%%px\nx = 1").status == "ok"
        kept.append(int(notebook.run(RESULTS).text))
    # Another thread may still use the last result.
    wait_until(lambda: int(notebook.run(RESULTS).text) <= kept[0], 30, f"{kept} results are freed")


def test_the_output_of_earlier_cells_takes_no_memory(notebook: Notebook) -> None:
    pid = notebook.run("print(cluster.current().ranks.processes.cluster.controller.pid)").text
    processes = [psutil.Process(notebook.pid), psutil.Process(int(pid))]
    later = notebook.run("%%px -o later\nprint('kept')")
    assert later.status == "ok", later.message

    def print_much(times: int) -> list[float]:
        """Print 20 MB in each of some cells, and return the memory of both processes in MB."""
        for _ in range(times):
            ran = notebook.run("%%px\nfor _ in range(50): print('z' * 100_000)")
            assert ran.status == "ok", ran.message
        return [process.memory_full_info().uss / 1e6 for process in processes]

    before, after = print_much(2), print_much(5)
    grown = [end - begin for begin, end in zip(before, after, strict=True)]
    assert max(grown) < 50, f"MB of the kernel and the controller, after 100 MB: {grown}"
    assert notebook.run("print(later.stdout[0])").text == "kept\n\n"


def test_the_kernel_returns_the_memory_of_large_outputs(notebook: Notebook) -> None:
    """IPython keeps the frames of the last error, and glibc the ends of the threads' heaps."""

    def memory() -> float:
        assert notebook.run("%%px\nx = 1").status == "ok"  # parlab has forgotten the cell before it
        return psutil.Process(notebook.pid).memory_full_info().uss / 1e6

    lines = "if rank in [0, 3]:\n    for _ in range(20): print('z' * 1_000_000)\n"
    before = memory()
    for then in ["", "", "1 / 0", ""]:
        ran = notebook.run(f"%%px\n{lines}{then}")
        assert ran.error == ("RankFailed" if then else ""), ran.message
    ran = notebook.run(f"%%px\n{lines}1 / 0")
    assert ran.error == "RankFailed", ran.message
    wait_until(lambda: memory() < before + 10, 30, "the memory is returned")


def test_ranks_keep_nothing_of_what_they_printed_and_displayed(notebook: Notebook) -> None:
    kept = "sum(len(str(of)) for of in get_ipython().history_manager.outputs.values())"
    ran = notebook.run(
        f"%%px\nprint('x' * 100_000)\nprint('in the cell:', {kept})\n"
        "from IPython.display import HTML, display\ndisplay(HTML('x' * 100_000))"
    )
    assert "in the cell: 0\n" in ran.text, ran.message
    assert notebook.run(f"%%px\nprint({kept})").text == "[all ranks] 0\n"
