"""The agent's own repositories of ``--git=private``: where they lie, how they are made and kept."""
