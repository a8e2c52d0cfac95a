"""``python -m gitguardfs``."""

from gitguardfs.commands.gitguardfs import main

main()
