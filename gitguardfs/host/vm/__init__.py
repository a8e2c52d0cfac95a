"""The sandbox VM: a Debian guest with the guarded project, whose only network is the proxy."""
