"""Lay the learner's own attention over the live lab's right-hand plot, in real decode steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvlib.attention import reference_attention
from kvlib.lab import style
from kvlib.lab.live import LiveLab
from kvlib.lab.style import format_ratio, format_time
from kvlib.steps import DecodeStep, DoesNotFit

CONTEXTS = (512, 2048, 8192)
BUDGET_S = 0.4
COLOR = style.INK


def lay_over(
    lab: LiveLab, attend: Callable[..., Tensor], contexts: Sequence[int] = CONTEXTS
) -> str:
    """Measure decode steps that attend with `attend(q, k, v, mask)`, draw them, and say what came.

    The setting is the lab's. At each context the lab's own step is measured just before, so that
    both meet the same moment. What is unfinished, wrong or fails is not drawn: the sentence that
    is returned says why.
    """
    setting = lab.setting
    try:
        reason = _not_measured(attend, setting)
    except Exception as error:
        reason = f"It raised {type(error).__name__}: {error}"
    if reason is not None:
        lab.remove_overlay(f"yours, {setting.kind}")  # an older curve is not this function's
        lab.sweep(contexts, [setting.kind])
        return f"{reason} The lab shows kvlib's attention alone."
    step = DecodeStep(setting.preset, device=setting.device, dtype=getattr(torch, setting.dtype))
    own: dict[int, float] = {}
    said = []
    for context in contexts:
        lab.sweep([context], [setting.kind])
        theirs = lab.measurer.points.get(setting.point(context=context))
        shape = (setting.kv_heads(), context, setting.batch)
        try:
            own[context] = step.run(*shape, budget_s=BUDGET_S, attend=attend).seconds
        except DoesNotFit:
            said.append(f"At {context:,} tokens it does not fit here.")
            continue
        except Exception as error:
            said.append(f"At {context:,} tokens it raised {type(error).__name__}: {error}")
            break
        if theirs is not None:
            said.append(_compared(context, own[context], theirs.seconds))
    lab.overlay(f"yours, {setting.kind}", own, COLOR)
    return "\n".join(said)


def _not_measured(attend, setting) -> str | None:
    """Return why an attention is not worth measuring, or None; it runs once, on a small example."""
    if not callable(attend):
        return "This is no function."
    device, dtype = setting.device, getattr(torch, setting.dtype)
    random = torch.Generator().manual_seed(0)
    heads, kv_heads = setting.preset.num_heads, setting.kv_heads()
    dim = setting.preset.head_dim
    q, k, v = (
        torch.randn(2, n, t, dim, generator=random).to(device, dtype)
        for n, t in ((heads, 1), (kv_heads, 7), (kv_heads, 7))
    )
    given = attend(q.clone(), k.clone(), v.clone(), None)  # it may write into what it is given
    if given is ...:
        return "Your attention is still to be written."
    if not isinstance(given, Tensor) or given.shape != q.shape:
        return "Your attention does not return a tensor (B, H, 1, D) yet."
    wanted = reference_attention(q.float(), k.float(), v.float())
    bound = 1e-4 if dtype == torch.float32 else 5e-2
    if not torch.allclose(given.float(), wanted, rtol=bound, atol=bound):
        return "Your attention gives other numbers than the formula, so its time means nothing yet."
    return None


def _compared(context: int, own: float, theirs: float) -> str:
    ratio = own / theirs
    verdict = (
        "the same within a tenth" if 0.9 < ratio < 1.1 else f"{format_ratio(ratio)} times as long"
    )
    return (
        f"At {context:,} tokens a step takes {format_time(own)} with yours and "
        f"{format_time(theirs)} with kvlib's: {verdict}."
    )
