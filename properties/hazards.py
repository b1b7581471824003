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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

STEPS = 6  # of each loop: buffers are used in turn, and there are fewer
WAYS = 64  # through a kernel's conditions, at most

NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))? = ")
PRODUCT = "ttng.warp_group_dot"
PASSED_ON = (
    "ttg.memdesc_trans",
    "ttg.memdesc_reshape",
    "ttg.memdesc_reinterpret",
    "ttg.memdesc_subslice",
)
COPIES = ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local",
          "ttng.async_tma_gather")  # fmt: skip
STRANGE = ("scf.while", "scf.index_switch", "cf.br", "cf.cond_br", "tt.call",
           "ttg.warp_specialize", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")  # fmt: skip
COMPARED = {
    "slt": int.__lt__, "sle": int.__le__, "sgt": int.__gt__, "sge": int.__ge__, "eq": int.__eq__,
    "ne": int.__ne__,
}  # fmt: skip
COMPUTED = {"arith.addi": int.__add__, "arith.subi": int.__sub__, "arith.muli": int.__mul__}


class Tile(NamedTuple):
    """Shared memory: an allocation and which of its buffers, None where that is not known."""

    allocation: str
    buffer: int | None

    def meets(self, other: Tile) -> bool:
        """Whether both may be the same memory."""
        buffers = {self.buffer, other.buffer}
        return self.allocation == other.allocation and (len(buffers) == 1 or None in buffers)


class Product(NamedTuple):
    """A product in flight, and what it reads."""

    name: str
    tiles: tuple[Tile, ...]


Value = int | bool | Tile | None


def has_products(ttgir: str) -> bool:
    """Whether there is anything to look at."""
    return f"{PRODUCT} " in ttgir


def hazards(ttgir: str) -> list[str]:
    """What is overwritten too soon in a kernel in Triton's GPU dialect, a line each.

    Raises:
        ValueError: it is not understood.
    """
    if "tt.func " not in ttgir:
        raise ValueError("not understood: there is no kernel in it")
    walk = _Walk()
    try:
        walk.block([line.strip() for line in ttgir.splitlines()])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not understood: {error}") from error
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
        inside = sorted(path.rglob("*.ttgir")) if path.is_dir() else [path]
        found += [file for file in inside if file.is_file()]
    if not found:
        raise ValueError(f"hazards: no *.ttgir in {', '.join(map(str, paths))}")
    return found


class _Walk:
    """Goes through the code.

    values: the integers, truth values and tiles that are known, by name. ways: what may be in
    flight, oldest first, for each way that conditions may have gone.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.ways: list[tuple[Product, ...]] = [()]
        self.found: set[str] = set()

    def block(self, lines: list[str]) -> list[Value]:
        """Go through some lines; what their yield passes on."""
        at, yielded = 0, []
        while at < len(lines):
            line = lines[at]
            at += 1
            operation = _operation(line)
            if line.endswith("({"):  # a reduction's or a scan's own code
                while not lines[at].startswith("})"):
                    at += 1
            elif operation in ("scf.for", "scf.if"):
                blocks, at = _blocks(lines, at)
                if operation == "scf.for":
                    results = self.loop(line, blocks[0])
                else:
                    results = self.fork(blocks)
                if result := RESULT.match(line):
                    self.results(result, results)
            elif operation == "scf.yield":
                yielded = [self.values.get(x) for x in NAME.findall(line.partition(" : ")[0])]
            else:
                self.step(line, operation)
        return yielded

    def loop(self, line: str, body: list[str]) -> list[Value]:
        """Some steps of a loop; what it ends with."""
        header = line.partition(" -> ")[0]
        counter, *bounds = NAME.findall(header.partition("scf.for ")[2])[:4]
        carried = re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", header.partition("iter_args(")[2])
        now = [self.values.get(value) for _, value in carried]
        start, end, by = (self.values.get(name) for name in bounds)
        steps: Iterable[int | None] = STEPS * [None]
        if isinstance(start, int) and isinstance(by, int):
            known = isinstance(end, int)
            steps = range(start, end if known else start + STEPS * by, by)[:STEPS]
        for count in steps:
            self.values[counter] = count
            self.values |= dict(zip((name for name, _ in carried), now, strict=True))
            now = self.block(body)
        return now

    def fork(self, branches: list[list[str]]) -> list[Value]:
        """Each branch of a condition, from where it began; what all of them end with."""
        before, after, ends = self.ways, [], []
        for branch in branches:
            self.ways = before
            ends.append(self.block(branch))
            after += self.ways
        if len(branches) == 1:  # or past it
            after += before
        self.ways = list(dict.fromkeys(after))
        if len(self.ways) > WAYS:
            raise ValueError(f"more than {WAYS} ways through its conditions")
        ends = list(zip(*ends, strict=True))
        return [values[0] if len(set(values)) == 1 else None for values in ends]

    def results(self, result: re.Match, values: list[Value]) -> None:
        name, several = result.groups()
        if several:
            self.values |= {f"{name}#{n}": value for n, value in enumerate(values)}
        else:
            self.values[name] = values[0] if values else None

    def step(self, line: str, operation: str) -> None:
        """One operation."""
        result = RESULT.match(line)
        text = line[result.end() :] if result else line
        names = NAME.findall(text.partition(" : ")[0])
        given = [self.values.get(name) for name in names]
        if operation in STRANGE:
            raise ValueError(f"{operation} is not looked through")
        if operation == PRODUCT:
            kinds = text.rpartition(" : ")[2].split(" * ")
            tiles = [x for x, kind in zip(given, kinds, strict=False) if "memdesc<" in kind]
            product = Product(result.group(1), tuple(_tile(x, line) for x in tiles))
            at_once = "isAsync = true" not in text
            self.ways = [() if at_once else (*way, product) for way in self.ways]
        elif operation == f"{PRODUCT}_wait":
            left = int(re.search(r"pendings = (\d+)", text).group(1))
            self.ways = list(dict.fromkeys(way[-left:] if left else () for way in self.ways))
            self.results(result, given)
        elif operation in COPIES:
            tiles = [x for x in given if isinstance(x, Tile)]
            for tile in tiles or [_tile(None, line)]:
                self.write(tile, "a copy")
        elif operation == "ttg.local_store":
            self.write(_tile(given[1], line), "a store")
        elif operation == "ttg.local_alloc":
            tile = Tile(result.group(1), None)
            if names:  # filled at once, in the same place at each step
                self.write(tile, "a store")
            self.values[result.group(1)] = tile
        elif operation == "ttg.memdesc_index":
            self.values[result.group(1)] = Tile(_tile(given[0], line).allocation, given[1])
        elif operation in PASSED_ON:
            self.values[result.group(1)] = _tile(given[0], line)
        elif result:
            self.results(result, [_computed(operation, text, given)])

    def write(self, tile: Tile, by: str) -> None:
        for product in {product for way in self.ways for product in way}:
            if any(tile.meets(read) for read in product.tiles):
                self.found.add(f"{by} to {tile.allocation} while {product.name} reads it")


def _operation(line: str) -> str:
    result = RESULT.match(line)
    return (line[result.end() :] if result else line).split(" ", 1)[0].strip('"')


def _tile(value: Value, line: str) -> Tile:
    """The value, which must be shared memory that is known."""
    if not isinstance(value, Tile):
        raise ValueError(f"which memory is meant in {line.partition(' : ')[0]!r}")
    return value


def _computed(operation: str, text: str, given: list[Value]) -> int | bool | None:
    """The integer or truth value of an operation, where it is known."""
    if operation == "arith.constant":
        if number := re.match(r"arith\.constant (-?\d+) : (?:i\d+|index)\b", text):
            return int(number.group(1))
        return {"true": True, "false": False}.get(text.split(" ")[1])
    if operation == "arith.select":
        chosen, yes, no = given
        return (yes if chosen else no) if isinstance(chosen, bool) else None
    if len(given) != 2 or not all(isinstance(x, int) for x in given):
        return None
    if operation == "arith.cmpi":
        compute = COMPARED.get(text.split(" ")[1].rstrip(","))
    else:
        compute = COMPUTED.get(operation)
    return None if compute is None else compute(*given)


def _blocks(lines: list[str], at: int) -> tuple[list[list[str]], int]:
    """The block that was opened before a line, and that behind ``else``; and what line follows."""
    blocks: list[list[str]] = [[]]
    for end, depth in _depths(lines, at):
        if depth > 0:
            blocks[-1].append(lines[end])
        elif lines[end].startswith("} else {"):
            blocks.append([])
        else:
            return blocks, end + 1
    raise ValueError("a block has no end")


def _depths(lines: list[str], at: int) -> Iterator[tuple[int, int]]:
    """Line by line, how many blocks it lies in, from 1; 0 where it closes the first."""
    depth = 1
    for n in range(at, len(lines)):
        depth -= lines[n].startswith("}")
        yield n, depth
        depth += re.sub(r" loc\(.*\)$", "", lines[n]).endswith("{")
