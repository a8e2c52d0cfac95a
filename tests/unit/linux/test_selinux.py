"""Whether the policy lets fstab start a guard at boot, by the answers of selinuxfs."""

from pathlib import Path

import pytest

from gitguardfs.linux import selinux
from gitguardfs.linux.selinux import NEEDED, Confined

INIT = "system_u:system_r:init_t:s0"
MOUNT = "system_u:system_r:mount_t:s0"
BITS = {name: number for number, name in enumerate(NEEDED, start=5)}
ALL = sum(1 << bit - 1 for bit in BITS.values())


class Policy:
    """A stand-in for selinuxfs: its files, and its answers."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys = tmp_path
        self.root = tmp_path / "fs/selinux"
        self.allowed, self.flags, self.enforce = ALL, 0, "1"
        self.asked: list[tuple[str, str]] = []
        for name, number in BITS.items():
            self.write(f"class/capability/perms/{name}", str(number))
        self.write("class/capability/index", "4")
        self.write("class/process/index", "2")
        monkeypatch.setattr(selinux, "_label", lambda path: f"label-of-{path}")
        monkeypatch.setattr(selinux, "INIT_CONTEXT", str(tmp_path / "init"))
        (tmp_path / "init").write_text(f"{INIT}\0")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(self, name: str, question: str) -> str:
        self.asked.append((name, question))
        if name == "access":
            return f"{self.allowed:x} ffffffff 0 ffffffff 7 {self.flags:x}"
        context, label, _ = question.split()
        return f"{MOUNT if label == 'label-of-/usr/bin/mount' else context}\0"

    def confined(self) -> Confined | None:
        self.write("enforce", self.enforce)
        programs = ["/usr/bin/mount", "/usr/local/bin/gitguardfs"]
        return selinux.confined_at_boot(str(self.sys), programs, self.ask)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    return Policy(tmp_path, monkeypatch)


def test_each_program_is_run_by_the_domain_of_the_one_before(policy: Policy) -> None:
    policy.confined()
    assert policy.asked == [
        ("create", f"{INIT} label-of-/usr/bin/mount 2"),
        ("create", f"{MOUNT} label-of-/usr/local/bin/gitguardfs 2"),
        ("access", f"{MOUNT} {MOUNT} 4"),
    ]


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_capability_is_named_with_the_domain(policy: Policy, name: str) -> None:
    policy.allowed = ALL & ~(1 << BITS[name] - 1)
    assert policy.confined() == Confined("mount_t", (name,))


def test_nothing_is_kept_from_a_permissive_domain_or_on_a_permissive_system(policy: Policy) -> None:
    policy.allowed = 0
    assert policy.confined() == Confined("mount_t", NEEDED)
    policy.flags = 1
    assert policy.confined() is None
    policy.flags, policy.enforce = 0, "0"
    assert policy.confined() is None


def test_without_selinux_nothing_is_asked(tmp_path: Path) -> None:
    def ask(name: str, question: str) -> str:
        raise AssertionError(name)

    assert selinux.confined_at_boot(str(tmp_path), ["/usr/bin/mount"], ask) is None


@pytest.mark.parametrize("answer", ["", "no number 0 0 0 0", OSError()])
def test_a_policy_that_cannot_be_asked_stands_in_nobodys_way(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, answer: str | OSError
) -> None:
    def ask(name: str, question: str) -> str:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(policy, "ask", ask)
    assert policy.confined() is None
