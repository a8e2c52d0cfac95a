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


def missing_images(chosen: Sequence[Tier]) -> list[str]:
    """Return the names of the images that the tiers boot and that have to be made first."""
    return sorted({t.image.name for t in chosen if t.image and not images.is_cached(t.image)})


def of(chosen: Sequence[Tier]) -> str:
    """Return about how long the tiers take together: "40 seconds", "11 minutes".

    The longest lane decides. In a lane that runs alone, tiers are faster than beside others.
    """
    lanes: dict[str, list[Tier]] = {}
    for tier in chosen:
        lanes.setdefault(tier.lane, []).append(tier)
    if len(lanes) == 1:
        seconds = sum(tier.alone or tier.seconds for tier in chosen)
    else:
        seconds = max((sum(t.seconds for t in lane) for lane in lanes.values()), default=0.0)
    if missing_images(chosen):
        seconds += IMAGE_SECONDS
    if seconds < 110:
        return f"{max(10, round(seconds / 10) * 10)} seconds"
    return f"{round(seconds / 60)} minutes"


if __name__ == "__main__":
    print(of([tier for tier in TIERS if tier.name in sys.argv[1:]]))
