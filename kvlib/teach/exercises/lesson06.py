"""The exercises of lesson 06: the floor of a decode step, and the batch that turns the weights."""

from kvlib.teach.exercises.contract import Exercise, cell
from kvlib.teach.exercises.reading import Real, Rounded
from kvlib.teach.exercises.token_times import TOKEN_TIMES

MOVED = "weight_bytes + sum(contexts) * bytes_per_token"
RATES = ("reading = moved / (gb_per_s * 1e9)", "arithmetic = flops / (tflop_per_s * 1e12)")
SLOWER = "return max(reading, arithmetic)"


def _floor(moved: str = MOVED, *rest: str) -> str:
    head = "def decode_floor(weight_bytes, bytes_per_token, contexts, flops, gb_per_s, tflop_per_s):"
    return cell(head, f"moved = {moved}", *(rest or (*RATES, SLOWER)))


def _gives(result: str) -> str:
    """Return a cell that makes something else of both times."""
    return _floor(MOVED, *RATES, f"return {result}")


def _floor_rule(given, wanted, *case) -> str:
    if given and any(given == round(wanted, digits) for digits in range(1, 7)):
        return "that is right up to rounding: do not round"
    return f"that is {'more' if given > wanted else 'less'} than the step needs"


def _step(about: str, *case) -> tuple:
    weights, per_token, contexts, *rates = case
    listed = f"[{contexts[0]}] * {len(contexts)}" if len(contexts) > 3 else contexts
    told = ", ".join(map(str, (weights, per_token, listed, *rates)))
    return *case, f"{about}, decode_floor({told})"


OWN = "each sequence has a cache of its own, as long as its context: add up all contexts"
CONVERT = "one GB/s is 10^9 bytes a second, and one TFLOP/s is 10^12: convert both rates"

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
    stub=_floor("...  # bytes", "return ...  # seconds"),
    solution=_floor(),
    answer=Real("seconds, as one number", tells="{:.6g} s"),
    cases=(  # weight bytes, bytes per token, contexts, FLOP, GB/s, TFLOP/s
        _step("one sequence", 15_010_000_000, 131_072, [8192], 19_300_000_000, 3350, 989),
        _step("unequal contexts", 15_010_000_000, 131_072, [8192, 1024, 32768], 67_000_000_000, 3350, 989),
        _step("16 sequences on a CPU", 538_000_000, 46_080, [1024] * 16, 5_400_000_000, 13, 0.29),
        _step("3 sequences on a core slow at arithmetic", 538_000_000, 46_080, [128] * 3, 832_000_000, 13,
              0.002),
        _step("64 sequences, bound by arithmetic", 538_000_000, 46_080, [128] * 64, 17_800_000_000, 13, 0.15),
        _step("an empty batch, which reads weights alone", 1_000_000_000, 50_000, [], 0, 100, 1),
    ),
    right="weights once, every sequence's cache, and the slower of reading and arithmetic",
    rule=_floor_rule,
    wrong={
        "the weights are read once for the whole batch, not once for each sequence":
            _floor("len(contexts) * weight_bytes + sum(contexts) * bytes_per_token"),
        f"{OWN}, not just one of them": _floor("weight_bytes + max(contexts, default=0) * bytes_per_token"),
        f"{OWN}, not the first alone": _floor("weight_bytes + sum(contexts[:1]) * bytes_per_token"),
        f"{OWN}. That takes their mean":
            _floor("weight_bytes + sum(contexts) * bytes_per_token / max(1, len(contexts))"),
        f"{OWN}. That counts the longest for every sequence, as padding would":
            _floor("weight_bytes + len(contexts) * max(contexts, default=0) * bytes_per_token"),
        f"{OWN}. That counts one token for each sequence":
            _floor("weight_bytes + len(contexts) * bytes_per_token"),
        "a step reads the cache as well as the weights": _floor("weight_bytes"),
        "a step reads the weights as well as the cache": _floor("sum(contexts) * bytes_per_token"),
        "`bytes_per_token` counts K and V already":
            _floor("weight_bytes + 2 * sum(contexts) * bytes_per_token"),
        "that is milliseconds; the floor is asked for in seconds": _gives("1000 * max(reading, arithmetic)"),
        "that is steps per second; the seconds of one step are asked for":
            _gives("1 / max(reading, arithmetic)"),
        "`flops` counts multiplications and additions already: do not double it":
            _gives("max(reading, 2 * arithmetic)"),
        "`flops` counts multiplications and additions: do not halve it":
            _gives("max(reading, arithmetic / 2)"),
        "`flops` counts multiplications and additions already: do not double it. And reading takes longer "
        "here": _gives("2 * arithmetic"),
        "`flops` counts multiplications and additions: do not halve it. And reading takes longer here":
            _gives("arithmetic / 2"),
        "1 TFLOP/s is 10^12 operations a second; 10^9 is a GFLOP": _gives("max(reading, 1000 * arithmetic)"),
        "`flops` counts the whole batch already: do not multiply by the sequences":
            _gives("max(reading, len(contexts) * arithmetic)"),
        "`flops` is for the whole batch, and the step waits for all of it: do not divide by the sequences":
            _gives("max(reading, arithmetic / max(1, len(contexts)))"),
        "that is the time of the arithmetic; here reading takes longer": _gives("arithmetic"),
        "that is the time of the reading; here the arithmetic of the batch takes longer": _gives("reading"),
        "reading and arithmetic go on at the same time: the least time is the larger, not the sum":
            _gives("reading + arithmetic"),
        "bandwidth is given in GB/s, 10^9 bytes a second; 2^30 is a GiB":
            _gives("max(reading * 1e9 / 2**30, arithmetic)"),
        CONVERT: _gives("max(moved / gb_per_s, flops / tflop_per_s)"),
        f"{CONVERT}, each by its own factor": _gives("1e9 * max(reading, arithmetic)"),
    },
)  # fmt: skip


def _batch(result: str, *before: str) -> str:
    head = "import math\n\n\ndef compute_bound_batch(tflop_per_s, gb_per_s, bytes_per_element):"
    return cell(head, *before, f"return {result}")


def _of(result: str) -> str:
    """Return a cell that makes a batch of both rates."""
    return _batch(result, "flops, rate = tflop_per_s * 1e12, gb_per_s * 1e9")


def _batch_rule(given, wanted, tflop, gb, size) -> str | None:
    exact = tflop * 1000 * size / (2 * gb)
    if given == wanted - 1:
        return "the formula is right, but at that batch reading still takes longer: round up"
    if given == wanted + 1:
        return "one sequence fewer is enough already: round up to the next whole number, and add nothing"
    if 0 < given - exact < 10 and isinstance(given, int):
        return "that is a few sequences too many: round up to the next whole number"
    if any(abs(given - exact * 1000**power) < 1 for power in (1, 2, 3, 4)):
        return UNITS
    if given in (0, 1):
        return f"before rounding it was below 1. {UNITS}. Or is it upside down, bytes over FLOP?"
    return None


UNITS = "1 TFLOP/s is 10^12 a second and 1 GB/s is 10^9: the units differ by 1,000"
TEN = "TFLOP/s and GB/s are powers of ten, 10^12 and 10^9"
TURNED = "that is upside down: a higher FLOP rate asks for a larger batch, more bandwidth for less"
EXACT = "flops * bytes_per_element / (2 * rate)"

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
    stub=_batch("..."),
    solution=_of(f"math.ceil({EXACT})"),
    answer=Rounded("the batch", tells="{}", off=1),
    cases=tuple(
        (*case, f"{about}, compute_bound_batch{case}")
        for case, about in (  # dense TFLOP/s, GB/s, bytes per element
            ((312, 2039, 2), "an A100 80GB in 16 bits"),
            ((989, 4800, 2), "an H200 in 16 bits"),
            ((1307, 5300, 2), "an MI300X in 16 bits"),
            ((300, 4000, 2), "rates that divide without a rest"),  # in every order of evaluation
            ((19.5, 2039, 4), "an A100 in 32 bits, without tensor cores"),
            ((300.01, 4000, 2), "a slightly faster device"),  # 75.0025, to be rounded up as well
            ((0.29, 15, 4), "a CPU in 32 bits"),
            ((1979, 3350, 1), "an H100 in 8 bits"),
        )
    ),
    right="154 on an A100 and 207 on an H200 in 16 bits (153.02 and 206.04, rounded up), and it depends on "
        "the bytes of a weight",
    otherwise="set 2 x batch / FLOP rate equal to bytes / bandwidth, for one weight",
    rule=_batch_rule,
    wrong={
        "the formula is right, the rounding is missing: return the first whole batch, with math.ceil":
            _of(EXACT),
        "a weight takes `bytes_per_element` bytes to read; 2 is right for 16 bits only":
            _of("math.ceil(flops / rate)"),
        "each sequence needs a multiplication and an addition for a weight: 2 FLOP":
            _of("math.ceil(flops * bytes_per_element / rate)"),
        "that is half: is the 2 of multiply-add counted twice, or a byte count missing?":
            _of("math.ceil(flops * bytes_per_element / (4 * rate))"),
        f"{TEN}; 2^30 is a GiB": _of("math.ceil(flops * bytes_per_element / (2 * gb_per_s * 2**30))"),
        f"{TEN}; 2^40 is no tera, and 2^30 is a GiB": _of(f"1.024 * {EXACT}"),
        UNITS: _of(f"{EXACT} / 1000"),
        TURNED: _of("2 * rate / (flops * bytes_per_element)"),
        f"{TURNED}. {UNITS}": _of("2000 * rate / (flops * bytes_per_element)"),
    },
)  # fmt: skip

EXERCISES = (TOKEN_TIMES, FLOOR, BATCH)
