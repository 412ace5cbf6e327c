"""The exercise of lesson 06 on latencies: TTFT, TPOT and ITL from the times tokens arrived."""

from kvlib.teach.exercises.contract import Exercise, cell
from kvlib.teach.exercises.reading import Reals

# In the second case no two mistakes agree. Over the cases the slowest gap is in the first, a middle and the
# last request, and is its first, a middle and its last gap.
CASES = (
    ("one steady request", [[0.5, 0.6, 0.7, 0.8]]),
    ("four requests, one with a long pause",
     [[0.53, 0.63, 0.93, 1.0], [0.2, 0.45, 1.25, 1.4], [1.1, 1.3, 1.65, 1.87, 1.99],
      [0.6, 0.74, 0.97, 1.05]]),
    ("a long prompt and uneven tokens", [[2.0, 2.05, 2.12, 2.19, 2.5]]),
    ("two requests, the first of them slow", [[0.41, 0.91, 1.73, 1.95], [0.62, 0.75, 0.81]]),
    ("a short and a long answer", [[0.25, 0.35], [1.0, 1.5, 1.6, 1.7, 1.8, 1.9]]),
    ("a request that stopped after one token", [[0.5], [0.25, 0.75, 0.85]]),
    ("three requests, one of them slow", [[0.2, 0.3], [0.3, 0.5, 0.7], [2.0, 2.5, 4.2]]),
)  # fmt: skip


def _cell(*lines: str) -> str:
    head = "def report(requests):  # each: seconds from sending it to the arrival of each token"
    return cell(head, *lines, "return ttft, tpot, slowest")


def _times(ttft: str = "mean(firsts)", tpot: str = "mean(each)", slowest: str = "max(gaps)") -> str:
    """Return a cell with one of its numbers written otherwise."""
    return "from statistics import mean, median\n\n\n" + _cell(
        "firsts = [t[0] for t in requests]",
        "longer = [t for t in requests if len(t) > 1]",
        "each = [(t[-1] - t[0]) / (len(t) - 1) for t in longer]",
        "by_request = [[b - a for a, b in zip(t, t[1:])] for t in requests]",
        "gaps = sum(by_request, [])",
        f"ttft = {ttft}",
        f"tpot = {tpot}",
        f"slowest = {slowest}",
    )


def _rule(given, wanted, requests) -> str | None:
    if ANSWER.same(sorted(given), sorted(wanted)):
        return "these are the right numbers in another order: return (ttft, tpot, slowest)"
    _, x, truth = ANSWER.wrong(given, wanted)
    if ANSWER.same([x], [1e3 * truth]):
        return "that is milliseconds; return seconds, as the arrival times are"
    rounded = x and any(x == round(truth, digits) for digits in range(1, 5))
    return "that is right up to rounding: do not round" if rounded else None


ANSWER = Reals("seconds", "ttft", "tpot", "slowest")
MEAN = "the mean is asked for: their sum over their number"
PAUSE = "a reader notices the longest pause of all"

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
    stub=_cell("ttft = ...", "tpot = ...", "slowest = ..."),
    solution=_cell(
        "ttft = sum(times[0] for times in requests) / len(requests)",
        "each = [(t[-1] - t[0]) / (len(t) - 1) for t in requests if len(t) > 1]",
        "tpot = sum(each) / len(each)",
        "slowest = max(b - a for t in requests for a, b in zip(t, t[1:]))",
    ),
    answer=ANSWER,
    cases=tuple((requests, f"{about}, {requests}") for about, requests in CASES),
    right="TTFT holds the prefill, TPOT the n - 1 steps after it, and no slow gap is averaged away",
    otherwise=(
        "TTFT is a request's first arrival, and the mean over all requests is asked for",
        "for each request, divide the time from its first to its last token by its n - 1 gaps",
        "the longest inter-token latency is the largest gap between two arrivals of one request",
    ),
    rule=_rule,
    wrong={
        "that adds up the TTFT of the requests; take the mean": _times("sum(firsts)"),
        f"that is the median TTFT over requests; {MEAN}": _times("median(firsts)"),
        f"that is halfway from the smallest TTFT to the largest; {MEAN}":
            _times("(min(firsts) + max(firsts)) / 2"),
        f"that is the largest TTFT; {MEAN}": _times("max(firsts)"),
        f"that is the smallest TTFT; {MEAN}": _times("min(firsts)"),
        f"that is the TTFT of the first request alone; {MEAN}": _times("firsts[0]"),
        f"that is the TTFT of the last request alone; {MEAN}": _times("firsts[-1]"),
        "every request has a TTFT: divide by the number of all requests": _times("sum(firsts) / len(longer)"),
        "that is the whole time, up to the last token": _times("mean(t[-1] for t in requests)"),
        "TTFT belongs to one token: do not divide it by n": _times("mean(t[0] / len(t) for t in requests)"),
        "that adds up the TPOT of the requests; take the mean": _times(tpot="sum(each)"),
        f"that is the median TPOT over requests; {MEAN}": _times(tpot="median(each)"),
        f"that is halfway from the smallest TPOT to the largest; {MEAN}":
            _times(tpot="(min(each) + max(each)) / 2"),
        "a request of one token has no TPOT: leave it out of the mean, do not count it as 0":
            _times(tpot="sum(each) / len(requests)"),
        "n tokens have n - 1 steps between the first and the last: divide by n - 1":
            _times(tpot="mean((t[-1] - t[0]) / len(t) for t in longer)"),
        "end to end over n counts the prefill as if it were a token like the others":
            _times(tpot="mean(t[-1] / len(t) for t in requests)"),
        "subtract TTFT from the end-to-end time first: that part is the prefill's":
            _times(tpot="mean(t[-1] / (len(t) - 1) for t in longer)"),
        "that is the mean of all ITLs together, in which a long answer counts more; TPOT is one number for "
        "each request, and then the mean over requests": _times(tpot="mean(gaps)"),
        "that is the median gap of each request; TPOT is the mean of a request's gaps":
            _times(tpot="mean(median(one) for one in by_request if one)"),
        "that is the median of all ITLs; TPOT is a mean for each request": _times(tpot="median(gaps)"),
        f"that is the TPOT of the first request alone; {MEAN}": _times(tpot="each[0]"),
        f"that is the TPOT of the last request alone; {MEAN}": _times(tpot="each[-1]"),
        "that is a whole decode time; an ITL is one gap of it":
            _times(slowest="max(t[-1] - t[0] for t in requests)"),
        "that is a TTFT; an ITL lies between two tokens": _times(slowest="max(firsts)"),
        "that counts a TTFT as a gap; an ITL lies between two tokens": _times(slowest="max(firsts + gaps)"),
        "that is an end-to-end time; an ITL lies between two tokens":
            _times(slowest="max(t[-1] for t in requests)"),
        f"that is the mean ITL; {PAUSE}": _times(slowest="mean(gaps)"),
        f"that is the shortest; {PAUSE}": _times(slowest="min(gaps)"),
        f"that is the last gap of the log; {PAUSE}": _times(slowest="gaps[-1]"),
        "that is the slowest of the last request alone: does each request overwrite the one before?":
            _times(slowest="max(by_request[-1], default=0)"),
        "that is the slowest of the first request alone; look at all requests":
            _times(slowest="max(by_request[0], default=0)"),
        f"that looks at the last gap of each request only; {PAUSE}":
            _times(slowest="max(t[-1] - t[-2] for t in longer)"),
        f"that looks at the first gap of each request only; {PAUSE}":
            _times(slowest="max(t[1] - t[0] for t in longer)"),
        "that is the second longest: the longest counts": _times(slowest="sorted(gaps)[-2:][0]"),
        "that is a mean over requests: take the longest":
            _times(slowest="mean(max(one) for one in by_request if one)"),
    },
)  # fmt: skip
