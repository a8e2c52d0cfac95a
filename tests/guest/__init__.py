"""A real guest in QEMU: the way from a host's share to a guarded directory, end to end."""
