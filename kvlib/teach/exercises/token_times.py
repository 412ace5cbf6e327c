"""The exercise of lesson 06 on latencies: TTFT, TPOT and ITL from the times tokens arrived."""

import math

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.watching import number, show

# In the second case no two mistakes agree. Over the cases the slowest gap is in the first, a middle and the
# last request, and is its first, a middle and its last gap.
CASES = (
    ([[0.5, 0.6, 0.7, 0.8]], "one steady request"),
    (
        [[0.53, 0.63, 0.93, 1.0], [0.2, 0.45, 1.25, 1.4], [1.1, 1.3, 1.65, 1.87, 1.99],
         [0.6, 0.74, 0.97, 1.05]],
        "four requests, one with a long pause",
    ),
    ([[2.0, 2.05, 2.12, 2.19, 2.5]], "a long prompt and uneven tokens"),
    ([[0.41, 0.91, 1.73, 1.95], [0.62, 0.75, 0.81]], "two requests, the first of them slow"),
    ([[0.25, 0.35], [1.0, 1.5, 1.6, 1.7, 1.8, 1.9]], "a short and a long answer"),
    ([[0.5], [0.25, 0.75, 0.85]], "a request that stopped after one token"),
    ([[0.2, 0.3], [0.3, 0.5, 0.7], [2.0, 2.5, 4.2]], "three requests, one of them slow"),
)  # fmt: skip


def report(requests) -> tuple[float, float, float]:
    """Return mean TTFT, mean TPOT over the requests that have one, and the longest ITL."""
    ttft = _mean([times[0] for times in requests])
    return ttft, _mean(_tpots(requests)), max(gap for times in requests for gap in _gaps(times))


def _tpots(requests) -> list[float]:
    return [(times[-1] - times[0]) / (len(times) - 1) for times in requests if len(times) > 1]


def _gaps(times) -> list[float]:
    return [b - a for a, b in zip(times, times[1:])]


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


def _mean(values) -> float:
    return sum(values) / len(values)


def _check(candidate) -> Verdict:
    for requests, about in CASES:
        given = candidate([list(times) for times in requests])
        wanted = report(requests)
        told = f"for {about}, {requests}"
        if hasattr(given, "tolist"):  # an array of three numbers will do
            given = given.tolist()
        if not isinstance(given, tuple | list) or len(given) != 3:
            return not_yet(f"return three numbers, (ttft, tpot, slowest); it returns {show(given)}")
        numbers = [number(part) for part in given]
        for name, x, part in zip(NAMES, numbers, given):
            if x is None:
                return not_yet(f"`{name}` must be a number of seconds, not {show(part)}; {told}")
        for name, x, truth in zip(NAMES, numbers, wanted):
            if _near(x, truth):
                continue
            said = _mistake(name, x, truth, requests)
            if all(any(_near(x, y) for y in wanted) for x in numbers) and len({*map(str, wanted)}) == 3:
                said = "these are the right numbers in another order: return (ttft, tpot, slowest)"
            return not_yet(f"{said}; {told}, `{name}` is {x:.4g} and should be {truth:.4g}")
    return correct("TTFT holds the prefill, TPOT the n - 1 steps after it, and no slow gap is averaged away")


NAMES = ("ttft", "tpot", "slowest")


def _mistake(name: str, given: float, truth: float, requests) -> str:
    if _near(given, 1e3 * truth):
        return "that is milliseconds; return seconds, as the arrival times are"
    gaps = [gap for times in requests for gap in _gaps(times)]
    longer = [times for times in requests if len(times) > 1]
    firsts, each = [times[0] for times in requests], _tpots(requests)
    mistakes = {
        "ttft": [
            (sum(firsts), "that adds the requests up; take the mean"),
            (_median(firsts), f"that is the median over requests; {_MEAN}"),
            (_midrange(firsts), f"that is halfway from the smallest to the largest; {_MEAN}"),
            (max(firsts), f"that is the largest TTFT; {_MEAN}"),
            (min(firsts), f"that is the smallest TTFT; {_MEAN}"),
            (firsts[0], f"that is the TTFT of the first request alone; {_MEAN}"),
            (firsts[-1], f"that is the TTFT of the last request alone; {_MEAN}"),
            (sum(firsts) / len(longer), "every request has a TTFT: divide by the number of all requests"),
            (_mean([t[-1] for t in requests]), "that is the whole time, up to the last token"),
            (_mean([t[0] / len(t) for t in requests]), "TTFT belongs to one token: do not divide it by n"),
        ],
        "tpot": [
            (sum(each), "that adds the requests up; take the mean"),
            (_median(each), f"that is the median over requests; {_MEAN}"),
            (_midrange(each), f"that is halfway from the smallest to the largest; {_MEAN}"),
            (
                sum(each) / len(requests),
                "a request of one token has no TPOT: leave it out of the mean, do not count it as 0",
            ),
            (
                _mean([(t[-1] - t[0]) / len(t) for t in requests]),
                "n tokens have n - 1 steps between the first and the last: divide by n - 1",
            ),
            (
                _mean([(t[-1] - t[0]) / len(t) for t in longer]),
                "n tokens have n - 1 steps between the first and the last: divide by n - 1",
            ),
            (
                _mean([t[-1] / len(t) for t in requests]),
                "end to end over n counts the prefill as if it were a token like the others",
            ),
            (
                _mean([t[-1] / (len(t) - 1) for t in longer]),
                "subtract TTFT from the end-to-end time first: that part is the prefill's",
            ),
            (
                _mean(gaps),
                "that is the mean of all ITLs together, in which a long answer counts more; TPOT is "
                "one number for each request, and then the mean over requests",
            ),
            (
                _mean([_median(_gaps(t)) for t in longer]),
                "that is the median gap of each request; TPOT is the mean of a request's gaps",
            ),
            (_median(gaps), "that is the median of all ITLs; TPOT is a mean for each request"),
            (each[0], f"that is the TPOT of the first request alone; {_MEAN}"),
            (each[-1], f"that is the TPOT of the last request alone; {_MEAN}"),
        ],
        "slowest": [
            (max(t[-1] - t[0] for t in requests), "that is a whole decode time; an ITL is one gap of it"),
            (max(firsts), "that is a TTFT; an ITL lies between two tokens"),
            (
                max(max([t[0], *_gaps(t)]) for t in requests),
                "that is a TTFT; an ITL lies between two tokens",
            ),
            (max(t[-1] for t in requests), "that is an end-to-end time; an ITL lies between two tokens"),
            (_mean(gaps), f"that is the mean ITL; {_PAUSE}"),
            (min(gaps), f"that is the shortest; {_PAUSE}"),
            (gaps[-1], f"that is the last gap of the log; {_PAUSE}"),
            (
                max(_gaps(requests[-1]), default=0),
                "that is the slowest of the last request alone: does each request overwrite the one before?",
            ),
            (
                max(_gaps(requests[0]), default=0),
                "that is the slowest of the first request alone; look at all requests",
            ),
            (max(_gaps(t)[-1] for t in longer), f"that looks at the last gap of each request only; {_PAUSE}"),
            (max(_gaps(t)[0] for t in longer), f"that looks at the first gap of each request only; {_PAUSE}"),
            (sorted(gaps)[-2:][0], "that is the second longest: the longest counts"),
            (_mean([max(_gaps(t)) for t in longer]), "that is a mean over requests: take the longest"),
        ],
    }
    for wrong, meaning in mistakes[name]:
        if _near(given, wrong):
            return meaning
    if given and any(given == round(truth, digits) for digits in range(1, 5)):
        return "that is right up to rounding: do not round"
    return {
        "ttft": "TTFT is a request's first arrival, and the mean over all requests is asked for",
        "tpot": "for each request, divide the time from its first to its last token by its n - 1 gaps",
        "slowest": "the longest inter-token latency is the largest gap between two arrivals of one request",
    }[name]


def _median(values) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _midrange(values) -> float:
    return (min(values) + max(values)) / 2


_MEAN = "the mean is asked for: their sum over their number"
_PAUSE = "a reader notices the longest pause of all"


def _source(
    ttft="sum(times[0] for times in requests) / len(requests)",
    each="[(t[-1] - t[0]) / (len(t) - 1) for t in requests if len(t) > 1]",
    slowest="max(b - a for t in requests for a, b in zip(t, t[1:]))",
    tpot="sum(each) / len(each)",
) -> str:
    return "\n".join(
        [
            "def report(requests):  # each: seconds from sending it to the arrival of each token",
            f"    ttft = {ttft}",
            *([f"    each = {each}"] if each else []),
            f"    tpot = {tpot}",
            f"    slowest = {slowest}",
            "    return ttft, tpot, slowest",
            "",
        ]
    )


_EACH_GAP = "[b - a for t in requests for a, b in zip(t, t[1:])]"
_MEDIANS = "[sorted(b - a for a, b in zip(t, t[1:]))[(len(t) - 1) // 2] for t in requests if len(t) > 1]"
_MEDIAN_OF = "__import__('statistics').median({})"

TOKEN_TIMES = Exercise(
    key="06-token-times",
    lesson=6,
    title="TTFT, TPOT and the slowest token",
    minutes=10,
    difficulty=2,
    importance=3,
    name="report",
    task="""
A log holds one list for each request. It says how many seconds after the request was sent each of its
tokens arrived.

Return three numbers, in seconds:
- `ttft`: the time to first token, the mean over requests
- `tpot`: (end to end - TTFT) / (n - 1) for n tokens, the mean over the requests that have one
- `slowest`: the longest inter-token latency of any request""",
    hints=(
        "The first arrival ends the prefill. Everything after it is decode.",
        "n tokens have n - 1 gaps. So what can a request of a single token say about decode?",
        "For times t: TTFT is t[0], TPOT is (t[-1] - t[0]) / (len(t) - 1), and zip(t, t[1:]) gives "
        "the pairs whose differences are the ITLs.",
    ),
    stub=_source("...", "", "...", "..."),
    solution=_source(),
    judge=_check,
    wrong={
        "divides by n": _source(each="[(t[-1] - t[0]) / len(t) for t in requests if len(t) > 1]"),
        "end to end over n": _source(each="[t[-1] / len(t) for t in requests]"),
        "includes TTFT": _source(each="[t[-1] / (len(t) - 1) for t in requests if len(t) > 1]"),
        "mean of all ITLs": _source(each=_EACH_GAP),
        "median of the ITLs": _source(each=_MEDIANS),
        "one token counts as 0": _source(tpot="sum(each) / len(requests)"),
        "one token divides by 0": _source(each="[(t[-1] - t[0]) / (len(t) - 1) for t in requests]"),
        "median TTFT": _source(ttft=_MEDIAN_OF.format("[t[0] for t in requests]")),
        "halfway between two TTFTs": _source(
            ttft="(min(t[0] for t in requests) + max(t[0] for t in requests)) / 2"
        ),
        "median TPOT": _source(tpot=_MEDIAN_OF.format("each")),
        "halfway between two TPOTs": _source(tpot="(min(each) + max(each)) / 2"),
        "TTFT is the sum": _source(ttft="sum(times[0] for times in requests)"),
        "the slowest is a TTFT": _source(
            slowest="max(max(b - a for a, b in zip([0, *t], t)) for t in requests)"
        ),
        "the mean is no maximum": _source(slowest=f"sum({_EACH_GAP}) / len({_EACH_GAP})"),
    },
)
