"""Which session a mount gets, also where pyfuse3 is not installed."""

import os
import sys
from types import SimpleNamespace

import pytest

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.sessions.choice import session_kind


def chosen(kind: str, needs_kernel: str = "") -> str:
    return "Kernel" if session_kind(kind, False, needs_kernel, False).takes_over else "Pyfuse3"


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Root, on Linux 6.12."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.12.1"))
    return monkeypatch


def test_the_kernels_session_serves_where_it_can(
    system: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [chosen(kind) for kind in ("auto", "kernel", "pyfuse3")]
    assert found == ["Kernel", "Kernel", "Pyfuse3"]
    system.setattr(os, "geteuid", lambda: 1000)
    assert chosen("auto") == "Pyfuse3"
    with pytest.raises(UserError, match="--enable-ioctl needs --session kernel"):
        chosen("auto", needs_kernel="enable-ioctl")
    system.setattr(os, "geteuid", lambda: 0)
    system.setattr(os, "uname", lambda: SimpleNamespace(release="5.15.0-91-generic"))
    assert chosen("auto") == "Pyfuse3"
    with pytest.raises(UserError, match=r"needs Linux 5\.17"):
        chosen("kernel")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("package", ["pyfuse3", "trio"])
def test_without_pyfuse3_the_kernels_session_goes_on_with_a_warning(
    system: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    system.setitem(sys.modules, package, None)
    assert chosen("kernel") == "Kernel" and capsys.readouterr().err == ""
    assert chosen("auto") == "Kernel"
    said = capsys.readouterr().err
    assert said.startswith(f"gitguardfs: warning: no {package} here") and said.count("\n") == 1
    for kind, uid in (("pyfuse3", 0), ("auto", 1000)):
        system.setattr(os, "geteuid", lambda uid=uid: uid)
        with pytest.raises(UserError, match=f"no {package} here.*python3-pyfuse3") as refused:
            chosen(kind)
        assert refused.value.code is Exit.SYSTEM
