"""The guest's own directories of ``--local``: where they lie, and the command that lists them."""
