"""The examples run as their first lines describe, outside of a notebook, on two ranks."""

import json
import re
from pathlib import Path

import pytest
import torch

from parlab import mpirun
from parlab.runtime.paths import ROOT, numbered
from tests.support.torchrun import DEADLINE, EXAMPLES, torchrun


def test_every_chapter_has_an_example_and_names_it() -> None:
    pages = {page.stem: page.read_text("utf-8") for page in numbered(ROOT / "book", ".md")}
    assert pages.keys() <= {file.stem for file in numbered(EXAMPLES, ".py")}
    for file in numbered(EXAMPLES, ".py"):
        naming = [text for stem, text in pages.items() if stem[:2] == file.stem[:2]]
        assert len(naming) == 1 and f"examples/{file.name}" in naming[0], file.name


@pytest.mark.timeout(DEADLINE + 60)
def test_the_ring_agrees_with_mpi_on_two_ranks() -> None:
    ran = mpirun.run(
        2, str(EXAMPLES / "01_mpi.py"), capture_output=True, text=True, timeout=DEADLINE
    )
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"bytes +(?:ring|MPI) .* GB/s  (.+)", ran.stdout)
    assert rows == ["same sum"] * 6, ran.stdout


def test_every_page_names_the_address_of_one_machine() -> None:
    """Otherwise, the ranks connect by the machine's name, which may not be resolvable."""
    texts = [*(ROOT / "book").glob("*.md"), *EXAMPLES.glob("*.py"), ROOT / "README.md"]
    commands = [
        line
        for text in texts
        for line in text.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith("torchrun ")
    ]
    assert len(commands) >= 13
    assert [line for line in commands if "--local-addr 127.0.0.1" not in line] == []


@pytest.mark.timeout(DEADLINE + 60)
def test_ddp_learns_on_two_ranks_and_each_writes_its_trace(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    printed = torchrun(
        2, "02_data_parallel", "--samples=4096", f"--trace={tmp_path}", f"--save={weights}"
    )
    assert len(torch.load(weights)) == 4
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 2, printed  # rank 0 alone prints
    assert losses[1] < losses[0] < 2.3  # a guess among ten digits costs ln 10
    for rank in (0, 1):
        events = json.loads((tmp_path / f"rank{rank}.json").read_text())["traceEvents"]
        assert any("allreduce" in event.get("name", "") for event in events)


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_fsdp_learns_on_two_ranks_and_each_holds_half() -> None:
    printed = torchrun(2, "03_zero", "--steps=20")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 2, printed  # rank 0 alone prints
    assert losses[1] < losses[0] < 5.55  # a guess among 256 bytes costs ln 256
    assert "1/2.0" in printed


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_the_blocks_are_shared_by_two_ranks_which_see_the_same_loss() -> None:
    """The mean loss over the ranks is the loss of one rank, because all ranks have the same."""
    losses = {}
    for ranks in (1, 2):
        printed = torchrun(ranks, "04_tensor_parallel", "--steps=20")
        losses[ranks] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[ranks]) == 2, printed  # rank 0 alone prints
        held = float(re.search(r": 1/([\d.]+)", printed)[1])
        assert held == pytest.approx(ranks, rel=0.02)  # norms and some biases are not sharded
    assert losses[1][1] < losses[1][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses[2] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_the_stages_learn_on_two_ranks_as_one_rank_does() -> None:
    runs = [(1, "1f1b"), (2, "1f1b"), (2, "interleaved")]
    losses = {}
    for ranks, schedule in runs:
        printed = torchrun(ranks, "05_pipeline_parallel", "--steps=20", f"--schedule={schedule}")
        losses[ranks, schedule] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[ranks, schedule]) == 2, printed  # rank 0 alone prints
        held, whole = map(int, re.findall(r"holds (\d+) of (\d+)", printed.replace(",", ""))[0])
        assert held == whole if ranks == 1 else 0.25 < held / whole < 0.6
    alone = losses[1, "1f1b"]
    assert alone[1] < alone[0] < 5.55  # a guess among 256 bytes costs ln 256
    for run, found in losses.items():
        assert found == pytest.approx(alone, abs=1e-3), run


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_mixed_precision_learns_on_two_ranks_and_skips_together() -> None:
    """With a scale of 2^24, fp16 overflows at first, but then learns the same as fp32."""
    runs = {
        "fp32": [],
        "bf16": [],
        "fp16": ["--reduce-16", f"--initial-scale={2.0**24}"],
    }
    losses = {}
    for precision, arguments in runs.items():
        printed = torchrun(
            2, "06_mixed_precision", "--steps=20", f"--precision={precision}", *arguments
        )
        losses[precision] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[precision]) == 2, printed  # rank 0 alone prints
        assert "not the same" not in printed
        skipped = int(re.search(r": (\d+) of 20 steps skipped", printed)[1])
        assert (skipped > 0) == (precision == "fp16")
    assert losses["fp32"][1] < losses["fp32"][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.05)
    assert losses["fp16"][1] < losses["fp16"][0]  # some steps were skipped


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_the_fused_adam_on_two_ranks_learns_like_torchs_on_one() -> None:
    runs = [(1, "triton"), (2, "triton"), (1, "torch")]
    losses = {}
    for ranks, optimizer in runs:
        printed = torchrun(ranks, "07_triton", "--steps=20", f"--optimizer={optimizer}")
        losses[ranks, optimizer] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[ranks, optimizer]) == 2, printed  # rank 0 alone prints
        held, whole = map(int, re.findall(r"steps (\d+) of (\d+)", printed.replace(",", ""))[0])
        assert held * ranks == whole
        assert ("in one launch" in printed) == (optimizer == "triton")
    right = losses[1, "torch"]
    assert right[1] < right[0] < 5.55  # a guess among 256 bytes costs ln 256
    for run, found in losses.items():
        assert found == pytest.approx(right, abs=1e-3), run


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_less_memory_learns_the_same_on_two_ranks() -> None:
    """Fewer activations change no loss, 8-bit states change it little, and shards are halves."""
    small = ["--checkpoint", "--chunk=64", "--accumulate=2"]
    runs = {
        "plain": [],
        "small": small,
        "8-bit": ["--optimizer=adam8bit"],
        "sharded": [*small, "--optimizer=adam8bit", "--shard"],
    }
    losses, peaks, states = {}, {}, {}
    for name, arguments in runs.items():
        printed = torchrun(2, "08_memory", "--steps=20", *arguments)
        losses[name] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[name]) == 2, printed  # rank 0 alone prints
        numbers = re.search(
            r"passes: (\d+) bytes; optimizer states: (\d+)", printed.replace(",", "")
        )
        peaks[name], states[name] = (int(number.replace(",", "")) for number in numbers.groups())
    assert losses["plain"][1] < losses["plain"][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses["small"] == pytest.approx(losses["plain"], abs=1e-3)
    assert losses["8-bit"] == pytest.approx(losses["plain"], abs=0.1)
    assert losses["sharded"] == pytest.approx(losses["8-bit"], abs=1e-2)
    assert peaks["small"] < 0.5 * peaks["plain"]
    assert states["8-bit"] < 0.3 * states["plain"]
    assert states["sharded"] < 0.6 * states["8-bit"]


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_experts_and_a_split_sequence_learn_the_same_on_one_and_two_ranks() -> None:
    losses = {}
    for ranks in (1, 2):
        printed = torchrun(ranks, "09_all_to_all", "--steps=20")
        losses[ranks] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[ranks]) == 2, printed  # rank 0 alone prints
        parts = re.findall(r"(\d+) of (\d+) (experts|tokens)", printed)
        assert [name for *_, name in parts] == ["experts", "tokens"], printed
        assert all(int(own) * ranks == int(whole) for own, whole, _ in parts), printed
    assert losses[1][1] < losses[1][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses[2] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.nightly
@pytest.mark.timeout(3 * DEADLINE + 60)
def test_three_dimensions_learn_the_same_as_one_rank() -> None:
    losses, held = {}, {}
    for ranks, pp, tp in ((1, 1, 1), (2, 1, 1), (4, 2, 2)):
        printed = torchrun(ranks, "10_composing", "--steps=20", f"--pp={pp}", f"--tp={tp}")
        losses[ranks] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[ranks]) == 2, printed  # rank 0 alone prints
        held[ranks], whole = map(
            int, re.findall(r"holds (\d+) of (\d+)", printed.replace(",", ""))[0]
        )
    assert losses[1][1] < losses[1][0] < 5.55  # a guess among 256 bytes costs ln 256
    for ranks in (2, 4):
        assert losses[ranks] == pytest.approx(losses[1], abs=1e-3), ranks
    assert held[1] == whole
    assert held[2] == pytest.approx(whole / 2, rel=0.02)  # sharded over two replicas
    assert whole / 4 < held[4] < whole / 2.5  # the first stage has the embedding


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_jax_learns_the_same_on_two_processes_with_megatrons_collectives() -> None:
    """JAX's Gloo looks up the machine's own name."""
    losses = {}
    layers, serial, data, tensor = 2, (1, 1), (2, 1), (2, 2)
    collectives = {serial: 0, data: 1, tensor: 4 * layers}
    for processes, ranks in collectives:
        arguments = ["--steps=20", f"--tensor-parallel={ranks}"]
        printed = torchrun(processes, "10_jax", *arguments, host="localhost")
        losses[processes, ranks] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[processes, ranks]) == 2, printed  # process 0 alone prints
        assert float(re.search(r": 1/([\d.]+)", printed)[1]) == pytest.approx(ranks, rel=0.02)
        found = re.search(r"into a step: (.*)", printed)[1]
        count = collectives[processes, ranks]
        assert found == (f"{{'all-reduce': {count}}}" if count else "{}")
    assert losses[serial][1] < losses[serial][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses[data] == pytest.approx(losses[serial], abs=1e-3)
    assert losses[tensor] == pytest.approx(losses[serial], abs=1e-3)


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE + 60)
def test_a_remote_embedding_learns_like_one_in_the_same_process() -> None:
    losses = {}
    for processes in (1, 2):
        printed = torchrun(processes, "10_rpc", "--steps=20")
        losses[processes] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
        assert len(losses[processes]) == 2, printed  # process 0 alone prints
        norms = [float(norm) for norm in re.findall(r"(0\.\d+)(?:,|$)", printed, re.MULTILINE)]
        assert len(norms) == 2 * processes and min(norms) > 0, printed
        held = re.findall(r"process_(\d) holds (\d+) rows", printed)
        assert held == [(str(i), str(256 // processes)) for i in range(processes)], printed
    assert losses[1][1] < losses[1][0] < 5.55  # a guess among 256 bytes costs ln 256
    assert losses[2] == pytest.approx(losses[1], abs=1e-3)
