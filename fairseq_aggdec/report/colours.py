"""Colours of plots, drawings and pages, for light and for dark, and the contrast between two of them.

Every text and every line is at least 4.5 times as bright, or as dark, as what is behind it (WCAG 2, level AA).
"""

from __future__ import annotations

from collections.abc import Mapping

CONTRAST = 4.5
# Role -> (in light, in dark).
COLOURS: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"),
    "panel": ("#f3f5f7", "#1f242a"),
    "ink": ("#1f2328", "#e6e9ec"),
    "muted": ("#565e67", "#a9b2bb"),
    "line": ("#c9d0d6", "#434b54"),  # grids and borders, which say nothing by themselves
    "series-1": ("#0b5cad", "#73b4ff"),
    "series-2": ("#a8470a", "#ffae66"),
    "series-3": ("#1a7339", "#72d391"),
    "series-4": ("#9b2473", "#f590d0"),
    "series-5": ("#5d5a88", "#b9b4f0"),
    "series-6": ("#006a73", "#62d4de"),
    "good": ("#166934", "#72d391"),
    "bad": ("#b3261e", "#ff9b92"),
    "other": ("#1f5fbf", "#8bbcff"),
}
BEHIND = ("paper", "panel")  # roles on which others are written
SERIES = tuple(role for role in COLOURS if role.startswith("series-"))


def light(role: str) -> str:
    return COLOURS[role][0]


def variables(dark: bool) -> str:
    """The colours as custom properties of CSS, ``--ink: #1f2328; ...``."""
    return " ".join(f"--{role}: {pair[dark]};" for role, pair in COLOURS.items())


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours ``#rrggbb``, from 1 (the same) to 21 (black on white)."""
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of sRGB."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
