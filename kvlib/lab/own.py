"""Lay the learner's own attention over the live lab's right-hand plot, in real decode steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvlib.attention import reference_attention
from kvlib.deadline import TimeUp, time_limit
from kvlib.lab import style
from kvlib.lab.live import LiveLab
from kvlib.lab.style import format_ratio, format_time
from kvlib.steps import DecodeStep, DoesNotFit

CONTEXTS = (512, 2048, 8192)
EXAMPLES = ((2, 7), (1, 1), (1, 300), (2, 300))  # batch and tokens an attention is checked on
BUDGET_S = 0.4
CHECK_S = 5.0  # all examples together
STEP_S = 15.0  # one context, its random weights included: kvlib's takes about one second
COLOR = style.INK


def lay_over(lab: LiveLab, attend: Callable[..., Tensor], contexts: Sequence[int] = CONTEXTS) -> str:
    """Measure decode steps that attend with `attend(q, k, v, mask)`, draw them, and say what came.

    The setting is the lab's. At each context the lab's own step is measured just before, so that
    both meet the same moment. What is unfinished, wrong, too slow or fails is not drawn: the
    sentence that is returned says why.
    """
    setting = lab.setting
    label = f"yours, {setting.kind}"
    reason = _not_measured(attend, setting)
    if reason is not None:
        lab.remove_overlay(label)  # an older curve is not this function's
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
            with time_limit(STEP_S) as check:
                timed = step.run(*shape, budget_s=BUDGET_S, attend=_checked(attend, check))
            own[context] = timed.seconds
        except DoesNotFit:
            said.append(f"At {context:,} tokens the step does not fit into memory here.")
            continue
        except TimeUp:
            said.append(
                f"At {context:,} tokens a step with yours was not finished after {STEP_S:g} s. It is not "
                "measured, and no further context is tried."
            )
            break
        except Exception as error:
            said.append(f"At {context:,} tokens it raised {type(error).__name__}: {error}")
            break
        if theirs is not None:
            said.append(_compared(context, own[context], theirs.seconds))
    lab.overlay(label, own, COLOR)
    return "\n".join(said)


def _checked(attend: Callable[..., Tensor], check: Callable[[], None]) -> Callable[..., Tensor]:
    """Return the same attention, which looks at the clock before each of a step's calls."""

    def attend_in_time(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        check()
        return attend(q, k, v, mask)

    return attend_in_time


def _not_measured(attend, setting) -> str | None:
    """Return why an attention is not worth measuring, or None; it runs on small examples."""
    if not callable(attend):
        return "This is not a function."
    try:
        with time_limit(CHECK_S) as check:
            for batch, tokens in EXAMPLES:
                reason = _wrong_at(attend, setting, batch, tokens)
                check()
                if reason is not None:
                    return reason
    except TimeUp:
        return f"Your attention did not finish a few small examples in {CHECK_S:g} s."
    except Exception as error:
        return f"It raised {type(error).__name__}: {error}"
    return None


def _wrong_at(attend, setting, batch: int, tokens: int) -> str | None:
    """Return what is wrong with one decode step's attention over so many tokens, or None."""
    device, dtype = setting.device, getattr(torch, setting.dtype)
    random = torch.Generator().manual_seed(0)
    heads, kv_heads = setting.preset.num_heads, setting.kv_heads()
    dim = setting.preset.head_dim
    q, k, v = (
        torch.randn(batch, n, t, dim, generator=random).to(device, dtype)
        for n, t in ((heads, 1), (kv_heads, tokens), (kv_heads, tokens))
    )
    given = attend(q.clone(), k.clone(), v.clone(), None)  # it may write into what it is given
    if given is ...:
        return "Your attention is still to be written."
    if not isinstance(given, Tensor) or given.shape != q.shape:
        return "Your attention does not return a tensor (B, H, 1, D) yet."
    wanted = reference_attention(q.float(), k.float(), v.float())
    bound = 1e-4 if dtype == torch.float32 else 5e-2
    if not torch.allclose(given.float(), wanted, rtol=bound, atol=bound):
        many = f"{batch} sequence{'s' * (batch > 1)} of {tokens} token{'s' * (tokens > 1)}"
        return (
            f"Your attention gives other numbers than the formula, here for {many}, so its time "
            "says nothing yet."
        )
    return None


def _compared(context: int, own: float, theirs: float) -> str:
    ratio = own / theirs
    verdict = "the same within a tenth" if 0.9 < ratio < 1.1 else f"{format_ratio(ratio)} times as long"
    return (
        f"At {context:,} tokens a step takes {format_time(own)} with yours and "
        f"{format_time(theirs)} with kvlib's: {verdict}."
    )
