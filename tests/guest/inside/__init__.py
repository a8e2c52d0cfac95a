"""Programs that run in the guest: standard library only, started by its plain ``python3``."""
