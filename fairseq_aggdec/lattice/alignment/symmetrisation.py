"""Tells how the links of both directions are combined, as Koehn et al. 2003 and ``atools`` do.

intersect             links that both have
union                 links that either has
grow-diag             the intersection; then links of the union that touch one and bring in a token without a link
grow-diag-final-and   and then links of the forward, then of the reverse direction between two tokens without one
"""

from __future__ import annotations

from collections.abc import Callable

Link = tuple[int, int]
NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


def _grow(forward: set[Link], reverse: set[Link]) -> set[Link]:
    links = forward & reverse
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    waiting = sorted((forward | reverse) - links)
    while waiting:
        left = []
        for i, j in waiting:
            new = i not in sources or j not in targets
            if new and any((i + di, j + dj) in links for di, dj in NEIGHBOURS):
                links.add((i, j))
                sources.add(i)
                targets.add(j)
            else:
                left.append((i, j))
        if len(left) == len(waiting):
            break
        waiting = left
    return links


def _grow_final(forward: set[Link], reverse: set[Link]) -> set[Link]:
    links = _grow(forward, reverse)
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    for i, j in [*sorted(forward), *sorted(reverse)]:
        if i not in sources and j not in targets:
            links.add((i, j))
            sources.add(i)
            targets.add(j)
    return links


COMBINE: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "union": set.union,
    "grow-diag-final-and": _grow_final,
    "grow-diag": _grow,
    "intersect": set.intersection,
    "forward": lambda forward, reverse: forward,
    "reverse": lambda forward, reverse: reverse,
}
