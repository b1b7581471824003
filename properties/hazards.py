"""Shared memory that is written while a product in flight still reads it: a race in compiled code.

On Hopper, products are started and waited for later; meanwhile the next tiles come by asynchronous
copies. Triton 3.6 gives a buffer too few where a tile is wanted both by a product and in registers,
and the copy for a later step then lands on the tile that an unfinished product reads. (A copy past
the loop's end, too: masked off, it fills with zeros.) What is read depends on who is faster, so a
card shows it seldom and a sanitizer not at all; the code always does. Here Triton's own form of a
compiled kernel, the last before it becomes machine code (``compiled.asm["ttgir"]``, ``*.ttgir`` in
its cache), is gone through step by step. No GPU is needed, nor Triton.

Seen are the products of Hopper (``ttng.warp_group_dot``), and copies and stores to what they read;
not the waiting between warps, nor memory that one buffer hands on to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

STEPS = 4  # of each loop: more than there are buffers

NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))? = ")
PASSED_ON = ("ttg.memdesc_trans", "ttg.memdesc_subslice", "ttg.memdesc_reinterpret")
COMPARED = {
    "slt": int.__lt__, "sle": int.__le__, "sgt": int.__gt__, "sge": int.__ge__, "eq": int.__eq__,
    "ne": int.__ne__, "ult": int.__lt__, "uge": int.__ge__,
}  # fmt: skip
COMPUTED = {"arith.addi": int.__add__, "arith.subi": int.__sub__, "arith.muli": int.__mul__}


class Tile(NamedTuple):
    """Shared memory: an allocation and which of its buffers, None where that is not known."""

    allocation: str
    buffer: int | None

    def meets(self, other: Tile) -> bool:
        buffers = {self.buffer, other.buffer}
        return self.allocation == other.allocation and (len(buffers) == 1 or None in buffers)


class Product(NamedTuple):
    """A product in flight, and what it reads."""

    name: str
    tiles: tuple[Tile, ...]


def hazards(ttgir: str) -> list[str]:
    """What is overwritten too soon in a kernel in Triton's GPU dialect, a line each.

    Raises:
        ValueError: it is not understood.
    """
    walk = _Walk()
    try:
        walk.block([line.strip() for line in ttgir.splitlines()])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not understood: {type(error).__name__}: {error}") from error
    return sorted(walk.found)


def files(paths: Iterable[Path]) -> list[Path]:
    """The kernels among files and, at any depth, in folders.

    Raises:
        ValueError: a path is not there, or there is no kernel.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"hazards: {path} is not there")
        found += sorted(path.rglob("*.ttgir")) if path.is_dir() else [path]
    if not found:
        raise ValueError(f"hazards: no *.ttgir in {', '.join(map(str, paths))}")
    return found


class _Walk:
    """Goes through the code. ``values``: integers, tiles, and nothing else, by name."""

    def __init__(self) -> None:
        self.values: dict[str, int | bool | Tile | None] = {}
        self.in_flight: list[Product] = []
        self.found: set[str] = set()

    def block(self, lines: list[str]) -> list[str]:
        """Go through some lines; returns the names that their yield passes on."""
        at, yielded = 0, []
        while at < len(lines):
            line = lines[at]
            at += 1
            if line.endswith("({"):  # a reduction's or a scan's own code
                while not lines[at].startswith("})"):
                    at += 1
            elif re.search(r"\bscf\.(for|if)\b", line):
                end = _end(lines, at)
                self.nested(line, lines[at:end])
                at = end + 1
            elif line.startswith("scf.yield"):
                yielded = NAME.findall(line.partition(" : ")[0])
            else:
                self.step(line)
        return yielded

    def nested(self, line: str, body: list[str]) -> None:
        """A loop, some steps of it, or both branches of a condition, one after the other."""
        result = RESULT.match(line)
        if " scf.if " in f" {line}":
            for branch in _branches(body):
                self.block(branch)
            return
        header = line.partition(" -> ")[0]
        counter, start, _, step = NAME.findall(header.partition("scf.for ")[2])[:4]
        carried = re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", header.partition("iter_args(")[2])
        now = [self.values.get(value) for _, value in carried]
        count = self.values.get(start)
        for _ in range(STEPS):
            self.values[counter] = count
            self.values |= dict(zip((name for name, _ in carried), now, strict=True))
            now = [self.values.get(name) for name in self.block(body)]
            by = self.values.get(step)
            count = count + by if isinstance(count, int) and isinstance(by, int) else None
        if result:
            self.results(result, now)

    def results(self, result: re.Match, values: list) -> None:
        name, several = result.groups()
        if several:
            self.values |= {f"{name}#{n}": value for n, value in enumerate(values)}
        else:
            self.values[name] = values[0] if values else None

    def step(self, line: str) -> None:
        """One operation."""
        result = RESULT.match(line)
        rest = line[result.end() :] if result else line
        operation = rest.split(" ", 1)[0].strip('"')
        names = NAME.findall(rest.partition(" : ")[0])
        given = [self.values.get(name) for name in names]
        if operation == "ttng.warp_group_dot":
            tiles = tuple(x for x in given[:2] if isinstance(x, Tile))
            self.in_flight.append(Product(result.group(1), tiles))
            if "isAsync = true" not in rest:
                self.in_flight.clear()
        elif operation == "ttng.warp_group_dot_wait":
            left = int(re.search(r"pendings = (\d+)", rest).group(1))
            self.in_flight = self.in_flight[len(self.in_flight) - left :] if left else []
            self.results(result, given)
        elif operation == "ttg.async_copy_global_to_local":
            self.write(given[1], "a copy")
        elif operation == "ttg.local_store":
            self.write(given[1], "a store")
        elif operation == "ttg.local_alloc":
            tile = Tile(result.group(1), None)
            if names:  # filled at once, in the same place at each step
                self.write(tile, "a store")
            self.values[result.group(1)] = tile
        elif operation == "ttg.memdesc_index":
            tile, index = given
            self.values[result.group(1)] = Tile(tile.allocation, index)
        elif operation in PASSED_ON:
            self.values[result.group(1)] = given[0]
        elif result:
            self.results(result, [_computed(operation, rest, given)])

    def write(self, tile: Tile | None, by: str) -> None:
        for product in self.in_flight:
            if any(tile.meets(read) for read in product.tiles):
                self.found.add(f"{by} to {tile.allocation} while {product.name} reads it")


def _computed(operation: str, text: str, given: list) -> int | bool | None:
    """The integer or truth value of an operation, where it is known."""
    if operation == "arith.constant":
        number = re.match(r"arith\.constant (-?\d+|true|false) ?:?", text)
        return None if number is None else {"true": True, "false": False}.get(
            number.group(1)) if number.group(1).isalpha() else int(number.group(1))  # fmt: skip
    if operation == "arith.select":
        chosen, yes, no = given
        return (yes if chosen else no) if isinstance(chosen, bool) else None
    if len(given) != 2 or not all(isinstance(x, int) for x in given):
        return None
    if operation == "arith.cmpi":
        compare = COMPARED.get(text.split(" ")[1].rstrip(","))
        return None if compare is None else compare(*given)
    compute = COMPUTED.get(operation)
    return None if compute is None else compute(*given)


def _end(lines: list[str], at: int) -> int:
    """Where the block that was opened before a line is closed."""
    depth = 1
    while depth:
        line = lines[at]
        depth -= line.startswith("}")
        if not depth and not re.match(r"\} else \{", line):
            return at
        depth += bool(re.search(r"\{$", re.sub(r" loc\(.*\)$", "", line)))
        at += 1
    return at


def _branches(body: list[str]) -> list[list[str]]:
    """The branches of a condition."""
    depth = 0
    for n, line in enumerate(body):
        if not depth and line.startswith("} else {"):
            return [body[:n], body[n + 1 :]]
        depth -= line.startswith("}")
        depth += line.endswith("{")
    return [body]
