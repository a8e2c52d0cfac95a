"""All workloads, in the order of the report."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence

from benchmarks import work_programs, work_reading, work_writing
from benchmarks.place import Workload


def everything() -> list[Workload]:
    """Return every workload."""
    return [
        work_reading.Find(),
        work_reading.LsLR(),
        work_reading.Walk(),
        work_reading.WarmFind(),
        work_reading.WarmLs(),
        work_reading.WarmStat(),
        work_reading.Missing(),
        work_reading.Ripgrep(cold=True),
        work_reading.Ripgrep(cold=False),
        *(work_reading.ReadAll(processes) for processes in (1, 2, 4)),
        work_reading.TarOut(),
        work_reading.Collect(),
        work_programs.Build(),
        work_writing.Untar(),
        work_writing.Copy(),
        work_writing.Remove(),
        *(work_writing.Create(processes) for processes in (1, 2, 4)),
        work_writing.Unpack(),
        work_writing.Append(),
        work_writing.Save(),
        work_writing.Sqlite(),
        *(
            work_programs.Fio(mode, block)
            for block in ("4k", "1M")
            for mode in ("read", "randread", "write", "randwrite")
        ),
    ]


def matches(name: str, only: Sequence[str]) -> bool:
    """Return whether a name contains one of the words; without words, True."""
    return not only or any(word.lower() in name.lower() for word in only)


def lacking(workload: Workload) -> list[str]:
    """Return the programs that the workload needs and that are missing."""
    return [name for name in workload.needs if not _have(name)]


def _have(name: str) -> bool:
    if name == "pytest":
        return importlib.util.find_spec("pytest") is not None
    return shutil.which(name) is not None
