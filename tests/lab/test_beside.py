"""Labels beside points stay inside, off each other and off the markers."""

import itertools

import pytest

from kvlib.lab import style
from kvlib.lab.beside import label_points


@pytest.mark.parametrize("near", [1.0, 1.1, 2.0])
def test_no_label_covers_a_marker_or_another_label(near):
    figure = style.new_figure(960, 540)
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlim=(0.1, 1000), ylim=(0.1, 1000))
    spots = [(0.5, 1.0), (0.5 * near, 1.0), (0.5 * near**2, 1.0 * near), (900, 900), (0.11, 0.11)]
    axes.plot(*zip(*spots), "o-")
    texts = label_points(axes, [(f"point {i}", x, y, "black") for i, (x, y) in enumerate(spots)])
    boxes = [text.get_window_extent() for text in texts]
    frame = axes.get_window_extent()
    assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 for b in boxes)
    assert all(frame.y0 <= b.y0 and b.y1 <= frame.y1 for b in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for x, y in axes.transData.transform(spots):
        assert not any(b.contains(x, y) for b in boxes)
