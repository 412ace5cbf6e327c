"""What each step of a softmax over tiles does, in one or two sentences."""

from __future__ import annotations

import numpy as np

from kvlib.lab.online_softmax_steps import ORDERS, PARTS, Frame, OnlineSoftmax


def number(x: float) -> str:
    """Write a number with three digits, minus infinity as such."""
    if not np.isfinite(x):
        return "−∞" if x < 0 else "∞"
    if x and (abs(x) < 1e-3 or abs(x) >= 1e5):
        mantissa, exponent = f"{x:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return f"{x:.3g}".replace("-", "−") if abs(x) < 1000 else f"{x:,.0f}".replace("-", "−")


def taken_away(x: float) -> str:
    """Write a number that stands behind a minus sign: a negative one in brackets."""
    return f"({number(x)})" if x < 0 else number(x)


def keys(it: OnlineSoftmax, frame: Frame) -> str:
    """Name the keys of a step by their place, in the order in which they come."""
    order = "" if it.order == ORDERS[0] else f" in {it.order} order"
    if frame.end - frame.start == 1:
        return f"key {frame.start}{order}"
    return f"keys {frame.start} to {frame.end - 1}{order}"


def agreement(it: OnlineSoftmax, frame: Frame) -> str:
    """Say how far the answer of a step is from the exact one."""
    error = it.error(frame)
    scale = max(1.0, float(np.abs(it.values).max()))
    if error <= 1e-9 * scale * max(1.0, float(np.abs(it.scores[np.isfinite(it.scores)]).max(initial=0))):
        return "equals the exact answer"
    return f"is {number(error)} from the exact answer"


def sentence(it: OnlineSoftmax, frame: Frame) -> str:
    """Say what a step does."""
    return _in_parts(it, frame) if it.mode == PARTS else _in_tiles(it, frame)


def _in_tiles(it: OnlineSoftmax, frame: Frame) -> str:
    count = len(it.starts)
    if frame.step == 0:
        first = min(it.tile, it.num_keys)
        return (
            f"Step 0 of {count}: nothing is seen yet. Maximum −∞, sum 0, output 0. "
            f"Next {'comes' if first == 1 else 'come'} {_many(first, 'key')}."
        )
    opening = f"Step {frame.step} of {count}, {keys(it, frame)}: "
    high = float(it.scores[frame.start : frame.end].max())
    if not np.isfinite(high):
        what = "all masked, so nothing changes."
    elif not np.isfinite(frame.old_high):
        what = f"the first scores; the largest, {number(high)}, is the maximum."
    elif frame.high > frame.old_high:
        what = (
            f"a score of {number(high)} is above the maximum so far, {number(frame.old_high)}. Sum and "
            f"output are multiplied by exp({number(frame.old_high)} − {taken_away(high)}) = "
            f"{number(frame.rescale)}."
        )
    else:
        what = f"no score is above the maximum, {number(frame.high)}, so nothing is rescaled."
    end = " That was the last tile: the answer" if frame.step == count else " The answer so far"
    return f"{opening}{what} The sum is {number(frame.total)}.{end} {agreement(it, frame)}."


def _in_parts(it: OnlineSoftmax, frame: Frame) -> str:
    count = len(it.starts)
    if frame.step == 0:
        return f"Step 0: {_many(count, 'part')} of up to {_many(it.tile, 'key')}, no part attended to yet."
    if not frame.merged:
        log_sum = frame.log_sums[-1]
        if not np.isfinite(log_sum):
            sums = "all its keys are masked: output 0, log-sum −∞."
        else:
            sums = (
                f"maximum {number(frame.high)}, sum {number(frame.total)}, so its log-sum is "
                f"{number(frame.high)} + ln {number(frame.total)} = {number(log_sum)}."
            )
        return (
            f"Step {frame.step}: part {frame.step} of {count}, {keys(it, frame)}, alone: {sums} It needs "
            f"nothing from another part. Its own answer {agreement(it, frame)}."
        )
    shares = [f"{share:.0%}" for share in frame.shares[:8]]
    more = "" if count <= 8 else f" and {count - 8} more"
    return (
        f"Step {frame.step}: the merge. A part counts exp(its log-sum − {taken_away(it.log_sum)}), which is "
        f"{', '.join(shares)}{more}. The merged answer {agreement(it, frame)}."
    )


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
