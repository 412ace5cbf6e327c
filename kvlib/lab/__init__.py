"""Panels and figures: the only part of kvlib, with teach, that knows widgets, and the only one that draws."""

from kvlib.lab.live import LiveLab

__all__ = ["LiveLab"]
