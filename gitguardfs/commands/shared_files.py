"""What is made for /usr/share when gitguardfs is installed: manual pages and completion.

Run by install.sh and by the packages: ``python3 -m gitguardfs.commands.shared_files DIRECTORY``.
"""

from __future__ import annotations

import os
import sys

from gitguardfs.commands import completion, manual


def write(directory: str) -> None:
    """Write all of it below ``directory``, in the place of /usr/share. OSError."""
    manual.write(os.path.join(directory, "man"), manual.pages())
    completion.write(directory)


def main() -> None:
    """Write it below the directory that is given."""
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m gitguardfs.commands.shared_files DIRECTORY")
    write(sys.argv[1])


if __name__ == "__main__":
    main()
