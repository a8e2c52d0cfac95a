"""``gitguard fetch``: takes the commits that an agent's repository wrote into a bundle."""
