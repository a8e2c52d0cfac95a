"""``python -m gitguardfs``."""

from gitguardfs.cli import main

main()
