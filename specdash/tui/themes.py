"""Themes: dark, light and high contrast. The sd-* variables are ours; see `paint.ROLES`."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="specdash-dark",
    primary="#7aa2c8",
    accent="#8fc7e8",
    foreground="#cfd6dd",
    background="#101418",
    surface="#161b21",
    panel="#1d242c",
    success="#86c68f",
    warning="#e2b96b",
    error="#ee7d77",
    dark=True,
    variables={
        "sd-dim": "#7c8894",
        "sd-rule": "#3a4550",
        "sd-bar": "#6fa8dc",
        "sd-other": "#c59be0",
        "sd-plot": "#7fd1c7",
        "footer-key-foreground": "#8fc7e8",
    },
)
LIGHT = Theme(
    name="specdash-light",
    primary="#255d8d",
    accent="#0b5c99",
    foreground="#20262c",
    background="#f7f6f2",
    surface="#efede7",
    panel="#e4e1d9",
    success="#1e6b34",
    warning="#8a5200",
    error="#b3231d",
    dark=False,
    variables={
        "sd-dim": "#66707a",
        "sd-rule": "#b9b6ad",
        "sd-bar": "#2a6fb0",
        "sd-other": "#7b3fa3",
        "sd-plot": "#0d746b",
    },
)
CONTRAST = Theme(
    name="specdash-contrast",
    primary="#ffffff",
    accent="#00ffff",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#262626",
    success="#5fff5f",
    warning="#ffff00",
    error="#ff8787",
    dark=True,
    variables={
        "sd-dim": "#d0d0d0",
        "sd-rule": "#a8a8a8",
        "sd-bar": "#5fd7ff",
        "sd-other": "#ffafff",
        "sd-plot": "#ffffff",
    },
)
ALL = (DARK, LIGHT, CONTRAST)
