"""Linux file system behaviour, asserted by real system calls in a directory.

Every ``check_*`` function of the modules here takes a fresh directory (root's, mode 0777) and
works as root, switching to unprivileged users where permission matters. The same checks run on a
plain directory, where they prove themselves, and on whatever is to be compared with it.
``python -m tests.conformance DIRECTORY`` runs them without pytest.
"""

from collections.abc import Callable
from importlib import import_module

MODULES = (
    "modes",
    "owners",
    "opening",
    "making",
    "links",
    "renaming",
    "sticky",
    "times",
    "paths",
    "listing",
    "content",
    "memory",
    "between",
)


def all_checks() -> dict[str, Callable[[str], None]]:
    """Every check by ``module-name``, in the order of the source."""
    found: dict[str, Callable[[str], None]] = {}
    for module_name in MODULES:
        module = import_module(f"{__name__}.{module_name}")
        for name, function in vars(module).items():
            if name.startswith("check_"):
                found[f"{module_name}-{name.removeprefix('check_')}"] = function
    return found
