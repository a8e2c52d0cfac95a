"""The runner behind tests/run.sh: which tiers there are, running them side by side, the report."""
