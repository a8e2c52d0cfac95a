"""Settings of the guest for toolchains; test_toolchains.py tries them with real programs."""

import pytest

from gitguardfs.host.vm import guest_tools
from tests.unit.vm.test_vm_seed import CA


def test_a_guest_without_an_authority_has_all_but_the_trust_store() -> None:
    with_it, without = guest_tools.files(CA), guest_tools.files(None)
    assert with_it == {**without, guest_tools.JAVA_TRUST: guest_tools.java_trust_store(CA)}
    with pytest.raises(ValueError):
        guest_tools.files("CA")
