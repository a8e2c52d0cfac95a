"""``gitguard watch``: tells a guest at once of each change in a shared directory."""
