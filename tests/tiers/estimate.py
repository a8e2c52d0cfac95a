"""The duration of tiers: ``python -m tests.tiers.estimate TIER...`` prints it, as "22 minutes".

Standard library only: tests/run.sh calls it before anything is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.guest import image as images
from tests.tiers.catalogue import TIERS, Tier

IMAGE_SECONDS = 600.0
"""About how much longer a run takes that also makes images for the virtual machines."""

FIRST_SECONDS = 240.0
"""About how much longer a tier takes that first fills its caches or loads packages."""
PATIENCE = 8
"""A tier may take so many times what is expected: on a machine four times slower, beside a run."""


def missing_images(chosen: Sequence[Tier]) -> list[str]:
    """Return the names of the images that the tiers boot and that have to be made first."""
    return sorted({t.image.name for t in chosen if t.image and not images.is_cached(t.image)})


def of(chosen: Sequence[Tier]) -> str:
    """Return about how long the tiers take together: "40 seconds", "11 minutes".

    It assumes two processors, as do the seconds in the catalogue: each tier with a virtual machine
    or beside one is on one of them, and without virtual machines a tier uses both.
    """
    if any(tier.image for tier in chosen):
        longest = max(tier.seconds for tier in chosen)
        seconds = max(longest, sum(tier.seconds for tier in chosen) / 2)
    else:
        seconds = sum(tier.alone or tier.seconds for tier in chosen)
    if missing_images(chosen):
        seconds += IMAGE_SECONDS
    if seconds < 110:
        return f"{max(10, round(seconds / 10) * 10)} seconds"
    return f"{round(seconds / 60)} minutes"


def limit(tier: Tier) -> float:
    """Return the seconds after which a tier that is started now is taken to hang."""
    images_to_make = IMAGE_SECONDS if missing_images([tier]) else 0.0
    return PATIENCE * (tier.seconds + FIRST_SECONDS + images_to_make)


if __name__ == "__main__":
    print(of([tier for tier in TIERS if tier.name in sys.argv[1:]]))
