"""That overwriting what a product still reads is seen, and that what is strange is told."""

from __future__ import annotations

import pytest

from properties.__main__ import main
from properties.hazards import hazards

TILE = "!ttg.memdesc<64x64xbf16, #shared, #smem, mutable>"
NUMBERS = {"c0": 0, "c1": 1, "c2": 2, "c3": 3, "cm1": -1}
OPENING = [
    "tt.func public @kernel(%at: !tt.ptr<bf16>, %N: i32, %if: i1) attributes {noinline = false} {",
    *(f"%{name} = arith.constant {number} : i32 loc(#loc)" for name, number in NUMBERS.items()),
    f"%tiles = ttg.local_alloc : () -> {TILE} loc(#loc)",
]


def place(name: str, buffer: str) -> str:
    return f"%{name} = ttg.memdesc_index %tiles[%{buffer}] : {TILE} -> {TILE} loc(#loc)"


def product(name: str, tile: str, at_once: bool = False) -> str:
    when = "" if at_once else ", isAsync = true"
    return (
        f"%{name} = ttng.warp_group_dot %{tile}, %{tile}, %acc {{inputPrecision = 0 : i32{when}}}"
        f" : {TILE} * {TILE} -> tensor<64x64xf32, #mma> loc(#loc)"
    )


def wait(pendings: int) -> str:
    return f"%w = ttng.warp_group_dot_wait %p {{pendings = {pendings} : i32}} : x loc(#loc)"


def copy(tile: str) -> str:
    return f"%t = ttg.async_copy_global_to_local %at, %{tile} mask %m : x -> {TILE} loc(#loc)"


def by_another_name(operation: str) -> tuple[str, ...]:
    return (f"%c = {operation} %a : {TILE} -> {TILE} loc(#loc)", copy("c"))


def code(*lines: str) -> str:
    return "\n".join(["module {", *OPENING, *lines, "tt.return loc(#loc)", "} loc(#loc)", "}"])


START = (place("a", "c0"), place("b", "c1"), product("p", "a"))
STORE = f"ttg.local_store %x, %a : tensor<64x64xbf16> -> {TILE} loc(#loc)"
FILLED = f"%a = ttg.local_alloc %x : (tensor<64x64xbf16>) -> {TILE} loc(#loc)"
CHOSEN = f"%a = scf.if %if -> ({TILE}) {{"
IF, ELSE, END, YIELD = "scf.if %if {", "} else {", "} loc(#loc)", "scf.yield %b : x loc(#loc)"
FOR = "scf.for %n = %c0 to %N step %c1  : i32 {"


@pytest.mark.parametrize(
    ("lines", "by"),
    [
        ((*START, copy("a")), "a copy"),
        ((*START, copy("b")), None),
        ((*START, STORE), "a store"),
        ((*START, wait(0), copy("a")), None),
        ((*START, wait(1), copy("a")), "a copy"),
        ((*START, product("q", "b"), wait(1), copy("a")), None),
        ((*START, product("q", "b"), wait(1), copy("b")), "a copy"),
        ((*START, product("q", "b"), wait(3), copy("a")), "a copy"),
        ((*START, product("q", "b", at_once=True), copy("a")), None),
        ((place("a", "N"), place("b", "c1"), product("p", "a"), copy("b")), "a copy"),
        ((*START, *by_another_name("ttg.memdesc_trans")), "a copy"),
        ((*START, *by_another_name("ttg.memdesc_reshape")), "a copy"),
        ((*START, *by_another_name("ttg.memdesc_subslice")), "a copy"),
        ((*START, IF, wait(0), END, copy("a")), "a copy"),
        ((*START, IF, wait(0), ELSE, copy("a"), END), "a copy"),
        ((*START, IF, wait(0), ELSE, wait(0), END, copy("a")), None),
        ((*START[:2], IF, product("p", "a"), ELSE, copy("a"), END), None),
        ((*START[:2], IF, product("p", "a"), END, copy("a")), "a copy"),
        ((START[1], CHOSEN, YIELD, ELSE, YIELD, END, product("p", "a"), copy("b")), "a copy"),
        ((FOR, FOR, FILLED, product("p", "a"), END, END), "a store"),
        ((FOR, FILLED, product("p", "a", at_once=True), END), None),
        ((FOR.replace("%N", "%c1"), FILLED, product("p", "a"), END), None),
        ((FOR.replace("%N", "%c2"), FILLED, product("p", "a"), END), "a store"),
    ],
)
def test_what_is_written_must_not_be_read_any_more(lines, by):
    found = hazards(code(*lines))
    assert [line.partition(" to %")[0] for line in found] == ([by] if by else [])


def loop(places: int, wait: str) -> str:
    """A loop as Triton's pipeliner writes it: the copy is for the tile after next."""
    return code(
        "%out:3 = scf.for %n = %c0 to %N step %c1 iter_args(%acc = %x, %to = %c1, %of = %cm1) "
        "-> (tensor<64x64xf32, #mma>, i32, i32)  : i32 {",
        "%of_1 = arith.addi %of, %c1 : i32 loc(#loc)",
        f"%of_2 = arith.cmpi sge, %of_1, %c{places} : i32 loc(#loc)",
        "%of_3 = arith.select %of_2, %c0, %of_1 : i32 loc(#loc)",
        place("tile", "of_3"),
        product("p", "tile"),
        wait,
        "%to_1 = arith.addi %to, %c1 : i32 loc(#loc)",
        f"%to_2 = arith.cmpi sge, %to_1, %c{places} : i32 loc(#loc)",
        "%to_3 = arith.select %to_2, %c0, %to_1 : i32 loc(#loc)",
        place("next", "to_3"),
        copy("next"),
        "scf.yield %p, %to_3, %of_3 : tensor<64x64xf32, #mma>, i32, i32 loc(#loc)",
        END,
    )


@pytest.mark.parametrize(
    ("places", "pendings", "seen"), [(2, 0, False), (2, 1, True), (3, 1, False), (3, 2, True)]
)
def test_a_copy_must_find_its_place_free(places, pendings, seen):
    found = hazards(loop(places, wait(pendings)))
    assert found == (["a copy to %tiles while %p reads it"] if seen else [])


@pytest.mark.parametrize(
    "lines",
    [
        ("%a = ttg.memdesc_unheard_of %tiles : x -> y", product("p", "a")),
        (copy("nowhere"),),
        (STORE,),
        (*START[:2], CHOSEN, YIELD, ELSE, "scf.yield %a : x", END, product("p", "a")),
        ("scf.while (%x = %c0) : (i32) -> i32 {", END),
        ("cf.br ^bb1",),
        ("%r = ttng.tc_gen5_mma %a, %b, %c : x",),
        (FOR, FOR, FOR),
    ],
)
def test_what_is_strange_is_no_answer(lines):
    with pytest.raises(ValueError, match="not understood"):
        hazards(code(*lines))


def test_it_is_told_file_by_file(tmp_path, capsys):
    (tmp_path / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "folder.ttgir").mkdir()
    (tmp_path / "gone.ttgir").symlink_to(tmp_path / "nowhere")
    bad, good, other = (tmp_path / name for name in ("deep/bad.ttgir", "good.ttgir", "x.ttgir"))
    bad.write_text(loop(2, wait(1)))
    good.write_text(loop(3, wait(1)))
    assert main(["hazards", str(tmp_path)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{bad}: a copy to %tiles while %p reads it"
    assert told[1].startswith("1 of 2 kernels")
    assert main(["hazards", str(good)]) == 0
    other.write_text(code())
    assert main(["hazards", str(other)]) == 0
    assert "1 others have no such products" in capsys.readouterr().out
    for strange in (b"no kernel", b"\xff\xfe"):
        other.write_bytes(strange)
        assert main(["hazards", str(other)]) == 1
        assert "1 are not understood" in capsys.readouterr().out
    for wrong in (tmp_path / "none", tmp_path / "deep" / "empty"):
        assert main(["hazards", str(wrong)]) == 2
    told = capsys.readouterr().err
    assert "is not there" in told
    assert "no *.ttgir" in told
