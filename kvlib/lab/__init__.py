"""Panels and figures: the only part of kvlib that draws; only it and teach know widgets."""

from kvlib.lab.live import LiveLab

__all__ = ["LiveLab"]
