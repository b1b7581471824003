"""The table of what was measured."""

from __future__ import annotations

from typing import Any

from ablating.rows import COMPARISONS

COLUMNS = (
    "comparison", "shape", "side", "tile", "ms", "20 % to 80 %", "naive / ours", "GFLOP, products",
    "GFLOP, pairs", "G decays", "MiB", "worst error",
)  # fmt: skip


def ratio(row: dict[str, Any]) -> float | None:
    """The naive side's median over ours, None where one has no time."""
    c = COMPARISONS[row["comparison"]]
    naive, ours = (row["sides"].get(side.name, {}).get("median") for side in c.sides)
    return naive / ours if naive and ours else None


def table(found: dict[str, Any]) -> str:
    """Everything in a JSON file, as Markdown."""
    about = found["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['gpu']}, {about['date']}, `{about['command']}`; {versions}. Medians of "
        f"{about['repeats']}; copy {about['ceilings']['bytes_per_second'] / 1e12:.2f} TB/s, "
        f"bfloat16 products {about['ceilings']['flops'] / 1e12:.0f} TFLOP/s.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- | --- | --- | --- |" + " ---: |" * (len(COLUMNS) - 4),
    ]
    for row in found["rows"]:
        for name, side in row["sides"].items():
            cells = [row["comparison"], row["shape"], name, *_cells(row, name, side)]
            lines.append("| " + " | ".join(cells) + " |")
    told = [
        f"- {row['comparison']}, {row['shape']}, {name}, {tile_of(one['tile'])}: {one['refused']}"
        for row in found["rows"]
        for name, side in row["sides"].items()
        for one in side["tried"]
        if "refused" in one
    ]
    if told:
        lines += ["", "Refused:", "", *told]
    for comparison, status in about.get("faults", {}).items():
        lines += ["", f"{comparison}: its process ended with {status} before it was done."]
    return "\n".join(lines)


def tile_of(tile: dict[str, int]) -> str:
    """A candidate in a few words."""
    told = f"BK {tile['BK']}, {tile['warps']} warps, {tile['stages']} stages"
    return told + (f", unrolled {tile['UNROLL']}" if tile["UNROLL"] > 1 else "")


def _cells(row: dict[str, Any], name: str, side: dict[str, Any]) -> list[str]:
    if "median" not in side:
        return ["", "refused", *((len(COLUMNS) - 5) * [""])]
    times = ratio(row) if name == COMPARISONS[row["comparison"]].naive.name else None
    worst, error = max(side["errors"].items(), key=lambda item: item[1])
    return [
        tile_of(side["tile"]), f"{side['median']:.4f}", f"{side['low']:.4f} to {side['high']:.4f}",
        "" if times is None else f"{times:.2f}", f"{side['products'] / 1e9:.1f}",
        f"{side['pairs'] / 1e9:.1f}", f"{side['decays'] / 1e9:.2f}",
        f"{side['bytes'] / 2**20:.0f}", f"{worst} {error:.1e}",
    ]  # fmt: skip
