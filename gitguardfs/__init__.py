"""gitguardfs: a guarded, id-mapped FUSE view of a shared project directory."""

__version__ = "0.1.0"
