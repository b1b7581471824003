"""Tables of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from measuring.floors import DIRECTIONS, Ceilings, Floor, floor
from measuring.shapes import SHAPES, SIX

Row = dict[str, Any]
OURS = "rewy"


def add_floors(rows: list[Row], ceilings: Ceilings) -> None:
    """Put the floor of each direction into each row, and each side's share of it."""
    for row in rows:
        shape = SHAPES[row["shape"]]
        row["floors"] = {}
        for direction in DIRECTIONS:
            found: Floor = floor(row["operator"], shape, row["policy"], direction, ceilings)
            row["floors"][direction] = {
                "ms": 1e3 * found.seconds, "binding": found.binding, "bytes": found.bytes,
                "flops": found.flops,
            }  # fmt: skip
            for side in row["sides"].values():
                if direction in side:
                    side[direction]["share"] = 1e3 * found.seconds / side[direction]["median"]


def ratio(row: Row, other: str, direction: str) -> float | None:
    """The other side's median over ours, None where one was not measured."""
    ours, theirs = (row["sides"].get(name, {}).get(direction) for name in (OURS, other))
    return None if not (ours and theirs) else theirs["median"] / ours["median"]


def others(rows: list[Row]) -> list[str]:
    """The sides beside ours, in the order they came."""
    return list(dict.fromkeys(n for row in rows for n in row["sides"] if n != OURS))


def groups(rows: list[Row]) -> Iterator[tuple[tuple[str, str, str], list[Row]]]:
    """Rows of an operator, kind of gates and policy together."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["operator"], row["gates"], row["policy"]), []).append(row)
    yield from found.items()


def means(rows: list[Row]) -> list[dict[str, Any]]:
    """Geometric means of ratios over the six shapes, and over how many of them."""
    found = []
    for (operator, gates, policy), group in groups(rows):
        for other in others(group):
            for direction in DIRECTIONS:
                ratios = [ratio(row, other, direction) for row in group if row["shape"] in SIX]
                known = [r for r in ratios if r is not None]
                if known:
                    found.append({
                        "operator": operator, "gates": gates, "policy": policy, "against": other,
                        "direction": direction, "mean": statistics.geometric_mean(known),
                        "least": min(known), "shapes": len(known),
                    })  # fmt: skip
    return found


def means_table(rows: list[Row]) -> str:
    """How many times as long the others take."""
    lines = [
        "| operator | gates | policy | against | direction | geometric mean | least | shapes |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for m in means(rows):
        cells = [m[name] for name in ("operator", "gates", "policy", "against", "direction")]
        cells += [f"{m['mean']:.2f}", f"{m['least']:.2f}", f"{m['shapes']} of {len(SIX)}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rows_table(rows: list[Row], direction: str) -> str:
    """Every side of every row in one direction."""
    lines = [
        "| operator | gates | policy | shape | side | ms | 20 % to 80 % | ratio | floor ms | share "
        "| host ms | peak MiB | worst error |",
        "| --- | --- | --- | --- | --- |" + " ---: |" * 8,
    ]
    for row in rows:
        for name, side in row["sides"].items():
            cells = [row["operator"], row["gates"], row["policy"], row["shape"], name]
            lines.append("| " + " | ".join(cells + _cells(row, name, side, direction)) + " |")
    return "\n".join(lines)


def _cells(row: Row, name: str, side: dict[str, Any], direction: str) -> list[str]:
    times = side.get(direction)
    if times is None:
        return ["refused", *(7 * [""])]
    least = row["floors"][direction]
    r = ratio(row, name, direction)
    worst, error = max(side["errors"].items(), key=lambda item: item[1])
    return [
        f"{times['median']:.3f}", f"{times['low']:.3f} to {times['high']:.3f}",
        "" if name == OURS or r is None else f"{r:.2f}",
        f"{least['ms']:.3f} ({least['binding']})", f"{100 * times['share']:.0f} %",
        f"{times['host']:.2f}", f"{side['peak_mib']:.0f}", f"{worst} {error:.1e}",
    ]  # fmt: skip


def refusals(rows: list[Row]) -> str:
    """Who was refused what, and why; once for each reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, side in row["sides"].items():
            if "refused" in side:
                where = f"{row['shape']} ({row['gates']} gates, {row['policy']})"
                found.setdefault(f"{name}, {row['operator']}: {side['refused']}", []).append(where)
    return "\n".join(f"- {why}: {', '.join(where)}" for why, where in found.items())


def first_calls_table(calls: list[dict[str, Any]]) -> str:
    """Seconds of the first forward and backward of a process, nothing compiled before."""
    lines = ["| operator | policy | side | first call s |", "| --- | --- | --- | ---: |"]
    for call in calls:
        cells = [call["operator"], call["policy"], call["side"], f"{call['seconds']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(found: dict[str, Any]) -> str:
    """Everything in a JSON file, as Markdown."""
    about, rows = found["about"], found.get("rows", [])
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [f"{about['gpu']}, {about['date']}, `{about['command']}`; {versions}"]
    for operator, status in about.get("faults", {}).items():
        parts.append(f"{operator}: its process ended with {status}; what it had measured is here.")
    if rows:
        ceilings = Ceilings(**about["ceilings"])
        add_floors(rows, ceilings)
        used = sorted({u for r in rows for s in r["sides"].values() for u in s.get("used", [])})
        parts += [
            f"Ceilings measured: copy {ceilings.bytes_per_second / 1e12:.2f} TB/s, bfloat16 "
            f"products {ceilings.flops / 1e12:.0f} TFLOP/s. Inputs in {about['dtype']}; medians of "
            f"{about['repeats']}; ratio: the side's time over rewy's. H = HV = 16 and K = V = 128 "
            "unless the shape says other."
            + (f" fla's stages from elsewhere: {', '.join(used)}." if used else ""),
            *(f"## {d.capitalize()}\n\n{rows_table(rows, d)}" for d in reversed(DIRECTIONS)),
            f"## Over the six shapes\n\n{means_table(rows)}",
        ]
        if told := refusals(rows):
            parts.append(f"## Refused\n\n{told}")
    if calls := found.get("first_calls"):
        parts.append(f"## First calls\n\n{first_calls_table(calls)}")
    return "\n\n".join(parts)
