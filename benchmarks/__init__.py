"""Times everyday work on a plain directory, through bindfs and through gitguardfs.

``./benchmarks/run.sh`` installs what it needs and runs ``python -m benchmarks``. The modules
that the guest runs too (scale, tree, fixtures, place, work_*, catalogue, views, rounds, depth,
inside) import nothing but the standard library.
"""
