"""``gitguard audit``: what an agent could use on the host without touching ``.git``."""
