"""Panels and figures: the only part of kvlib that draws; only it and teach know widgets."""

from kvlib.lab.live import LiveLab
from kvlib.lab.waiting import progress_bar

__all__ = ["LiveLab", "progress_bar"]
