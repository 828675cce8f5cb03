"""The tree as a list, and what both must answer."""

from collections.abc import Sequence

Rect = tuple[float, float, float, float]


class ListTree:
    """Entries in a list; every question is answered by looking at all of them."""

    def __init__(self) -> None:
        self.entries: list[tuple[Rect, int]] = []

    def search(self, query: Sequence[float]) -> list[int]:
        return sorted(number for rect, number in self.entries if meets(rect, query))

    def nearest(self, query: Sequence[float], k: int) -> list[int]:
        ranked = sorted((distance2(rect, query), number) for rect, number in self.entries)
        return [number for _, number in ranked[:k]]

    def bounds(self) -> Rect | None:
        if not self.entries:
            return None
        columns = list(zip(*(rect for rect, _ in self.entries), strict=True))
        return (min(columns[0]), min(columns[1]), max(columns[2]), max(columns[3]))


def meets(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] <= b[2] and a[2] >= b[0] and a[1] <= b[3] and a[3] >= b[1]


def distance2(a: Sequence[float], b: Sequence[float]) -> float:
    dx = max(a[0] - b[2], b[0] - a[2], 0.0)
    dy = max(a[1] - b[3], b[1] - a[3], 0.0)
    return dx * dx + dy * dy
