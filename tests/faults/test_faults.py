"""Every planted fault is found by the suite's default search, and nothing is found without one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from properties.case import OPERATORS
from properties.law import load_laws
from tests.faults.faults import FAULTS
from tests.faults.hunting import FIRST, hunt_fault, hunt_soundness
from tests.faults.mutant import load, source

SOUND_EXAMPLES = 4  # enough to see a copy that does not even run

faults = pytest.mark.parametrize("fault", [pytest.param(f, id=f.name) for f in FAULTS])


@faults
def test_fault_has_exactly_one_place(fault):
    assert fault.applied(source(fault)) != source(fault)
    assert set(fault.operators) <= set(OPERATORS)


def test_names_are_unique_and_laws_are_known():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert set(FIRST) <= set(load_laws())


def test_a_copy_shares_no_code_with_the_package():
    copy = load()
    for name in (name for name in sys.modules if name.split(".")[0] == copy.__name__):
        for value in vars(sys.modules[name]).values():
            home = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
            home = getattr(value, "__module__", None) or home
            assert home.split(".")[0] != "rewy", f"{name} has {value!r} of the package itself"


@faults
def test_fault_is_found(fault):
    assert hunt_fault(fault) is not None, f"{fault.name} survives: the suite has a hole"


@pytest.mark.parametrize("law", [pytest.param(x, id=name) for name, x in load_laws().items()])
def test_nothing_is_found_in_an_unmutated_copy(law):
    assert not hunt_soundness(law, law.operators, SOUND_EXAMPLES)
