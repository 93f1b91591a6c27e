"""Parts of `make gpu-check` that need no ranks."""

import pytest
import torch

from parlab_staff.gpu_check import older_torch
from parlab_staff.gpu_check.gone import innermost
from parlab_staff.gpu_check.shares import expected_seconds, share

STACK = """Timeout (0:00:30)!
Thread 0x00007f1 [reader] (most recent call first):
  File "/python/socket.py", line 718 in readinto

Thread 0x00007f2 (most recent call first):
  File "/python/threading.py", line 359 in wait
  File "/python/threading.py", line 655 in wait
  File "/torch/a.py", line 1 in a
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/torch/b.py", line 2 in b
  File "<hangs>", line 7 in train
  File "<hangs>", line 9 in <module>
  File "/course/worker.py", line 80 in _called
"""


def test_a_stuck_rank_shows_its_innermost_calls_and_its_line_in_the_cell() -> None:
    assert innermost(STACK, "<hangs>") == (
        "wait (threading.py, line 359) < wait (threading.py, line 655) < a (a.py, line 1) < "
        "b (b.py, line 2), line 7 of the cell"
    )
    assert innermost(STACK, "<other>").endswith("< b (b.py, line 2)")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("torch.nn.NoSuchThing", "torch.nn.NoSuchThing"),
        ("from torch.nn import NoSuchThing", "torch.nn.NoSuchThing"),
        ("import torch.no_such_module", "torch.no_such_module"),
        ("raise AssertionError('f: AttributeError: ' + GONE)", "torch.nn.NoSuchThing"),
        ("import json\njson.no_such_thing", ""),
        ("torch.ones(2) @ torch.ones(3)", ""),
    ],
)
def test_only_an_older_torch_excuses_what_it_lacks(
    code: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "module 'torch.nn' has no attribute 'NoSuchThing'"
    with pytest.raises(Exception) as raised:
        exec(code, {"torch": torch, "GONE": gone})
    assert older_torch.why_lacking(raised.value) == ""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    why = older_torch.why_lacking(raised.value)
    assert why.startswith(f"torch 2.9.1+cu128 has no {name}, which torch 2." if name else "")
    assert bool(why) == bool(name)


def test_items_share_the_time_by_what_they_need() -> None:
    lab, new, benchmark = "05_pipeline_parallel", "13_new", "benchmark_add"
    first = share(100.0, [lab, new, benchmark], jobs=1)
    second = share(100.0 - first, [new, benchmark], jobs=1)
    assert first / second == pytest.approx(expected_seconds(lab) / expected_seconds(new))
    assert share(100.0 - first - second, [benchmark], jobs=1) == pytest.approx(
        100.0 - first - second
    )


def test_labs_that_run_side_by_side_have_longer() -> None:
    labs, benchmark = ["11_a", "12_b", "13_c"], "benchmark_add"
    of_labs, of_benchmark = expected_seconds("11_a"), expected_seconds(benchmark)
    total = 3 * of_labs / 2 + of_benchmark
    assert share(total, [*labs, benchmark], jobs=2) == pytest.approx(of_labs)
    assert share(total, [*labs, benchmark], jobs=4) <= total - of_benchmark
    assert share(total, labs[:1], jobs=4) == total
