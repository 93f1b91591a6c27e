"""Results as text and as JSON."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Samples, ratio, spread
from parlab.units import sized


def row(bench: Benchmark, samples: Samples) -> dict[str, Any]:
    """Return the result in the form of `_build/bench.json`."""
    return {
        "name": bench.name,
        "peer": bench.peer,
        "work": bench.work,
        "ratio": round(ratio(samples), 4),
        "spread": [round(end, 4) for end in spread(samples)],
        "target": bench.target and round(bench.target, 4),
    }


def write(rows: list[dict[str, Any]], path: Path, keep_others: bool) -> None:
    """Write `rows`. With `keep_others`, keep the stored rows with other names."""
    stored = json.loads(path.read_text(encoding="utf-8")) if keep_others and path.exists() else []
    new = {r["name"] for r in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = [r for r in stored if r["name"] not in new] + rows
    path.write_text(json.dumps(merged, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def lines(bench: Benchmark, samples: Samples) -> list[str]:
    """Return the result as text: the ratio and its target, then the work and the times."""
    result = row(bench, samples)
    low, high = result["spread"]
    wanted = "no target"
    if bench.target is not None:
        verdict = "ok" if result["ratio"] <= bench.target else "MISSED"
        wanted = f"target {bench.target:.4g}: {verdict}"
    shown = {"s": seconds, "bytes": sized, "": "{:.3g}".format}[bench.unit]
    took = " against ".join(shown(statistics.median(side)) for side in samples)
    return [
        f"{bench.name:<32} {result['ratio']:7.3f} × {bench.peer}",
        f"{'':<32} {low:.3f} to {high:.3f}, {wanted}",
        f"{'':<32} {bench.work}; {took}",
    ]


def seconds(value: float) -> str:
    """Return a time with three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
