"""A place in a palette for each group that depends on its name, so that colours stay when groups come and go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def colour_places(names: Iterable[str], colours: int) -> dict[str, int]:
    """A place for each name: its usual one below `colours`, where that is taken the next free one.

    With more names than colours the places go on above `colours`; who draws them adds a dash.
    """
    places: dict[str, int] = {}
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    for count, name in enumerate(ordered):
        usual = int.from_bytes(hashlib.sha256(name.encode()).digest()[-4:]) % colours
        base = count // colours * colours
        taken = set(places.values())
        places[name] = next(place for step in range(colours) if (place := base + (usual + step) % colours) not in taken)
    return places
