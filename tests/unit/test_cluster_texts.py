"""The texts at the end of a rank cell, and the functions that make them."""

import signal

from parlab.cluster.locations import Cells, in_import, is_importing, where, with_lines_of_notebook
from parlab.cluster.names import Names
from parlab.cluster.nodes import Link, description, interfaces
from parlab.cluster.report import cut, exit_text, positions
from parlab.runtime.rank_names import ranks_text


def test_ranks_are_named_shortly():
    assert ranks_text([2]) == "rank 2"
    assert ranks_text([3, 0, 1]) == "ranks 0, 1, 3"
    assert ranks_text([0, 1, 2, 3, 7, 9, 10, 11]) == "ranks 0-3, 7, 9-11"
    assert ranks_text(range(4), 4) == "all ranks"
    assert ranks_text([0], 1) == "rank 0"


def test_positions_are_grouped_and_aligned():
    assert positions({0: "here", 1: "there", 2: "here"}) == [
        "  ranks 0, 2  here",
        "  rank 1      there",
    ]


def test_the_innermost_line_of_the_learner_counts():
    cells = Cells()
    cells.add("#\ndef f():\n    wait()\nf()")
    (name,) = cells.sources
    stack = (
        '  File "/lib/mpi.py", line 7 in recv\n'
        f'  File "/tmp/ipykernel_9/{name}", line 3 in f\n'
        f'  File "/tmp/ipykernel_9/{name}", line 4 in <module>\n'
        '  File "/lib/engine.py", line 1 in _run_module_as_main\n'
    )
    assert where(stack, cells) == "line 3 of f: wait()  (called from line 4: f())"
    assert where('  File "/lib/engine.py", line 1 in idle\n', cells) is None


def test_an_import_counts_as_computing_unless_it_runs_a_learners_file():
    find = '  File "<frozen importlib._bootstrap>", line 1178 in _find_and_load\n'
    torch = '  File "/v/lib/python3.11/site-packages/torch/nn.py", line 3 in forward\n'
    own_frame = '  File "/home/me/train.py", line 2 in <module>\n'
    assert is_importing(torch + find + own_frame + find)
    assert not is_importing(torch + own_frame + find), "it trains"
    assert in_import(torch + own_frame + find)
    assert not is_importing(torch + own_frame)


def test_magics_below_px_are_sent_first_and_lines_keep_their_numbers():
    assert with_lines_of_notebook("x\ny") == ("#\nx\ny", "#\nx\ny")
    assert with_lines_of_notebook("%%time\nx") == ("%%time\n#\n#\nx", "#\n#\nx")
    nested = with_lines_of_notebook("%%capture a\n%%time\nx")
    assert nested == ("%%capture a\n%%time\n#\n#\n#\nx", "#\n#\n#\nx")
    for kept in ("%%bash\nls", "%%time\n%%bash\nls", "%%writefile a\nx"):
        assert with_lines_of_notebook(kept) == (kept, kept)


def test_exit_statuses_are_described_in_words():
    assert exit_text(3) == "exit status 3"
    assert exit_text(-signal.SIGKILL) == "signal 9 (SIGKILL)"


def test_long_output_keeps_its_start_and_end():
    text = "a" * 100_000 + "z"
    shown = cut(text, rank=2)
    assert shown.startswith("aaa") and shown.endswith("z")
    assert "30,001 characters left out; cluster.output(2) has all of it" in shown
    sent = f"{text}\n… 7 characters left out …\n"
    assert "characters left out; cluster.output(2) has more" in cut(sent, rank=2)
    assert "30,001 characters left out …" in cut(text, rank=None)
    assert cut("short", 0) == "short"


def test_a_restart_distinguishes_imports_from_lost_names():
    names = Names()
    names.add("import numpy as np\nfrom a import b\nx = [i for i in y]\nfor k in x:\n    z = k")
    names.add("def f():\n    inner = 1\nclass C:\n    attribute = 2")
    names.add("this is no Python")
    assert list(names.imports) == ["import numpy as np", "from a import b"]
    assert names.forget_variables() == ["x", "k", "z", "f", "C"]
    assert names.forget_variables() == []


def test_imports_and_names_below_other_statements_and_magics_are_known():
    names = Names()
    names.add("#\n%time import json; x = 1")
    names.add("try:\n    import a\nexcept ImportError:\n    import b as a\nif 1:\n    import c")
    names.add("def f():\n    import inner\n%timeit 1 + 1")
    assert list(names.imports) == ["import json", "import a", "import b as a", "import c"]
    assert names.forget_variables() == ["x", "f"]


def test_an_interrupted_import_is_not_repeated():
    names = Names()
    names.add("import before\nimport hangs\nimport after\nx = 1", cut_off_at=2)
    assert list(names.imports) == ["import before"]
    assert names.forget_variables() == ["x"]


def test_nodes_are_reported_with_their_ranks():
    assert description(["a"] * 4, []) == "4 ranks on 1 node (a)"
    assert description(["a", "b"], ["ib0"]) == (
        "2 ranks on 2 nodes, 1 on each (a, b); messages between nodes go over ib0 (TCP)"
    )
    assert description(["a", "a", "b"], []) == (
        "3 ranks on 2 nodes: 2 on a, 1 on b; messages between nodes go over a fabric instead of TCP"
    )


def test_interfaces_are_those_of_links_between_ranks_of_different_nodes():
    a, b, c, notebook = ("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 3), ("10.0.9.9", 4)
    links = [
        [Link(a, b, "lo"), Link(a, notebook, "eth0")],
        [Link(b, a, "lo"), Link(b, c, "ib0")],
        [Link(c, b, "ib1"), Link(c, notebook, "eth0")],
    ]
    assert interfaces(["one", "one", "two"], links) == ["ib0", "ib1"]
    assert interfaces(["one", "one", "one"], links) == []
