"""One sentence's lattice for people: as a record for JSON, as a Graphviz graph, as an SVG picture.

made = record(lattice.tokens[0], lattice.log_probabilities[0], edges[0], path.choices[0], dictionary.__getitem__)
Path("lattice.svg").write_text(svg(made), encoding="utf-8")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.report.colours import COLOURS, light

Record = dict[str, Any]

_WIDTH, _HEIGHT, _GAP, _MARGIN = (
    96,
    30,
    54,
    24,
)  # of a candidate's box, between columns, around the picture
_CHARACTERS = 12  # that fit into a box
_BEST, _OTHER, _TEXT = light("bad"), light("line"), light("ink")


def record(
    tokens: Tensor,
    log_probabilities: Tensor,
    edges: Tensor,
    choices: Tensor,
    symbol: Callable[[int], str] = str,
    incoming: int | None = 3,
) -> Record:
    """Candidates, edges and the best path of one sentence, ready for JSON.

    Args:
        tokens: (T, N) integers.
        log_probabilities: (T, N) nats; -inf where there is no candidate.
        edges: (T - 1, N, N) nats, as :meth:`Lattice.scores` gives them; -inf where there is no edge.
        choices: (T,) integers, candidates of the best path.
        symbol: what a token id looks like.
        incoming: how many of the best edges into each candidate are listed besides those of the best path; None lists
            all.

    Returns:
        ``positions``, for each its ``candidates`` with ``index``, ``token``, ``symbol``, ``log_probability`` and
        ``best``; ``edges`` with ``position`` (of the first candidate), ``from``, ``to``, ``score`` and ``best``;
        ``path``, the symbols of the best path.
    """
    path = choices.tolist()
    positions = []
    for t, (ids, scores) in enumerate(
        zip(tokens.tolist(), log_probabilities.tolist(), strict=True)
    ):
        positions.append(
            {
                "position": t,
                "candidates": [
                    {
                        "index": index,
                        "token": token,
                        "symbol": symbol(token),
                        "log_probability": score,
                        "best": index == path[t],
                    }
                    for index, (token, score) in enumerate(zip(ids, scores, strict=True))
                    if score > -math.inf
                ],
            }
        )
    best = [symbol(row[index]) for row, index in zip(tokens.tolist(), path, strict=True)]
    return {"positions": positions, "edges": list(_edges(edges, path, incoming)), "path": best}


def _edges(edges: Tensor, path: list[int], incoming: int | None) -> Iterator[Record]:
    kept = edges.size(1) if incoming is None else min(incoming, edges.size(1))
    order = torch.sort(edges, stable=True, dim=1, descending=True).indices  # (T - 1, N, N)
    shown = torch.zeros_like(edges, dtype=torch.bool).scatter_(1, order[:, :kept], True)
    steps = torch.arange(edges.size(0), device=edges.device)
    here = torch.tensor(path, device=edges.device)
    shown[steps, here[:-1], here[1:]] = True
    shown &= edges > -torch.inf
    for t, i, j in shown.nonzero().tolist():
        yield {
            "position": t,
            "from": i,
            "to": j,
            "score": float(edges[t, i, j]),
            "best": path[t : t + 2] == [i, j],
        }


def dot(made: Mapping[str, Any]) -> str:
    """A record as a Graphviz graph, positions from left to right, the best path in bold."""
    lines = ["digraph lattice {", "  rankdir=LR;", "  node [shape=box, fontsize=10];"]
    for position in made["positions"]:
        lines.append("  { rank=same;")
        for one in position["candidates"]:
            label = f"{one['symbol']}\n{one['log_probability']:.2f}"
            style = f", color={_quoted(_BEST)}, penwidth=2" if one["best"] else ""
            name = f"c{position['position']}_{one['index']}"
            lines.append(f"    {name} [label={_quoted(label)}{style}];")
        lines.append("  }")
    for edge in made["edges"]:
        t = edge["position"]
        style = (
            f"color={_quoted(_BEST)}, penwidth=2" if edge["best"] else f"color={_quoted(_OTHER)}"
        )
        score = format(edge["score"], ".2f")
        label = f"label={_quoted(score)}, fontsize=8"
        lines.append(f"  c{t}_{edge['from']} -> c{t + 1}_{edge['to']} [{label}, {style}];")
    return "\n".join([*lines, "}"]) + "\n"


def svg(made: Mapping[str, Any], name: str = "lattice") -> str:
    """A record as a picture in one file that needs no other; scores are shown under the pointer.

    Args:
        name: of the drawing's ids: letters, digits and hyphens, no other drawing's in the same page.
    """
    places = _places(made)
    right = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
    bottom = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    path, positions = " ".join(made["path"]), len(made["positions"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" width="{right}" height="{bottom}" '
        f'viewBox="0 0 {right} {bottom}" role="img" aria-labelledby="{name}-title {name}-about" '
        'font-family="sans-serif" font-size="11">',
        f'<title id="{name}-title">Lattice of {positions} positions, its best path in bold</title>',
        f'<desc id="{name}-about">Best path: {escape(path)}</desc>',
        f"<style>{_rules(name)}</style>",
        f'<rect class="paper" width="{right}" height="{bottom}" fill="{light("paper")}"/>',
    ]
    # The best path is drawn last, over the others.
    parts += [
        _svg_edge(edge, places) for edge in sorted(made["edges"], key=lambda edge: edge["best"])
    ]
    parts += [
        _svg_candidate(one, *places[position["position"], one["index"]])
        for position in made["positions"]
        for one in position["candidates"]
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(made: Mapping[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    """Left upper corner of every candidate, by position and index."""
    return {
        (position["position"], one["index"]): (
            _MARGIN + position["position"] * (_WIDTH + _GAP),
            _MARGIN + row * (_HEIGHT + 8),
        )
        for position in made["positions"]
        for row, one in enumerate(position["candidates"])
    }


def _rules(name: str) -> str:
    """The colours of a dark theme; those of a light one stand in the elements."""
    night = (
        ("rect", "fill", "paper"),
        ("text", "fill", "ink"),
        (".best", "stroke", "bad"),
        (".other", "stroke", "line"),
    )
    rules = (f"#{name} {what}{{{how}:{COLOURS[role][1]}}}" for what, how, role in night)
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"


def _svg_edge(edge: Mapping[str, Any], places: Mapping[tuple[int, int], tuple[int, int]]) -> str:
    t = edge["position"]
    (x1, y1), (x2, y2) = places[t, edge["from"]], places[t + 1, edge["to"]]
    kind, color, width = ("best", _BEST, 2.5) if edge["best"] else ("other", _OTHER, 1)
    return (
        f'<line class="{kind}" x1="{x1 + _WIDTH}" y1="{y1 + _HEIGHT // 2}" x2="{x2}" y2="{y2 + _HEIGHT // 2}" '
        f'stroke="{color}" stroke-width="{width}"><title>{edge["score"]:.3f}</title></line>'
    )


def _svg_candidate(one: Mapping[str, Any], x: int, y: int) -> str:
    kind, color, width = ("best", _BEST, 2) if one["best"] else ("other", _OTHER, 1)
    symbol = one["symbol"]
    text = symbol if len(symbol) <= _CHARACTERS else symbol[: _CHARACTERS - 1] + "…"
    return (
        f"<g><title>{escape(symbol)}: {one['log_probability']:.3f}</title>"
        f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="{light("paper")}" '
        f'stroke="{color}" stroke-width="{width}"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 4}" text-anchor="middle" '
        f'fill="{_TEXT}">{escape(text)}</text></g>'
    )


def _quoted(text: str) -> str:
    """A string of the Graphviz language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
