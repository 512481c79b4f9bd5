"""Is the public face of the package sorted, complete, light and typed?"""

import subprocess
import sys

import pytest

import dpbalance


def test_every_public_name_is_there() -> None:
    assert dpbalance.__all__ == sorted(dpbalance.__all__)
    for name in dpbalance.__all__:
        assert getattr(dpbalance, name) is not None


def test_the_lazy_table_and_the_public_names_agree() -> None:
    assert {*dpbalance._HOME, "scheduler", "__version__"} == set(dpbalance.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = dpbalance.nothing_of_ours


def loaded_after(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import dpbalance", "import dpbalance.cli"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_after(statement) & {"numpy", "scipy", "numba", "highspy", "rich", "dp_accounting"}


def test_reading_and_checking_loads_no_solver() -> None:
    used = "import dpbalance; dpbalance.Allocation, dpbalance.read_round, dpbalance.worked_example()"
    assert not loaded_after(used) & {"scipy", "numba", "highspy", "rich", "typer"}


def test_the_scheduler_room_can_be_called_and_entered() -> None:
    from dpbalance.scheduler import alpha_fair, packing

    decided = dpbalance.scheduler("dpbalance", beta=2.2).decide(dpbalance.worked_example())
    decided.check()
    assert isinstance(dpbalance.scheduler("fcfs"), dpbalance.Scheduler)
    assert callable(alpha_fair.solve)
    assert callable(packing.solve)
