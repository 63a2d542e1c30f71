"""Colours of plots, drawings and pages, for light and for dark.

Every text and every line is at least 4.5 times as bright, or as dark, as what is behind it (WCAG 2, level AA).
"""

from collections.abc import Mapping

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
SERIES = tuple(role for role in COLOURS if role.startswith("series-"))


def light(role: str) -> str:
    return COLOURS[role][0]


def variables(dark: bool) -> str:
    """The colours as custom properties of CSS."""
    return " ".join(f"--{role}: {pair[dark]};" for role, pair in COLOURS.items())
