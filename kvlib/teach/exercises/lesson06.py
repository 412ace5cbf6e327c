"""The exercises of lesson 06: the floor of a decode step, and the batch that turns the weights."""

import math

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.token_times import TOKEN_TIMES
from kvlib.teach.exercises.watching import number, show, whole, why_not_whole

GB, TERA = 10**9, 10**12
# weight bytes, bytes per token, contexts, FLOP, GB/s, TFLOP/s, what the case is about
FLOOR_CASES = (
    (15_010_000_000, 131_072, [8192], 19_300_000_000, 3350, 989, "one sequence"),
    (15_010_000_000, 131_072, [8192, 1024, 32768], 67_000_000_000, 3350, 989, "unequal contexts"),
    (538_000_000, 46_080, [1024] * 16, 5_400_000_000, 13, 0.29, "16 sequences on a CPU"),
    (538_000_000, 46_080, [128] * 3, 832_000_000, 13, 0.002, "3 sequences on a core slow at arithmetic"),
    (538_000_000, 46_080, [128] * 64, 17_800_000_000, 13, 0.15, "64 sequences, bound by arithmetic"),
    (1_000_000_000, 50_000, [], 0, 100, 1, "an empty batch, which reads weights alone"),
)


def decode_floor(weight_bytes, bytes_per_token, contexts, flops, gb_per_s, tflop_per_s) -> float:
    """Return the least seconds of one decode step."""
    moved = weight_bytes + sum(contexts) * bytes_per_token
    return max(moved / (gb_per_s * GB), flops / (tflop_per_s * TERA))


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)


def _check_floor(candidate) -> Verdict:
    for *case, about in FLOOR_CASES:
        weights, per_token, contexts, flops, gb, tflop = case
        answer = candidate(weights, per_token, list(contexts), flops, gb, tflop)
        listed = f"[{contexts[0]}] * {len(contexts)}" if len(contexts) > 3 else contexts
        call = f"decode_floor({weights}, {per_token}, {listed}, {flops}, {gb}, {tflop})"
        told = f"for {about}, {call}, it gives {show(answer)}"
        given = number(answer)
        if given is None or not math.isfinite(given):
            return not_yet(f"return seconds, as one number; {told}")
        wanted = decode_floor(*case)
        if _near(given, wanted):
            continue
        return not_yet(f"{_floor_mistake(given, *case)}; {told}, and it is {wanted:.6g} s")
    return correct("weights once, every sequence's cache, and the slower of reading and arithmetic")


def _floor_mistake(given, weights, per_token, contexts, flops, gb, tflop) -> str:
    rate, count = gb * GB, len(contexts)
    moved, compute = (weights + sum(contexts) * per_token) / rate, flops / (tflop * TERA)
    own = "each sequence has a cache of its own, as long as its context: add up all contexts"
    longest = max(contexts, default=0)
    readings = (
        (count * weights + sum(contexts) * per_token, "the weights are read once for the whole batch, "
         "not once for each sequence"),
        (weights + longest * per_token, f"{own}, not just one of them"),
        (weights + sum(contexts[:1]) * per_token, f"{own}, not the first alone"),
        (weights + sum(contexts[-1:]) * per_token, f"{own}, not the last alone"),
        (weights + sum(contexts) * per_token / max(1, count), f"{own}. That takes their mean"),
        (weights + count * longest * per_token, f"{own}. That counts the longest for every sequence, as "
         "padding would"),
        (weights + count * per_token, f"{own}. That counts one token for each sequence"),
        (weights, "a step reads the cache as well as the weights"),
        (sum(contexts) * per_token, "a step reads the weights as well as the cache"),
        (weights + 2 * sum(contexts) * per_token, "`bytes_per_token` counts K and V already"),
    )  # fmt: skip
    for nbytes, meaning in readings:
        if _near(given, nbytes / rate) and not _near(given, moved):
            return meaning
    least = max(moved, compute)
    for wrong, meaning in (
        (1e3 * least, "that is milliseconds; the floor is asked for in seconds"),
        (least and 1 / least, "that is steps per second; the seconds of one step are asked for"),
        (2 * compute, "`flops` counts multiplications and additions already: do not double it"),
        (compute / 2, "`flops` counts multiplications and additions: do not halve it"),
        (1e3 * compute, "1 TFLOP/s is 10^12 operations a second; 10^9 is a GFLOP"),
        (count * compute if count > 1 else 0, "`flops` counts the whole batch already: do not multiply "
         "by the sequences"),
        (compute / count if count > 1 else 0, "`flops` is for the whole batch, and the step waits for all "
         "of it: do not divide by the sequences"),
        (compute, "that is the time of the arithmetic; here reading takes longer"),
        (moved, "that is the time of the reading; here the arithmetic of the batch takes longer"),
        (
            moved + compute,
            "reading and arithmetic go on at the same time: the least time is the larger, not the sum",
        ),
        (
            max(moved * GB / 2**30, compute),
            "bandwidth is given in GB/s, 10^9 bytes a second; 2^30 is a GiB",
        ),
        (
            max(moved * GB, compute * TERA),
            "one GB/s is 10^9 bytes a second, and one TFLOP/s is 10^12: convert both rates",
        ),
        (
            max(moved, compute) * GB,
            "one GB/s is 10^9 bytes a second, and one TFLOP/s is 10^12: convert both rates",
        ),
    ):  # fmt: skip
        if wrong and _near(given, wrong):
            return meaning
    if given and any(given == round(least, digits) for digits in range(1, 7)):
        return "that is right up to rounding: do not round"
    if given > least:
        return "that is more than the step needs"
    return "that is less than the step needs"


def _floor_source(moved="weight_bytes + sum(contexts) * bytes_per_token", *rest: str) -> str:
    rest = rest or (
        "reading = moved / (gb_per_s * 1e9)",
        "arithmetic = flops / (tflop_per_s * 1e12)",
        "return max(reading, arithmetic)",
    )
    return "\n".join(
        [
            "def decode_floor(weight_bytes, bytes_per_token, contexts, flops, gb_per_s, tflop_per_s):",
            *(f"    {line}" for line in (f"moved = {moved}", *rest)),
            "",
        ]
    )


FLOOR = Exercise(
    key="06-decode-floor",
    lesson=6,
    title="The floor of a decode step",
    minutes=8,
    difficulty=1,
    importance=3,
    name="decode_floor",
    task="""
One decode step serves a batch. `contexts` lists how many tokens each of its sequences has in the
cache. The weights that a step reads take `weight_bytes`. A token in the cache takes `bytes_per_token` (K
and V, all layers). The arithmetic of the step, for the whole batch, is `flops` operations.

The device reads `gb_per_s` GB and computes `tflop_per_s` TFLOP a second, and can do both at once.
Return the least time of the step, in seconds.""",
    hints=(
        "Which bytes do all sequences share, and which does each have for itself?",
        "There are two times, one for bytes and one for operations. The device does both at once: which "
        "one do you wait for?",
        "Reading is (weights + sum of contexts x bytes per token) / (GB/s x 10^9), arithmetic is "
        "FLOP / (TFLOP/s x 10^12). The floor is the larger.",
    ),
    stub=_floor_source("...  # bytes", "return ...  # seconds"),
    solution=_floor_source(),
    judge=_check_floor,
    wrong={
        "weights once for each sequence": _floor_source(
            "len(contexts) * weight_bytes + sum(contexts) * bytes_per_token"
        ),
        "operations doubled": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "return max(moved / (gb_per_s * 1e9), 2 * flops / (tflop_per_s * 1e12))",
        ),
        "FLOP of one sequence": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "arithmetic = flops / max(1, len(contexts)) / (tflop_per_s * 1e12)",
            "return max(moved / (gb_per_s * 1e9), arithmetic)",
        ),
        "FLOP times the batch": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "return max(moved / (gb_per_s * 1e9), len(contexts) * flops / (tflop_per_s * 1e12))",
        ),
        "padded to the longest": _floor_source(
            "weight_bytes + len(contexts) * max(contexts, default=0) * bytes_per_token"
        ),
        "one token each": _floor_source("weight_bytes + len(contexts) * bytes_per_token"),
        "the cache of one sequence": _floor_source(
            "weight_bytes + max(contexts, default=0) * bytes_per_token"
        ),
        "no cache": _floor_source("weight_bytes"),
        "K and V counted twice": _floor_source("weight_bytes + 2 * sum(contexts) * bytes_per_token"),
        "arithmetic alone": _floor_source("0", "return flops / (tflop_per_s * 1e12)"),
        "reading alone": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token", "return moved / (gb_per_s * 1e9)"
        ),
        "the sum of both": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "return moved / (gb_per_s * 1e9) + flops / (tflop_per_s * 1e12)",
        ),
        "GiB for GB": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "return max(moved / (gb_per_s * 2**30), flops / (tflop_per_s * 1e12))",
        ),
        "milliseconds": _floor_source(
            "weight_bytes + sum(contexts) * bytes_per_token",
            "return 1000 * max(moved / (gb_per_s * 1e9), flops / (tflop_per_s * 1e12))",
        ),
    },
)

# dense TFLOP/s, GB/s, bytes per element
BATCH_CASES = (
    (312, 2039, 2, "an A100 80GB in 16 bits"),
    (989, 4800, 2, "an H200 in 16 bits"),
    (1307, 5300, 2, "an MI300X in 16 bits"),
    (300, 4000, 2, "rates that divide without a rest"),  # in every order of evaluation
    (19.5, 2039, 4, "an A100 in 32 bits, without tensor cores"),
    (300.01, 4000, 2, "a slightly faster device"),  # 75.0025, to be rounded up as well
    (0.29, 15, 4, "a CPU in 32 bits"),
    (1979, 3350, 1, "an H100 in 8 bits"),
)


def compute_bound_batch(tflop_per_s, gb_per_s, bytes_per_element) -> int:
    """Return the least batch whose arithmetic on a weight takes as long as reading it."""
    return math.ceil(tflop_per_s * 1000 * bytes_per_element / (2 * gb_per_s))


def _check_batch(candidate) -> Verdict:
    for tflop, gb, size, about in BATCH_CASES:
        answer = candidate(tflop, gb, size)
        wanted = compute_bound_batch(tflop, gb, size)
        if whole(answer) == wanted:
            continue
        told = f"for {about}, compute_bound_batch({tflop}, {gb}, {size}), it gives {show(answer)}"
        given = number(answer)
        if given is None or not math.isfinite(given):
            return not_yet(f"{why_not_whole(answer, 'the batch')}; {told}")
        said = _batch_mistake(given, wanted, tflop * 1000 * size / (2 * gb), size)
        return not_yet(f"{said}; {told}, and it is {wanted}")
    return correct(
        "154 on an A100 and 207 on an H200 in 16 bits (153.02 and 206.04, rounded up), and it depends "
        "on the bytes of a weight"
    )


def _batch_mistake(given, wanted: int, exact: float, size: int) -> str:
    """Say what is wrong with a batch; `exact` is the right one before rounding."""
    if _close(given, exact):
        return "the formula is right, the rounding is missing: return the first whole batch, with math.ceil"
    if given in (math.floor(exact), round(exact)):
        return "the formula is right, but at that batch reading still takes longer: round up"
    if given == wanted + 1:
        return "one sequence fewer is enough already: round up to the next whole number, and add nothing"
    if 0 < given - exact < 10 and given == int(given):
        return "that is a few sequences too many: round up to the next whole number"
    if _close(given, 1 / exact) or _close(given, 1000 / exact):
        return "that is upside down: a higher FLOP rate asks for a larger batch, more bandwidth for less"
    units = "1 TFLOP/s is 10^12 a second and 1 GB/s is 10^9: the units differ by 1,000"
    if any(_same_batch(given, exact * 1000.0**power) for power in (-1, 1, 2, 3, 4)) and given > 1:
        return units
    if _close(given, exact / 1000):
        return units
    if given in (0, 1):
        return f"before rounding it was below 1. {units}. Or is it upside down, bytes over FLOP?"
    if _same_batch(given, 1.024 * exact) or _same_batch(given, exact * 1e9 / 2**30):
        return "TFLOP/s and GB/s are powers of ten, 10^12 and 10^9; 2^30 is a GiB"
    if size != 2 and _same_batch(given, exact * 2 / size):
        return "a weight takes `bytes_per_element` bytes to read; 2 is right for 16 bits only"
    if _same_batch(given, 2 * exact):
        return "each sequence needs a multiplication and an addition for a weight: 2 FLOP"
    if _same_batch(given, exact / 2):
        return "that is half: is the 2 of multiply-add counted twice, or a byte count missing?"
    return "set 2 x batch / FLOP rate equal to bytes / bandwidth, for one weight"


def _close(given, exact: float) -> bool:
    return math.isclose(given, exact, rel_tol=1e-6)


def _same_batch(given, exact: float) -> bool:
    return given in (math.ceil(exact), math.floor(exact), round(exact)) or _close(given, exact)


def _batch_source(*lines: str) -> str:
    head = ["import math", "", "", "def compute_bound_batch(tflop_per_s, gb_per_s, bytes_per_element):"]
    return "\n".join([*head, *(f"    {line}" for line in lines), ""])


_RATES = ("flops, rate = tflop_per_s * 1e12, gb_per_s * 1e9",)

BATCH = Exercise(
    key="06-compute-bound-batch",
    lesson=6,
    title="From which batch on do the weights wait for arithmetic?",
    minutes=8,
    difficulty=2,
    importance=3,
    name="compute_bound_batch",
    task="""
In a decode step each weight is read once, which takes `bytes_per_element` bytes. It is used once for each
sequence of the batch, for one multiplication and one addition.

A device computes `tflop_per_s` dense TFLOP and reads `gb_per_s` GB a second. Return the smallest whole
batch at which the arithmetic on the weights takes at least as long as reading them.""",
    hints=(
        "Take a single weight. How long does it take to read? How long to use it for B sequences?",
        "Reading takes bytes / bandwidth, using it 2 B / FLOP rate. Set them equal and solve for B.",
        "B = FLOP rate x bytes / (2 x bandwidth), with TFLOP/s as 10^12 and GB/s as 10^9. Then `math.ceil`.",
    ),
    stub=_batch_source("return ..."),
    solution=_batch_source(*_RATES, "return math.ceil(flops * bytes_per_element / (2 * rate))"),
    judge=_check_batch,
    wrong={
        "an addition is no operation": _batch_source(
            *_RATES, "return math.ceil(flops * bytes_per_element / rate)"
        ),
        "16 bits always": _batch_source(*_RATES, "return math.ceil(flops / rate)"),
        "rounds down": _batch_source(*_RATES, "return int(flops * bytes_per_element / (2 * rate))"),
        "even ones only": _batch_source(
            *_RATES, "return 2 * math.ceil(flops * bytes_per_element / (2 * rate) / 2)"
        ),
        "tera for giga, unrounded": _batch_source("return tflop_per_s * bytes_per_element / (2 * gb_per_s)"),
        "GiB for GB": _batch_source(
            "return math.ceil(tflop_per_s * 1e12 * bytes_per_element / (2 * gb_per_s * 2**30))"
        ),
        "one too many": _batch_source(*_RATES, "return int(flops * bytes_per_element / (2 * rate)) + 2"),
        "upside down": _batch_source(*_RATES, "return rate * 2 / (flops * bytes_per_element)"),
        "tera for giga": _batch_source("return math.ceil(tflop_per_s * bytes_per_element / (2 * gb_per_s))"),
        "a fraction of a sequence": _batch_source(*_RATES, "return flops * bytes_per_element / (2 * rate)"),
    },
)

EXERCISES = (TOKEN_TIMES, FLOOR, BATCH)
