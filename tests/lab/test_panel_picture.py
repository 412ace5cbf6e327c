"""Every panel's picture has pixels, also before anything was drawn."""

import numpy as np
import pytest

from kvlib.lab.appending_picture import AppendingPicture
from kvlib.lab.appending_steps import Appending
from kvlib.lab.crossover_picture import CrossoverPicture
from kvlib.lab.filling_picture import FillingPicture
from kvlib.lab.filling_steps import Filling
from kvlib.lab.memory_picture import MemoryPicture
from kvlib.lab.panel_picture import PanelPicture, PanePicture
from kvlib.lab.picture import LabPicture
from kvlib.lab.sharing_picture import SharingPicture

PICTURES = {
    "lab": LabPicture, "memory": MemoryPicture, "crossover": CrossoverPicture, "sharing": SharingPicture,
    "filling": lambda: FillingPicture(Filling(["a", "b"], *np.ones((3, 2, 4)))),
    "appending": lambda: AppendingPicture(Appending(12)),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_it_has_pixels_before_its_first_update(name):
    picture = PICTURES[name]()
    assert isinstance(picture, PanelPicture)
    image = picture.image()
    assert image.size == picture.figure.canvas.get_width_height() and image.mode == "RGB"
    assert picture.png().startswith(b"\x89PNG")
    low, high = np.asarray(image).min(), np.asarray(image).max()
    assert high > 200 and (low < high or name == "sharing")  # a light card, with axes where it has some


def test_only_what_moves_is_drawn_again(monkeypatch):
    picture = LabPicture()
    assert isinstance(picture, PanePicture) and len(picture.panes) == 2
    whole = []
    draw = picture.figure.canvas.draw
    monkeypatch.setattr(picture.figure.canvas, "draw", lambda: (whole.append(1), draw()))
    picture.draw(moved=False)  # the first time, everything
    picture.draw(moved=False)
    assert whole == [1]
    picture.draw(moved=True)
    assert whole == [1, 1]
