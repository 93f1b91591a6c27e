"""Tables that papers published, cell by cell, for pages and tests to reproduce by formula.

    table = reference_tables.load("zero_table1")
    table.rows[3]["stage3_gb"], table.citation

Only numbers are kept here, with where they come from; the formulas belong to `parlab.costs`.
"""

import csv
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Table:
    """Rows by column name. Cells are floats if they are numbers, and otherwise text."""

    source: str
    citation: str  # key in book/references.bib
    rows: list[dict[str, float | str]]


_SOURCES = {
    "gpu_datasheets": (
        "NVIDIA's A100 architecture paper and the data sheets of H100 and H200, as each row's "
        "citation says: peak FLOP/s of plain FP32 and of dense BF16 on tensor cores",
        "nvidia2020a100",
    ),
    "zero_table1": (
        "Rajbhandari et al., ZeRO (arXiv 1910.02054), Table 1: GB of model states per device",
        "rajbhandari2020zero",
    ),
    "megatron_table1": (
        "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using "
        "Megatron-LM (arXiv 2104.04473), Table 1: weak scaling on A100 GPUs",
        "narayanan2021megatron",
    ),
    "megatron_zero3_table2": (
        "Narayanan et al. (arXiv 2104.04473), Table 2: Megatron-LM compared with ZeRO-3",
        "narayanan2021megatron",
    ),
}


def load(name: str) -> Table:
    """Return the table `name`. Raises ValueError, with all names, for an unknown one."""
    if name not in _SOURCES:
        raise ValueError(f"no table {name!r}: use one of {', '.join(sorted(_SOURCES))}")
    text = (files(__name__) / f"{name}.csv").read_text(encoding="utf-8")
    rows = [{k: _cell(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]
    return Table(*_SOURCES[name], rows)


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
