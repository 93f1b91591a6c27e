"""The page of chapter 07 shows measurements on a GPU, or says that there are none."""

import json
from pathlib import Path

from parlab_staff.book.gpu_record import gpu_record, machine_of, measured_table

RECORD = {
    "machine": {"gpu": "one", "torch": "2.13.0"},
    "date": "2026-11-23T08:00:00+00:00",
    "command": "make gpu-check",
    "complete": True,
    "items": [],
    "benchmarks": [
        {"work": "a sum", "peer": "torch.add", "ratio": 1.004, "spread": [0.99, 1.02]},
        {"work": "a sum", "peer": "a copy", "ratio": 1.0638, "spread": [1.06, 1.07]}
        | {"share_of_copy_rate": 0.94},
    ],
}


def written(folder: Path, record: dict) -> Path:
    file = folder / "gpu.json"
    file.write_text(json.dumps(record))
    return file


def test_a_missing_file_or_one_without_benchmarks_is_no_record(tmp_path: Path) -> None:
    assert gpu_record(tmp_path / "gpu.json") is None
    assert gpu_record(written(tmp_path, RECORD | {"benchmarks": []})) is None


def test_a_record_becomes_a_table(tmp_path: Path) -> None:
    record = gpu_record(written(tmp_path, RECORD))
    assert record == RECORD
    assert measured_table(record).splitlines()[2:] == [
        "| a sum | torch.add | 1.00 (0.99 to 1.02) |  |",
        "| a sum | a copy | 1.06 (1.06 to 1.07) | 94% |",
    ]
    assert (
        machine_of(record) == "gpu one, torch 2.13.0; 2026-11-23T08:00:00+00:00; `make gpu-check`"
    )
