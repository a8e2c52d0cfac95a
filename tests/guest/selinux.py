"""What only the guest with SELinux has: labels, and two changes of Debian's policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_POLICY = "etc/selinux/default"
MOUNT_UNCONFINED = "/usr/local/lib/gitguardfs-test-policy"
"""In the guest: the policy in which mount_t is unconfined, as in Fedora's. Not loaded at first."""

P9_CIL = '(genfscon 9p "/" (system_u object_r nfs_t ((s0) (s0))))\n'
"""Fedora labels 9p; Debian's policy does not know it. docs/selinux.md tells users to load this."""

_UNCONFINED = (
    "can_change_object_identity", "can_load_kernmodule", "can_read_shadow_passwords",
    "can_write_shadow_passwords", "corenet_unconfined_type", "dbusd_unconfined",
    "devices_unconfined_type", "files_unconfined_type", "filesystem_unconfined_type",
    "kern_unconfined", "process_uncond_exempt", "selinux_unconfined_type",
    "storage_unconfined_type", "unconfined_domain_type",
)  # fmt: skip
"""Attributes that unconfined_domain() of Debian's policy gives to a domain."""
MOUNT_CIL = "".join(
    [f"(typeattributeset {name} (mount_t))\n" for name in _UNCONFINED]
    + [
        f"(allow mount_t self ({name} (all)))\n"
        for name in ("capability", "capability2", "process")
    ]
)

TEXTS = ("1", P9_CIL, MOUNT_CIL)
"""The inputs of ``prepare``; raise the first when ``prepare`` changes."""


def prepare(root: Path, run: Callable[[list[str]], None]) -> None:
    """Make an unpacked Debian boot with SELinux enforcing, with every label in place."""
    config = root / "etc/selinux/config"
    config.write_text("SELINUX=enforcing\nSELINUXTYPE=default\n")
    modules = {"gitguardfs-9p": P9_CIL, "gitguardfs-mount": MOUNT_CIL}
    for name, text in modules.items():
        (root / f"root/{name}.cil").write_text(text)
    added = [f"--install=/root/{name}.cil" for name in modules]
    run(["chroot", str(root), "semodule", "--noreload", *added])
    (compiled,) = (root / _POLICY / "policy").iterdir()
    (root / MOUNT_UNCONFINED.lstrip("/")).write_bytes(compiled.read_bytes())
    run(["chroot", str(root), "semodule", "--noreload", "--remove=gitguardfs-mount"])
    for name in modules:
        (root / f"root/{name}.cil").unlink()
    contexts = f"/{_POLICY}/contexts/files/file_contexts"
    run(["chroot", str(root), "setfiles", "-F", contexts, "/"])
    if b":selinux_config_t:" not in os.getxattr(config, "security.selinux"):
        raise RuntimeError(f"setfiles has not labelled {config}")
