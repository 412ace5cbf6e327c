"""The exercise of one's own grouped attention: judged by the numbers, then by what it copies."""

from itertools import product
from math import prod

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet
from kvlib.teach.exercises.watching import show

# B, H, KV, T, D, and the size of the queries. Sizes that differ, so that a wrong axis says which; then both
# ends; then scores near 1,000, where exp overflows.
CASES = ((2, 6, 2, 37, 8, 1), (1, 4, 4, 9, 16, 1), (3, 5, 1, 20, 10, 1), (1, 12, 3, 50, 12, 400))


def _draw(case, dtype):
    """Draw q (B, H, 1, D) and k, v (B, KV, T, D); k and v are views into longer buffers."""
    import torch

    B, H, KV, T, D, size = case
    random = torch.Generator().manual_seed(T)
    q = size * torch.randn(B, H, 1, D, generator=random, dtype=torch.float64)
    room = torch.full((2, B, KV, T + 5, D), float("nan"), dtype=torch.float64)
    room[:, :, :, :T] = torch.randn(2, B, KV, T, D, generator=random, dtype=torch.float64)
    k, v = room.to(dtype)[:, :, :, :T]
    return q.to(dtype), k, v


def _check_attention(candidate) -> Verdict:
    import torch

    from kvlib.allocations import Allocations
    from kvlib.attention import reference_attention

    for dtype, case in product((torch.float64, torch.float32), CASES):  # .double() copies the second alone
        q, k, v = _draw(case, dtype)
        wanted = reference_attention(*(x.double() for x in (q, k, v)))
        with Allocations() as seen, _products() as products:
            given = _run(candidate, q, k, v)
        wrong = _shape_mistake(given, q, k) or _number_mistake(given, wanted, q, k, v)
        wrong = wrong or _copy_mistake(seen, case) or _not_folded(products, case)
        if wrong is not None:
            B, H, KV, T, D, _ = case
            return not_yet(f"{wrong}; this was with B={B}, H={H}, KV={KV}, T={T}, D={D} in {dtype}")
    return correct("the formula's numbers for MHA, GQA and MQA, and no row of K or V is copied")


def _products():
    """Return a mode that lists, as `calls`, each product's name and the shape of what comes first."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func).split(".")[1]
            if name in ("bmm", "mm", "mv", "dot") or "dot_product" in name:
                self.calls.append((name, tuple(args[0].shape)))
            return func(*args, **(kwargs or {}))

    return Products()


def _not_folded(products, case) -> str | None:
    """Return what an answer with the right numbers did in place of folding, or None."""
    B, H, KV, T, D, _ = case
    fused = [shape for name, shape in products.calls if "dot_product" in name]
    if len(fused) > 1 or len(products.calls) > 2:
        return (
            f"the numbers are right, but it is not folded: {len(products.calls)} products, in a loop, "
            "where a folded q needs one for the scores and one for the output, for all heads at once"
        )
    if H > KV and fused and fused[0] == (B, H, 1, D):
        return (
            "the numbers are right, but it is not folded: q went in as (B, H, 1, D), and enable_gqa "
            "leaves it to the kernel of each device whether K and V are copied. Make q (B, KV, G, D)"
        )
    return None


def _run(candidate, q, k, v):
    """Call the answer; where sizes do not meet, add what the sizes are about."""
    try:
        return candidate(q, k, v)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError | RecursionError):
            raise
        hint = (
            "folded queries are (B, KV, G, D), so that their first two axes meet those of k and "
            f"v. PyTorch said: {error}"
        )
        raise RuntimeError(hint).with_traceback(error.__traceback__) from None


def _shape_mistake(given, q, k) -> str | None:
    import torch

    B, H, _, D = q.shape
    KV = k.shape[1]
    G = H // KV
    if not isinstance(given, torch.Tensor):
        return f"return a tensor (B, H, 1, D), not {show(given)}"
    shape = tuple(given.shape)
    if shape == (B, KV, G, D) and shape != (B, H, 1, D):
        return "the output is still folded, (B, KV, G, D): bring it back to (B, H, 1, D)"
    if shape == (B, 1, H, D):
        return "the layout is (B, H, 1, D): heads come before tokens"
    if shape == (B, H, D):
        return "keep the axis of the one new token: (B, H, 1, D)"
    if shape == (B, KV, 1, D) and KV < H:
        return "there is one output per query head, not one per KV head"
    if shape != (B, H, 1, D):
        return f"the output has shape {shape}; it must be (B, H, 1, D) = {(B, H, 1, D)}"
    if given.dtype != q.dtype:
        return f"q is {q.dtype} and the output {given.dtype}: stay in the precision that is given"
    return None


def _number_mistake(given, wanted, q, k, v) -> str | None:
    import torch

    near = 1e-9 if given.dtype == torch.float64 else 1e-3  # scores near 1,000 have few digits in float32
    given, q, k, v = (x.double() for x in (given, q, k, v))

    def same(other) -> bool:
        return torch.allclose(given, other, rtol=near, atol=near)

    if same(wanted):
        return None
    if not torch.isfinite(given).all():
        return (
            "some numbers are not finite: does exp overflow? `softmax` subtracts the maximum first. Or is "
            "a whole row masked?"
        )
    return next(
        (message for message, other in _mistakes(q, k, v, wanted) if same(other)),
        "the numbers are not those of the formula: softmax(q K^T / sqrt(D)) V, each query head "
        "with the K and V of KV head h // G",
    )


def _mistakes(q, k, v, wanted):
    """Yield (what a wrong answer means, its numbers)."""
    import torch

    B, H, _, D = q.shape
    KV, T = k.shape[1], k.shape[2]
    G = H // KV
    right = [x.repeat_interleave(G, dim=1) for x in (k, v)]
    tiled = [x.repeat(1, G, 1, 1) for x in (k, v)]

    def attend(keys, values, scale=D**-0.5, axis=-1):
        return (q @ keys.transpose(2, 3) * scale).softmax(dim=axis) @ values

    tile = "query heads are dealt out in turn (tile order, h % KV); neighbours share: head h reads"
    yield f"{tile} KV head h // G", attend(*tiled)
    yield "the output is made of K: the weights belong to the values", attend(right[0], right[0])
    mixed = "K and V are shared in different orders: both must be read by h // G"
    yield mixed, attend(right[0], tiled[1])
    yield mixed, attend(tiled[0], right[1])
    yield "the scores are not scaled: divide them by sqrt(D) before the softmax", attend(*right, 1)
    yield "the scores are divided by D; it is sqrt(D)", attend(*right, 1 / D)
    yield "the scores are multiplied by sqrt(D); divide by it", attend(*right, D**0.5)
    for size, name in ((G * D, "G * D"), (H * D, "H * D"), (KV * D, "KV * D"), (T, "T"), (G, "G")):
        message = f"the scores are divided by sqrt({name}); D is the size of one head, sqrt(D)"
        yield message, attend(*right, size**-0.5)
    regrouped = wanted.view(B, KV, G, D).transpose(1, 2).reshape(B, H, 1, D)
    order = "the output heads are in another order: head h is number h % G of group h // G"
    yield order, regrouped
    yield order, wanted.view(B, G, KV, D).transpose(1, 2).reshape(B, H, 1, D)
    turned = q.reshape(B, G, KV, D).transpose(1, 2)
    dealt = ((turned @ k.transpose(2, 3) / D**0.5).softmax(-1) @ v).reshape(B, H, 1, D)
    yield f"{tile} KV head h // G, so fold to (B, KV, G, D) at once", dealt
    folded = q.reshape(B, KV, G, D)
    scores = folded @ k.transpose(2, 3) / D**0.5  # (B, KV, G, T)
    grouped = scores.softmax(dim=2) @ v
    yield "the softmax runs over the group; it must run over the keys, the last axis", (
        grouped.reshape(B, H, 1, D)
    )
    yield "there is no softmax: scores must become weights that sum to 1", (
        (scores @ v).reshape(B, H, 1, D)
    )
    seen = torch.ones(G, T, dtype=torch.bool).tril()
    causal = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1) @ v
    yield (
        "a causal mask takes the G queries for G tokens, one after the other: all of them belong to "
        "the newest token, and it sees every key"
    ), causal.reshape(B, H, 1, D)
    last = attend(right[0][:, :, :-1], right[1][:, :, :-1])
    yield "the newest key is left out: a token attends to itself too", last


def _copy_mistake(seen, case) -> str | None:
    B, H, KV, T, D, _ = case
    new = seen.largest
    numbers = 0 if new is None else prod(new.shape)
    if H > KV and numbers >= B * H * T * D:
        return (
            f"the numbers are right, but `{new.operation}` wrote a new tensor {new.shape}: a copy of "
            f"K or V for each of the {H} query heads. repeat_interleave copies, and so does a product "
            "of an expand. Fold the group into the query axis instead"
        )
    if numbers >= B * KV * T * D:
        return (
            f"the numbers are right, but `{new.operation}` wrote a new tensor {new.shape}: all of K "
            "or V is copied once. Use k and v as they are"
        )
    return None


def _source(*lines: str) -> str:
    head = (
        "def my_attention(q, k, v, mask=None):  # mask is None for one new token",
        "    B, H, _, D = q.shape  # (B, H, 1, D)",
        "    KV = k.shape[1]       # k and v are (B, KV, T, D)",
        "    G = H // KV",
    )
    return "\n".join([*head, *(f"    {line}" for line in lines), ""])


FOLD = "folded = q.reshape(B, KV, G, D)"
SCORES = "scores = folded @ k.transpose(2, 3) / D**0.5"
OUT = "out = scores.softmax(dim=-1) @ v"
BACK = "return out.reshape(B, H, 1, D)"

ATTENTION = Exercise(
    key="05-grouped-attention",
    lesson=5,
    title="Your own grouped attention",
    minutes=15,
    difficulty=2,
    importance=3,
    name="my_attention",
    task="""
One new token attends to all T keys: `q` is (B, H, 1, D), `k` and `v` are (B, KV, T, D), and
query head h reads KV head h // G.

Fold the group into the query axis, so that q is (B, KV, G, D), attend once for all heads, and
return the output, (B, H, 1, D), in q's precision. K and V must not be copied. Views are free, and the
check watches what is written to new memory. When yours is right, it runs in the live lab.""",
    hints=(
        "Heads 0 to G - 1 share KV head 0 and stand next to each other. Which reshape of q splits the "
        "heads into the two axes KV and G, and drops the axis of size 1?",
        "(B, KV, G, D) @ (B, KV, D, T) gives scores (B, KV, G, T): all queries of a group against "
        "the keys they share. Scale, softmax over the last axis, then times v.",
        "`folded = q.reshape(B, KV, G, D)`; `scores = folded @ k.transpose(2, 3) / D**0.5`; and "
        "the output goes back with `.reshape(B, H, 1, D)`.",
    ),
    stub=_source(
        "folded = ...          # (B, KV, G, D)",
        "out = ...             # (B, KV, G, D)",
        "return ...            # (B, H, 1, D)",
    ),
    solution=_source(
        f"{FOLD}                # (B, KV, G, D)",
        f"{SCORES}   # (B, KV, G, T)",
        f"{OUT}               # (B, KV, G, D)",
        BACK,
    ),
    judge=_check_attention,
    wrong={
        "tile order": _source(
            "k, v = k.repeat(1, G, 1, 1), v.repeat(1, G, 1, 1)",
            "scores = q @ k.transpose(2, 3) / D**0.5",
            "return scores.softmax(dim=-1) @ v",
        ),
        "repeats K and V": _source(
            "k, v = k.repeat_interleave(G, dim=1), v.repeat_interleave(G, dim=1)",
            "scores = q @ k.transpose(2, 3) / D**0.5",
            "return scores.softmax(dim=-1) @ v",
        ),
        "multiplies an expand": _source(
            "folded = q.reshape(B, KV, G, 1, D)",
            "k, v = (x[:, :, None].expand(-1, -1, G, -1, -1) for x in (k, v))",
            "scores = folded @ k.transpose(3, 4) / D**0.5",
            "return (scores.softmax(dim=-1) @ v).reshape(B, H, 1, D)",
        ),
        "copies K once": _source(
            FOLD, "scores = folded @ k.transpose(2, 3).contiguous() / D**0.5", OUT, BACK
        ),
        "no scale": _source(FOLD, "scores = folded @ k.transpose(2, 3)", OUT, BACK),
        "scales by D": _source(FOLD, "scores = folded @ k.transpose(2, 3) / D", OUT, BACK),
        "group before KV": _source("folded = q.reshape(B, G, KV, D)", SCORES, OUT, BACK),
        "output heads reordered": _source(
            FOLD, SCORES, OUT, "return out.transpose(1, 2).reshape(B, H, 1, D)"
        ),
        "output left folded": _source(FOLD, SCORES, OUT, "return out"),
        "softmax over the group": _source(FOLD, SCORES, "out = scores.softmax(dim=2) @ v", BACK),
        "a causal mask over the group": _source(
            "import torch.nn.functional as F",
            FOLD,
            "out = F.scaled_dot_product_attention(folded, k, v, is_causal=True)",
            BACK,
        ),
    },
)
