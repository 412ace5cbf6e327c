"""The exercises of lesson 08: a softmax over tiles, and the merge of parts."""

import math

from kvlib.teach.exercises.contract import Advice, Exercise, Verdict, define
from kvlib.teach.exercises.judge import judge
from kvlib.teach.exercises.reading import Tensors, error_allowed, near

# Scores of each tile as (rows, keys of a tile). Rows, keys and numbers of a value differ in number, one
# key and one row occur, and each case finds what those before let pass.
TILE_CASES = (
    (
        "whose maximum rises from tile to tile",
        [[[0.0, 1.0, 0.25], [1.0, 0.5, -1.0]], [[2.0, 3.0], [1.5, 4.0]]],
    ),
    (
        "whose maximum comes first",
        [[[3.0, 1.0], [2.0, 4.0]], [[0.0], [1.0]], [[1.0, 2.5, 0.5], [3.0, 0.0, 2.0]]],
    ),
    ("of one query", [[[0.5]], [[1.5, 2.0, -1.0]], [[0.0, 1.0]]]),
    (
        "whose rows lie far apart",
        [[[0.0, 1.0], [900.0, 901.0]], [[2.0, 1.0, 0.0], [899.0, 902.0, 900.5]]],
    ),
    ("of which some are masked", [[[0.5, -math.inf], [-math.inf, 1.0]], [[-math.inf, 2.0], [0.0, 1.5]]]),
    ("in the hundreds", [[[800.0, 801.0], [750.0, 749.0]], [[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]]]),
    ("far below 0", [[[-800.0, -801.0], [-900.0, -901.0]], [[-799.0, -803.0], [-902.0, -901.0]]]),
)
VALUES = [[[1.0, -2.0, 0.5, 2.5], [3.0, 1.0, -1.0, 0.0], [-0.5, 1.5, 2.0, 1.0]],
          [[-1.0, 2.0, 4.0, -0.5], [0.5, -3.0, 1.5, 3.5], [2.5, 0.0, -1.5, 1.0]],
          [[2.0, 2.0, -2.0, 0.5], [-4.0, 1.0, 0.0, 1.5], [1.0, -1.0, 3.0, -2.5]]]  # fmt: skip
SUM = "weights.sum(dim=1, keepdim=True)"


def _absorb(
    high="torch.maximum(high, scores.amax(dim=1, keepdim=True))", rescale="torch.exp(high - new_high)",
    weights="torch.exp(scores - new_high)", total="total * rescale + weights.sum(dim=1, keepdim=True)",
    out="out * rescale + weights @ values",
) -> str:  # fmt: skip
    return (
        "import torch\n\n\n"
        "def my_absorb(high, total, out, scores, values):\n"
        f"    new_high = {high}\n"
        f"    rescale = {rescale}\n"
        f"    weights = {weights}\n"
        f"    total = {total}\n"
        f"    out = {out}\n"
        "    return new_high, total, out\n"
    )


def _absorb_cases() -> list:
    """Make a case of each tile; what was kept before it is right."""
    import torch

    absorb, made = define(ABSORB.name, ABSORB.solution, "<solution>"), []
    for name, tiles in TILE_CASES:
        high = torch.full((len(tiles[0]), 1), -math.inf, dtype=torch.float64)
        state = high, torch.zeros_like(high), torch.zeros(len(high), 4, dtype=torch.float64)
        for number, scores in enumerate(tiles):
            scores = torch.tensor(scores, dtype=torch.float64)
            values = torch.tensor(VALUES[number][: scores.shape[1]], dtype=torch.float64)
            made.append((*state, scores, values, f"tile {number + 1} of scores {name}"))
            state = absorb(*made[-1][:5])
    return made


def _judge_absorb(candidate) -> Verdict:
    return judge(ABSORB, lambda *tile: _tried(candidate, *tile))


def _tried(candidate, *inputs):
    """Call it; give a crash the advice that its words ask for."""
    try:
        return candidate(*inputs)
    except (RuntimeError, TypeError, AttributeError) as error:
        if "torch.return_types" in str(error):
            error.add_note(Advice("`max` along an axis gives values and places: take `.values`, or `amax`"))
        elif "size of tensor" in str(error):
            error.add_note(Advice(
                "Give keepdim=True to a maximum or sum along the keys: it stays (r, 1), a number for each row"
            ))  # fmt: skip
        raise


def _absorb_rule(given, wanted, high, *tile) -> str | None:
    shapes, right = ([tuple(x.shape) for x in parts] for parts in (given, wanted))
    if shapes != right and sorted(shapes) == sorted(right):
        return "these are the right shapes in another order: return (new_high, total, out)"
    for name, shape, want in zip(("new_high", "total", "out"), shapes, right):
        if shape != want:
            lost = len(shape) < 2 or shape == (len(high), len(high))  # (r,) and (r, 1) spread to (r, r)
            hint = ": keepdim=True keeps the axis of size 1 in a sum or maximum" if lost else ""
            return f"`{name}` must have the shape {want}{hint}"
    risen = near(given[0], wanted[0], error_allowed(given[0], *tile))
    if not risen or all(x.isfinite().all() for x in given):
        return None
    if high.isneginf().all():
        return (
            "a number is not finite: the first maximum is -inf, so subtract the NEW one from the scores, and "
            "rescale by exp(high - new_high), which is then exp(-inf) = 0"
        )
    return "a number is not finite: every exponent must be 0 or less, score - new_high, high - new_high"


ABSORB = Exercise(
    key="08-online-softmax",
    lesson=8,
    title="One more tile",
    minutes=10,
    difficulty=2,
    importance=3,
    name="my_absorb",
    task="""
A tile of r queries has looked at some keys. Three things are kept for each query: `high` (r, 1), the
largest score so far; `total` (r, 1), the sum of exp(score - high); and `out` (r, D), the sum of
exp(score - high) times value. Before the first tile they are -inf, 0 and 0.

Now n more keys arrive: `scores` (r, n) and `values` (n, D). A masked score is -inf, but no row is masked
whole. Return the new (high, total, out), in the precision of the scores.""",
    hints=(
        "The new maximum is the larger of the old one and this tile's largest score, row by row. Keep "
        "the axis of size 1: `amax(dim=1, keepdim=True)`.",
        "What was kept is a sum of exp(score - high). Which factor turns each of its terms into "
        "exp(score - new_high)?",
        "`rescale = torch.exp(high - new_high)` for sum and output; `weights = torch.exp(scores - new_high)` "
        "for this tile; add `weights @ values` to the output.",
    ),
    stub=_absorb(*["..."] * 5),
    solution=_absorb(),
    judge=_judge_absorb,
    changes=("high", "total", "out"),
    answer=Tensors("new_high", "total", "out"),
    cases=_absorb_cases,
    right="after the last tile, out / total is the softmax over all keys, and at no time did you need more "
    "than one tile of scores",
    otherwise=(
        "`new_high` is not the larger one of the old maximum and this tile's",
        "`total` is not the old part rescaled, plus this tile's",
        "`out` is not the old part rescaled, plus this tile's",
    ),
    rule=_absorb_rule,
    wrong={
        "`new_high` is the largest score of this tile alone: it must also be at least the maximum so far, or "
        "what was kept may overflow when it is rescaled": _absorb(high="scores.amax(dim=1, keepdim=True)"),
        "`new_high` is still the old maximum: a larger score in this tile raises it": _absorb(high="high"),
        "one maximum for all rows: each row is a query with its own scores, so take the maximum along the "
        "keys, dim=1": _absorb(high="torch.maximum(high, scores.amax()).amax().expand(len(high), 1)"),
        "`new_high` is never below 0: the first maximum is -inf, and scores may all be negative":
            _absorb(high="torch.maximum(high, scores.amax(dim=1, keepdim=True)).clamp_min(0)"),
        "the sum so far was made with the old maximum: multiply it by exp(high - new_high) before adding":
            _absorb(total=f"total + {SUM}"),
        "the output so far was made with the old maximum: multiply it by exp(high - new_high), as the sum":
            _absorb(out="out + weights @ values"),
        "nothing is rescaled: what was kept is in units of the old maximum. Multiply sum and output by "
        "exp(high - new_high)": _absorb(rescale="1"),
        "the rescaling goes the wrong way: when the maximum rises, old exponentials shrink":
            _absorb(rescale="torch.nan_to_num(torch.exp(new_high - high), posinf=0)"),
        "only this tile is left: add to what was kept, rescaled": _absorb(total=SUM, out="weights @ values"),
        "the output is divided already: out / total comes once, after the last tile":
            _absorb(out="(out * rescale + weights @ values) / total"),
        "the output is divided already, and multiplied back before each tile: it works, but divides at each "
        "tile. Keep it undivided; out / total comes once, after the last tile":
            _absorb(out=f"(out * (total - {SUM}) + weights @ values) / total"),
        "those are powers of 2: softmax is made of powers of e. (Kernels use exp2, but multiply the scores "
        "by log2(e) first)":
            _absorb(rescale="torch.exp2(high - new_high)", weights="torch.exp2(scores - new_high)"),
        "the new exponentials are powers of 2, the old ones of e: use exp for both":
            _absorb(weights="torch.exp2(scores - new_high)"),
        "one sum for all rows: each row is a query of its own, so sum along the keys, dim=1":
            _absorb(total="total * rescale + weights.sum()"),
        "`total` adds the mean of the weights; it is their sum":
            _absorb(total="total * rescale + weights.mean(dim=1, keepdim=True)"),
        "the tile's weights are divided by the tile's own sum: do not divide inside a tile, the division "
        "comes after the last one": _absorb(out=f"out * rescale + weights / {SUM} @ values"),
        "the tile's weights are divided and sum to 1: do not divide inside a tile, the division comes after "
        "the last one": _absorb(weights="torch.softmax(scores, dim=1)"),
    },
)  # fmt: skip


def _merge(share: str, log_sum: str = "torch.logsumexp(log_sums, dim=0)", back: str = "out, log_sum") -> str:
    return (
        "import torch\n\n\n"
        "def my_merge(outs, log_sums):\n"
        f"    log_sum = {log_sum}\n"
        f"    share = {share}\n"
        "    out = share @ outs\n"
        f"    return {back}\n"
    )


def _log_sum(log_sum: str) -> str:
    return _merge("torch.softmax(log_sums, dim=0)", log_sum)


def _merge_cases() -> list:
    """Make cases in which parts and numbers of an output differ in number."""
    import torch

    cases = (
        ([[1.0, 2.0, -0.5], [3.0, -1.0, 1.5]], [0.75, 2.0]),
        ([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]], [2.0, 2.0, -1.0]),
        ([[1.0, 2.0, 4.0, -2.0], [0.0] * 4, [3.0, -1.0, 0.5, 1.0]], [0.5, -math.inf, 1.5]),
        ([[1.0, 2.0, -0.5], [3.0, -1.0, 1.5]], [800.0, 799.0]),
        ([[1.0, 2.0, -0.5], [3.0, -1.0, 1.5]], [-900.0, -901.0]),
        ([[5.0, -5.0, 2.0]], [3.0]),
    )
    return [
        (*(torch.tensor(x, dtype=torch.float64) for x in case), "outs={}, log_sums={}".format(*case))
        for case in cases
    ]


def _merge_rule(given, wanted, outs, log_sums) -> str | None:
    shapes, (D,) = [x.shape for x in given], wanted[0].shape
    if shapes == [(), (D,)]:
        return "the two are in the other order: return (out, log_sum), the output first"
    if shapes[0] != (D,):
        return f"`out` is one output, of shape (D,) = ({D},): sum over the parts"
    if given[1].numel() == 1 and shapes[1] != ():
        return f"`log_sum` is one number, and yours has shape {tuple(shapes[1])}: leave out `keepdim`"
    if shapes[1] != ():
        return "`log_sum` is one number, without a shape: sum over the parts"
    if all(x.isfinite().all() for x in given):
        return None
    if log_sums.isneginf().any():
        return "an empty part has log_sum -inf, and its share is exp(-inf) = 0: nothing here needs to be nan"
    return (
        "a number is not finite: log_sums may be in the hundreds, of either sign. Subtract their maximum "
        "before exp, or use torch.logsumexp"
    )


MERGE = Exercise(
    key="08-merge-parts",
    lesson=8,
    title="Merge the parts",
    minutes=8,
    difficulty=2,
    importance=3,
    name="my_merge",
    task="""
One query attended to S parts of its keys, to each part separately. `outs` (S, D) holds the parts' outputs,
each already divided by its part's sum. `log_sums` (S,) holds the natural logarithms of the parts' sums of
exp(score); they lie between -1,000 and 1,000. An empty part has output 0 and log_sum -inf. At least one part
is not empty.

Return what attending to all keys at once gives: `out` (D,), and the `log_sum` of the whole.""",
    hints=(
        "Undo the division: a part's output times its sum is its sum of exp(score) times value. Add these "
        "up, and divide by the sum of all parts' sums.",
        "So the weight of a part is its sum over the sum of all: exp(log_sum of the part - log_sum of all).",
        "exp(1000) overflows; `torch.logsumexp(log_sums, dim=0)` subtracts the maximum for you and is the "
        "log_sum of the whole.",
    ),
    stub=_merge("...", "...").replace("share @ outs", "..."),
    solution=_merge("torch.exp(log_sums - log_sum)"),
    answer=Tensors("out", "log_sum"),
    cases=_merge_cases,
    right="each part counts by its share of the whole sum, an empty one not at all, and the result is a part "
    "again, which can be merged with others",
    otherwise=(
        "`out` is not the mean of the outputs, each weighted by its part's share of the whole sum",
        "`log_sum` is not the logarithm of the sum of all exponentials",
    ),
    rule=_merge_rule,
    wrong={
        "the two are in the other order: return (out, log_sum), the output first":
            _merge("torch.softmax(log_sums, dim=0)", back="log_sum, out"),
        "that is the plain average: a part counts by its share of the sum of exponentials, not by one vote":
            _merge("torch.full_like(log_sums, 1 / len(log_sums))"),
        "the outputs are added, but each is already divided by its part's sum: a part counts by its share":
            _merge("torch.ones_like(log_sums)"),
        "the log_sums are natural logarithms: undo them by exp, not by powers of 2":
            _merge(f"torch.softmax(log_sums * {math.log(2)}, dim=0)"),
        "the log_sums are natural logarithms: undo them by exp, not by powers of 10":
            _merge(f"torch.softmax(log_sums * {math.log(10)}, dim=0)"),
        "the log_sums themselves are no weights: they are logarithms, so take exp first":
            _merge("log_sums / log_sums.sum()"),
        "the shares do not sum to 1: divide by the sum over all parts":
            _merge("torch.exp(log_sums - log_sums.max())"),
        "these are sums, not shares, which sum to 1: divide by the sum over all parts":
            _merge("torch.exp(log_sums)"),
        "that is the output of the largest part alone": _merge("(log_sums == log_sums.max()).double()"),
        "the shares go the wrong way: the larger a part's log_sum, the more it counts":
            _merge("torch.softmax(-log_sums, dim=0)"),
        "`log_sum` is the largest one; it is the logarithm of the sum of all exponentials":
            _log_sum("log_sums.max()"),
        "`log_sum` adds the logarithms, and so multiplies: add the exponentials": _log_sum("log_sums.sum()"),
        "`log_sum` is the mean; it is the logarithm of all exponentials' sum": _log_sum("log_sums.mean()"),
        "`log_sum` is the sum itself: return its logarithm": _log_sum("torch.exp(log_sums).sum()"),
        "`log_sum` is a logarithm of base 2; parts come with natural ones, and the result is a part again":
            _log_sum(f"torch.logsumexp(log_sums, dim=0) / {math.log(2)}"),
        "`log_sum` is a logarithm of base 10; parts come with natural ones, and the result is a part again":
            _log_sum(f"torch.logsumexp(log_sums, dim=0) / {math.log(10)}"),
        "`log_sum` lacks the maximum that was subtracted: add it back after the logarithm":
            _log_sum("torch.exp(log_sums - log_sums.max()).sum().log()"),
        "`log_sum` is 0: that is the sum of the shares, not of the exponentials": _log_sum("torch.zeros(())"),
    },
)  # fmt: skip

EXERCISES = (ABSORB, MERGE)
