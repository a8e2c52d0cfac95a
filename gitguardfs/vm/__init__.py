"""The sandbox VM: a Debian guest with the guarded project and no way out but the proxy."""
