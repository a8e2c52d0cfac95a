"""The content of an image of a disk that counts as one that boots."""

BOOTS = bytes(510) + b"\x55\xaa" + bytes((1 << 20) - 512)
