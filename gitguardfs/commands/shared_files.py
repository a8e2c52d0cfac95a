"""Makes the files of an installation below /usr/share: manual pages and completion.

install.sh and the packages run ``python3 -m gitguardfs.commands.shared_files DIRECTORY``.
"""

from __future__ import annotations

import os
import sys

from gitguardfs.commands import completion, manual


def write(directory: str) -> None:
    """Write manual pages and completion below ``directory``, laid out as in /usr/share. OSError."""
    manual.write(os.path.join(directory, "man"), manual.pages())
    completion.write(directory)


def main() -> None:
    """Write the files below the directory that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m gitguardfs.commands.shared_files DIRECTORY")
    write(sys.argv[1])


if __name__ == "__main__":
    main()
