"""The sizes of a run: full, quick, and in the guest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """Sizes of the workloads and number of rounds."""

    name: str
    files: int
    """Files of the tree that is listed, read and searched."""
    creates: int
    saves: int
    transactions: int
    c_files: int
    modules: int
    misses: int
    packages: int
    """Packages that an install unpacks, some ten files each."""
    fio_small: int
    """Megabytes moved in blocks of 4 kB."""
    fio_large: int
    """Megabytes moved in blocks of 1 MB."""
    requests: int
    """Repetitions in the loop that measures the cost of one request."""
    known: int
    """Number of files that the daemon knows when its memory is measured."""
    rounds: int
    unpacked: int
    """Shards of a thousand files in the archive that is unpacked."""
    copied: int
    """Shards that are copied and removed."""
    stats: int = 10
    """How often known files are looked up again."""
    warms_up: bool = True
    """Whether there is a first round that does not count."""
    fewer_rounds: Mapping[str, int] = field(default_factory=dict)
    """Views that are slow and not judged, and in how many rounds they take part."""


FULL = Scale(
    "full", files=20_000, creates=5000, saves=1000, transactions=200, c_files=60, modules=300,
    misses=10_000, packages=250, fio_small=32, fio_large=256, requests=3000, known=1_000_000,
    rounds=5, unpacked=4, copied=3, fewer_rounds={"gitguardfs-0": 1},
)  # fmt: skip
QUICK = Scale(
    "quick", files=5000, creates=1000, saves=250, transactions=40, c_files=16, modules=60,
    misses=4000, packages=60, fio_small=12, fio_large=96, requests=1000, known=100_000, rounds=3,
    unpacked=1, copied=1, warms_up=False, fewer_rounds={"gitguardfs-0": 1, "bindfs-mt": 1},
)  # fmt: skip
GUEST = Scale(
    "guest", files=200, creates=60, saves=20, transactions=5, c_files=3, modules=10,
    misses=400, packages=5, fio_small=2, fio_large=16, requests=100, known=0, rounds=3,
    unpacked=1, copied=1, stats=3, warms_up=False,
)  # fmt: skip
"""Small: the guest is emulated, and a path of ten components is ten requests to the host."""

SCALES = {scale.name: scale for scale in (FULL, QUICK, GUEST)}
