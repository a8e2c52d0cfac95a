"""The table of faults (tests/mutants.sh) fits the code and the tests."""

import ast

from tests.mutants import Mutant, read_table
from tests.support.mounting import REPOSITORY


def test_every_fault_fits_the_code() -> None:
    assert [said for mutant in read_table() if (said := misfit(mutant))] == []


def misfit(mutant: Mutant) -> str:
    """Return why a fault does not fit; "" if it does."""
    try:
        text = mutant.change()
        if mutant.file.endswith(".py"):
            ast.parse(text)
        for test in mutant.tests:
            path, _, name = test.partition("[")[0].partition("::")
            if name and f"def {name}(" not in (REPOSITORY / "tests" / path).read_text():
                return f"{mutant.name}: no such test: {test}"
            (REPOSITORY / "tests" / path).stat()
    except (OSError, SyntaxError, ValueError) as error:
        return f"{mutant.name}: {error}"
    return ""
