"""The list of small faults (tests/mutants.sh) fits the code and the tests that there are."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.mutation import MUTANTS
from tests.mutation import __main__ as mutation
from tests.mutation.copies import CHECKOUT
from tests.mutation.mutant import Mutant

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_name_is_its_own() -> None:
    assert len(BY_NAME) == len(MUTANTS)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_old_text_stands_once_and_the_new_one_is_code(name: str) -> None:
    mutant = BY_NAME[name]
    (text,) = mutation.changed(mutant).values()
    if mutant.path.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        return
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(_read(mutant.path)))


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_the_tests_that_should_notice_are_there(test: str) -> None:
    path, _, name = test.partition("[")[0].partition("::")
    assert not name or re.search(
        rf"^(async )?def {re.escape(name)}\(", _read(f"tests/{path}"), re.M
    )
    assert (CHECKOUT / "tests" / path).is_file()


@pytest.mark.parametrize("old", ["no such line", "import"])
def test_an_entry_that_does_not_fit_the_code_is_an_error(old: str) -> None:
    stale = Mutant("stale", "nothing", "fs/access.py", old, "", ())
    with pytest.raises(mutation.Failure, match="stale: its old text stands"):
        mutation.changed(stale)


def test_names_and_patterns_choose() -> None:
    assert mutation.chosen([]) == list(MUTANTS)
    assert {mutant.name for mutant in mutation.chosen(["seal-*"])} == {
        name for name in BY_NAME if name.startswith("seal-")
    }
    with pytest.raises(mutation.Failure, match="no fault 'nothing'"):
        mutation.chosen(["seal-*", "nothing"])


@pytest.mark.parametrize(
    ("failing", "used"),
    [
        ("unit/test_a.py::test_x", True),
        ("unit/test_a.py", True),
        ("unit/test_ab.py::test_x", False),
        ("mount/test_b.py::test_y[1-2]", True),
        ("mount/test_b.py::test_yes", False),
    ],
)
def test_a_test_that_fails_without_a_fault_judges_none(failing: str, used: bool) -> None:
    tests = ("unit/test_a.py", "mount/test_b.py::test_y")
    mutant = Mutant("name", "nothing", "fs/access.py", "", "", tests)
    assert mutation.uses(mutant, [failing]) == [failing] * used


def test_help_says_what_the_exit_status_means() -> None:
    done = subprocess.run(
        [CHECKOUT / "tests/mutants.sh", "--help"], capture_output=True, text=True, check=True
    )
    assert "Exit status" in done.stdout


def _read(path: str) -> str:
    return Path(CHECKOUT / path).read_text()
