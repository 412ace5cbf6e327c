"""Right and wrong answers to the exercises of lessons 05 to 07, with a word of what a wrong one is told."""

import textwrap

HEAD = "import math\nimport statistics\n\nimport numpy as np\nimport torch\n\n\n"


def cell(signature: str, body: str) -> str:
    """Return a cell that defines one function."""
    return f"{HEAD}def {signature}:\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


def returns(signature: str, **expressions: str) -> dict[str, str]:
    """Return cells of one expression each, by name."""
    return {name: cell(signature, f"return {text}") for name, text in expressions.items()}


def told(signature: str, *cases) -> list:
    """Return (cell, words) for cases (body or expression, words of the message)."""
    return [
        (cell(signature, body if "\n" in body or "return" in body else f"return {body}"), words)
        for body, words in cases
    ]


RIGHT: dict[str, dict[str, str]] = {}
WRONG: dict[str, list] = {}

_GROUP = "query_heads_of(j, H, KV)"
RIGHT["05-kv-head-of"] = returns(
    _GROUP,
    a_list="list(range(j * (H // KV), (j + 1) * (H // KV)))",
    a_range="range(H // KV * j, H // KV * j + H // KV)",
    a_search="[h for h in range(H) if h // (H // KV) == j]",
    numpy="np.arange(H).reshape(KV, -1)[j]",
    torch="torch.arange(H).view(KV, H // KV)[j]",
    a_tuple="tuple(int(h) for h in np.split(np.arange(H), KV)[j])",
    whole_floats="[j * (H / KV) + i for i in range(H // KV)]",
    elements="list(torch.arange(H).chunk(KV)[j])",
)
WRONG["05-kv-head-of"] = told(
    _GROUP,
    ("list(range(j, H, KV))", "tile order"),
    ("list(range(j * KV, (j + 1) * KV))", "the size of a group"),
    ("list(range(j, j + H // KV))", "group j begins at j * G"),
    ("list(range(j * (H // KV), (j + 1) * (H // KV) - 1))", "one too few"),
    ("list(range(j * (H // KV), (j + 1) * (H // KV) + 1))", "one too many"),
    ("list(range(j * (H // KV) + 1, (j + 1) * (H // KV) + 1))", "count from 0"),
    ("list(range(H - (j + 1) * (H // KV), H - j * (H // KV)))", "the other way"),
    ("[j]", "a group has G of them"),
    ("list(range(H))", "that is MQA"),
    ("j // (H // KV)", "return a list"),
    ("set(range(j * (H // KV), (j + 1) * (H // KV)))", "a set has no order"),
    ("[h // (H // KV) == j for h in range(H)]", "not True or False"),
    ("list(range(j * (H // KV), (j + 1) * (H // KV)))[::-1]", "count up"),
    ("[str(h) for h in range(j * (H // KV), (j + 1) * (H // KV))]", "whole numbers"),
)

_MOVED = "bytes_moved(H, KV, D, T, b)"
RIGHT["05-bytes-moved"] = returns(
    _MOVED,
    ints="(2 * KV * T * D * b, 2 * (KV + 2 * H) * T * D * b)",
    a_list="[2 * KV * T * D * b, 2 * KV * T * D * b + 4 * H * T * D * b]",
    numpy="np.array([KV, KV + 2 * H]) * 2 * T * D * b",
    torch="torch.tensor([KV, KV + H + H]) * (2 * T * D * b)",
    whole_floats="(2.0 * KV * T * D * b, 2.0 * (KV + 2 * H) * T * D * b)",
    loops="(sum(2 * T * D * b for _ in range(KV)), sum(2 * T * D * b for _ in range(KV + 2 * H)))",
)
WRONG["05-bytes-moved"] = told(
    _MOVED,
    ("(KV * T * D * b, (KV + 2 * H) * T * D * b)", "both are read"),
    ("(2 * H * T * D * b, 2 * (KV + 2 * H) * T * D * b)", "once for its whole group"),
    ("(2 * KV * T * D, 2 * (KV + 2 * H) * T * D)", "each has b bytes"),
    ("(2 * KV * T * D * b, 2 * H * T * D * b)", "only reading the copies"),
    ("(2 * KV * T * D * b, 2 * (KV + H) * T * D * b)", "they move twice"),
    ("(2 * KV * T * D * b, 4 * H * T * D * b)", "the KV heads themselves"),
    ("(2 * KV * T * D * b, 2 * KV * T * D * b)", "more than `shared`"),
    ("(2 * (KV + 2 * H) * T * D * b, 2 * KV * T * D * b)", "the other order"),
    ("(2 * KV * T * D * b, (KV + 2 * H) * T * D * b)", "`repeated`"),
    ("2 * KV * T * D * b", "return 2 numbers"),
    ("(2 * KV * T * D * b / 3, 2 * (KV + 2 * H) * T * D * b)", "fraction"),
    ("(np.float32(2 * KV * T * D * b), np.float32(2 * (KV + 2 * H) * T * D * b + 1))", "`repeated`"),
    ("(str(2 * KV * T * D * b), 2 * (KV + 2 * H) * T * D * b)", "is text"),
    ("(2 * KV * D * b, 2 * (KV + 2 * H) * D * b)", "T rows"),
)

_ATTEND = "my_attention(q, k, v, mask=None)"
_SIZES = "B, H, _, D = q.shape\nKV = k.shape[1]\nG = H // KV\nfolded = q.reshape(B, KV, G, D)\n"
RIGHT["05-grouped-attention"] = {
    name: cell(_ATTEND, _SIZES + body)
    for name, body in {
        "products": "weights = (folded @ k.mT / D**0.5).softmax(-1)\n"
        "return (weights @ v).reshape(B, H, 1, D)",
        "einsum": "scores = torch.einsum('bkgd,bktd->bkgt', folded, k) / D**0.5\n"
        "out = torch.einsum('bkgt,bktd->bkgd', scores.softmax(-1), v)\nreturn out.reshape(q.shape)",
        "the fused kernel": "out = torch.nn.functional.scaled_dot_product_attention(folded, k, v)\n"
        "return out.reshape(B, H, 1, D)",
        "a softmax by hand": "s = folded @ k.transpose(2, 3) / math.sqrt(D)\n"
        "w = (s - s.amax(-1, keepdim=True)).exp()\nw = w / w.sum(-1, keepdim=True)\n"
        "return (w @ v).view(B, H, 1, D)",
        "queries scaled first": "w = torch.matmul(folded * D**-0.5, k.transpose(-1, -2)).softmax(dim=3)\n"
        "return torch.matmul(w, v).flatten(1, 2).unsqueeze(2)",
        "divided at the end": "s = folded @ k.transpose(2, 3) / D**0.5\n"
        "w = (s - s.max(-1, keepdim=True).values).exp()\n"
        "return ((w @ v) / w.sum(-1, keepdim=True)).reshape(B, H, 1, D)",
        "a softmax in float64": "w = (folded @ k.mT / D**0.5).double().softmax(-1).to(v.dtype)\n"
        "return (w @ v).reshape(B, H, 1, D)",
    }.items()
}
_LOOP = """
out = torch.empty_like(q)
for h in range(H):
    w = (q[:, h] @ k[:, h // G].transpose(1, 2) / D**0.5).softmax(-1)
    out[:, h] = w @ v[:, h // G]
return out"""
_LOOP_GROUPS = """
out = []
for j in range(KV):
    w = (folded[:, j] @ k[:, j].transpose(1, 2) / D**0.5).softmax(-1)
    out.append(w @ v[:, j])
return torch.stack(out, 1).reshape(B, H, 1, D)"""
_WEIGHTS = "weights = (folded @ k.mT / D**0.5).softmax(-1)\n"
WRONG["05-grouped-attention"] = [
    (cell(_ATTEND, _SIZES + body), words)
    for body, words in (
        (_LOOP, "in a loop"),
        (_LOOP_GROUPS, "in a loop"),
        ("return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)", "enable_gqa"),
        ("k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)\n"
         "return ((q @ k.mT / D**0.5).softmax(-1) @ v)", "Fold the group"),
        ("return ((folded @ k.mT / k.shape[2]**0.5).softmax(-1) @ v).reshape(B, H, 1, D)",
         "divided by sqrt(T)"),
        ("return ((folded @ k.mT).softmax(-1) @ v).reshape(B, H, 1, D)", "not scaled"),
        (_WEIGHTS + "return (weights @ v).reshape(B, 1, H, D)", "heads come before tokens"),
        (_WEIGHTS + "return (weights @ v)", "still folded"),
        (_WEIGHTS + "return weights @ v[:, :, :-1] if False else (weights @ k).reshape(B, H, 1, D)",
         "values"),
        ("w = (folded @ k.mT / D**0.5).exp()\nw = w / w.sum(-1, keepdim=True)\n"
         "return (w @ v).reshape(B, H, 1, D)", "overflow"),
        ("q /= D**0.5\nreturn ((folded @ k.mT).softmax(-1) @ v).reshape(B, H, 1, D)", "changes `q`"),
        ("return ((folded.float() @ k.float().mT / D**0.5).softmax(-1) @ v.float()).reshape(B, H, 1, D)",
         "stay in the precision"),
        (_WEIGHTS + "return (weights @ v).reshape(B, H, 1, D).float()", "stay in the precision"),
        (_WEIGHTS + "return (weights @ v).reshape(B, H, 1, D) + 1e-6", "not those of the formula"),
        ("k, v = k[:, :, -16:], v[:, :, -16:]\nreturn ((folded @ k.mT / D**0.5).softmax(-1) @ v)"
         ".reshape(B, H, 1, D)", "not those of the formula"),
        ("dealt = q.reshape(B, G, KV, D).transpose(1, 2)\n"
         "return ((dealt @ k.mT / D**0.5).softmax(-1) @ v).reshape(B, H, 1, D)",
         "fold to (B, KV, G, D) at once"),
        ("return (folded[:, :, :, None] * k[:, :, None]).sum(-1).softmax(-1)", "shape"),
        ("out = torch.nn.functional.scaled_dot_product_attention(folded.double(), k.double(), v.double())\n"
         "return out.to(q.dtype).reshape(B, H, 1, D)", "K or V is copied once"),
    )
]  # fmt: skip

_REPORT = "report(requests)"
RIGHT["06-token-times"] = {
    "statistics": cell(_REPORT, """
        each = [(t[-1] - t[0]) / (len(t) - 1) for t in requests if len(t) > 1]
        slowest = max(b - a for t in requests for a, b in zip(t, t[1:]))
        return statistics.mean(t[0] for t in requests), statistics.mean(each), slowest
    """),
    "numpy": cell(_REPORT, """
        gaps = [np.diff(t) for t in requests if len(t) > 1]
        tpot = np.mean([g.mean() for g in gaps])
        return np.array([np.mean([t[0] for t in requests]), tpot, np.concatenate(gaps).max()])
    """),
    "torch": cell(_REPORT, """
        gaps = [torch.tensor(t, dtype=torch.float64).diff() for t in requests if len(t) > 1]
        ttft = torch.tensor([t[0] for t in requests], dtype=torch.float64).mean()
        return ttft, torch.stack([g.mean() for g in gaps]).mean(), max(g.max() for g in gaps)
    """),
    "float32": cell(_REPORT, """
        gaps = [np.diff(np.array(t, dtype=np.float32)) for t in requests if len(t) > 1]
        ttft = np.mean(np.array([t[0] for t in requests], dtype=np.float32))
        return ttft, np.mean([np.mean(g) for g in gaps], dtype=np.float32), np.concatenate(gaps).max()
    """),
    "loops": cell(_REPORT, """
        first, decode, counted, slowest = 0.0, 0.0, 0, 0.0
        for times in requests:
            first += times[0]
            if len(times) == 1:
                continue
            counted += 1
            decode += (times[-1] - times[0]) / (len(times) - 1)
            for i in range(1, len(times)):
                if times[i] - times[i - 1] > slowest:
                    slowest = times[i] - times[i - 1]
        return [first / len(requests), decode / counted, slowest]
    """),
}
_EACH = "each = [(t[-1] - t[0]) / (len(t) - 1) for t in requests if len(t) > 1]\n"
_GAPS = "gaps = [b - a for t in requests for a, b in zip(t, t[1:])]\n"
_TTFT, _TPOT = "sum(t[0] for t in requests) / len(requests)", "sum(each) / len(each)"
_WORST = """
for t in requests:
    worst = max([b - a for a, b in zip(t, t[1:])], default=0)
"""
WRONG["06-token-times"] = [
    (cell(_REPORT, _EACH + _GAPS + body), words)
    for body, words in (
        (f"{_WORST}return {_TTFT}, {_TPOT}, worst", "the last request alone"),
        (f"t = max(requests, key=len)\nreturn {_TTFT}, {_TPOT}, max(b - a for a, b in zip(t, t[1:]))",
         "the longest counts"),
        (f"t = requests[0]\nreturn {_TTFT}, {_TPOT}, max([b - a for a, b in zip(t, t[1:])], default=0)",
         "the first request alone"),
        (f"return {_TTFT}, {_TPOT}, gaps[-1]", "the last gap"),
        (f"return {_TTFT}, {_TPOT}, max(t[-1] - t[-2] for t in requests if len(t) > 1)",
         "last gap of each request"),
        (f"return {_TTFT}, {_TPOT}, max(t[1] - t[0] for t in requests if len(t) > 1)",
         "first gap of each request"),
        (f"return {_TTFT}, sum(gaps) / len(gaps), max(gaps)", "all ITLs together"),
        (f"return {_TTFT}, statistics.median(each), max(gaps)", "median"),
        (f"return {_TTFT}, sum(each) / len(requests), max(gaps)", "leave it out of the mean"),
        (f"return {_TTFT}, {_TPOT}, sorted(gaps)[-2] if len(gaps) > 1 else gaps[0]", "second longest"),
        (f"return requests[0][0], {_TPOT}, max(gaps)", "the first request alone"),
        (f"return requests[-1][0], {_TPOT}, max(gaps)", "the last request alone"),
        (f"return {_TTFT}, each[-1], max(gaps)", "the last request alone"),
        (f"return {_TTFT}, {_TPOT}, max(max(t) for t in requests)", "end-to-end"),
        (f"return 1000 * {_TTFT}, 1000 * {_TPOT}, 1000 * max(gaps)", "milliseconds"),
        (f"return {_TPOT}, {_TTFT}, max(gaps)", "another order"),
        (f"return round({_TTFT}, 2), {_TPOT}, max(gaps)", "do not round"),
        (f"requests.sort()\nreturn {_TTFT}, {_TPOT}, max(gaps)", "changes `requests`"),
        (f"return {_TTFT}, {_TPOT}, str(max(gaps))", "a number of seconds"),
        (f"return {_TTFT}, {_TPOT}", "return three numbers"),
        (f"return {_TTFT}, sum((t[-1] - t[0]) / (len(t) - 1) for t in requests) / len(each), max(gaps)",
         "requests="),
    )
]  # fmt: skip

_FLOOR = "decode_floor(weight_bytes, bytes_per_token, contexts, flops, gb_per_s, tflop_per_s)"
_MOVED_BYTES = "(weight_bytes + sum(contexts) * bytes_per_token)"
_READ, _COMPUTE = f"{_MOVED_BYTES} / (gb_per_s * 1e9)", "flops / (tflop_per_s * 1e12)"
RIGHT["06-decode-floor"] = {
    **returns(
        _FLOOR,
        plain=f"max({_READ}, {_COMPUTE})",
        numpy=f"np.maximum({_READ}, {_COMPUTE})",
        torch=f"torch.maximum(torch.tensor({_READ}), torch.tensor({_COMPUTE}))",
        float32=f"np.float32(max({_READ}, {_COMPUTE}))",
        divided_first=f"max({_MOVED_BYTES} / 10**9 / gb_per_s, flops / 10**12 / tflop_per_s)",
    ),
    "loops": cell(_FLOOR, f"""
        moved = weight_bytes
        for tokens in contexts:
            moved += tokens * bytes_per_token
        reading, arithmetic = moved / (gb_per_s * 1e9), {_COMPUTE}
        if reading > arithmetic:
            return reading
        return arithmetic
    """),
}
WRONG["06-decode-floor"] = told(
    _FLOOR,
    (f"max({_READ}, 2 * {_COMPUTE})", "counts multiplications and additions already"),
    (f"max({_READ}, len(contexts) * {_COMPUTE})", "do not multiply by the sequences"),
    (f"max({_READ}, {_COMPUTE} / max(1, len(contexts)))", "do not divide by the sequences"),
    (f"max({_READ}, {_COMPUTE} / 2)", "do not halve"),
    (f"{_READ} + {_COMPUTE}", "at the same time"),
    (f"min({_READ}, {_COMPUTE})", "reading takes longer"),
    (_READ, "arithmetic of the batch takes longer"),
    (_COMPUTE, "reading takes longer"),
    (f"max((len(contexts) * weight_bytes + sum(contexts) * bytes_per_token) / (gb_per_s * 1e9), {_COMPUTE})",
     "read once for the whole batch"),
    (f"max((weight_bytes + max(contexts, default=0) * bytes_per_token) / (gb_per_s * 1e9), {_COMPUTE})",
     "just one of them"),
    (f"max((weight_bytes + sum(contexts) * bytes_per_token / max(1, len(contexts))) / (gb_per_s * 1e9), "
     f"{_COMPUTE})", "mean"),
    (f"max({_MOVED_BYTES} / (gb_per_s * 2**30), {_COMPUTE})", "2^30"),
    (f"1000 * max({_READ}, {_COMPUTE})", "milliseconds"),
    (f"max({_MOVED_BYTES} / gb_per_s, flops / tflop_per_s)", "10^9"),
    (f"round(max({_READ}, {_COMPUTE}), 4)", "do not round"),
    (f"contexts.sort()\nreturn max({_READ}, {_COMPUTE})", "changes `contexts`"),
    (f"1 / max({_READ}, {_COMPUTE})", "steps per second"),
    (f"max({_READ}, 1000 * {_COMPUTE})", "10^9 is a GFLOP"),
    ("0", "less than the step needs"),
    (f"({_READ}, {_COMPUTE})", "one number"),
    ("max((weight_bytes + max(contexts) * len(contexts) * bytes_per_token) / (gb_per_s * 1e9), "
     f"{_COMPUTE})", "padding"),
    (f"max((weight_bytes + max(contexts) / max(contexts) * sum(contexts) * bytes_per_token) / (gb_per_s * "
     f"1e9), {_COMPUTE})", "contexts=[]"),
)  # fmt: skip

_BATCH = "compute_bound_batch(tflop_per_s, gb_per_s, bytes_per_element)"
_EXACT = "tflop_per_s * 1e12 * bytes_per_element / (2 * gb_per_s * 1e9)"
RIGHT["06-compute-bound-batch"] = {
    **returns(
        _BATCH,
        ceil=f"math.ceil({_EXACT})",
        hint_2="math.ceil((bytes_per_element / (gb_per_s * 1e9)) / (2 / (tflop_per_s * 1e12)))",
        hint_2_other="math.ceil(bytes_per_element / (gb_per_s * 1e9) * (tflop_per_s * 1e12) / 2)",
        a_whole_float=f"float(math.ceil({_EXACT}))",
        numpy=f"np.ceil({_EXACT})",
        torch=f"torch.ceil(torch.tensor({_EXACT}, dtype=torch.float64)).int()",
        float32="np.ceil(np.float32(tflop_per_s) * 500 * bytes_per_element / np.float32(gb_per_s))",
        negative_floor=f"-int(-({_EXACT}) // 1)",
    ),
    "a loop": cell(_BATCH, """
        batch = 1
        while 2 * batch / (tflop_per_s * 1e12) < bytes_per_element / (gb_per_s * 1e9):
            batch += 1
        return batch
    """),
}
WRONG["06-compute-bound-batch"] = told(
    _BATCH,
    (f"2 * math.ceil({_EXACT} / 2)", "round up to the next whole"),
    (f"int({_EXACT}) + 1", "one sequence fewer is enough"),
    (f"round({_EXACT})", "round up"),
    (f"int({_EXACT})", "round up"),
    (_EXACT, "math.ceil"),
    (f"math.ceil(2 * {_EXACT})", "a multiplication and an addition"),
    (f"math.ceil({_EXACT} / 2)", "half"),
    ("math.ceil(tflop_per_s * 1e12 / (gb_per_s * 1e9))", "16 bits only"),
    ("math.ceil(tflop_per_s * bytes_per_element / (2 * gb_per_s))", "differ by 1,000"),
    ("math.ceil(2 * gb_per_s * 1e9 / (tflop_per_s * 1e12 * bytes_per_element))", "upside down"),
    (f"math.ceil({_EXACT}) + 1", "one sequence fewer is enough"),
    ("math.ceil(tflop_per_s * 1e12 * bytes_per_element / (2 * gb_per_s * 2**30))", "2^30"),
    (f"str(math.ceil({_EXACT}))", "text"),
    (f"[math.ceil({_EXACT})]", "one whole number"),
    (f"5 * math.ceil({_EXACT} / 5)", "round up to the next whole"),
    (f"math.ceil(round({_EXACT}, 2))", "round up"),
    (f"math.ceil({_EXACT} - 0.01)", "round up"),
)

_COST = "cat_cost(p, n, row)"
_WRITTEN, _PEAK = "row * (p + n * p + n * (n + 1) // 2)", "(row * (2 * (p + n) - 1) if n else row * p)"
RIGHT["07-cat-cost"] = {
    **returns(
        _COST,
        formula=f"({_WRITTEN}, {_PEAK})",
        a_sum=f"(row * sum(range(p, p + n + 1)), {_PEAK})",
        whole_floats=f"(row * (p + n * p + n * (n + 1) / 2), float({_PEAK}))",
        numpy=f"np.array([row * np.arange(p, p + n + 1).sum(), {_PEAK}])",
        torch=f"(row * torch.arange(p, p + n + 1).sum(), torch.tensor({_PEAK}))",
    ),
    "a loop": cell(_COST, """
        held = written = peak = p * row
        for _ in range(n):
            new = held + row
            written, peak, held = written + new, max(peak, held + new), new
        return [written, peak]
    """),
}
WRONG["07-cat-cost"] = told(
    _COST,
    (f"({_WRITTEN}, row * (2 * (p + n)) if n else row * p)", "do not count the row that comes in"),
    (f"({_WRITTEN}, row * 2 * (p + n))", "do not count the row that comes in"),
    (f"({_WRITTEN}, row * (2 * (p + n) - (n > 0)))", "do not count the rows that come in"),
    (f"({_WRITTEN}, 2 * {_PEAK})", "`peak` is twice as much: `row` is K and V already"),
    (f"({_WRITTEN}, row * (p + n))", "the old tensors are still there"),
    (f"({_WRITTEN}, row * (2 * (p + n) - 1))", "nothing old"),
    (f"({_PEAK}, {_WRITTEN})", "the other order"),
    (f"(2 * {_WRITTEN}, 2 * {_PEAK})", "`row` is K and V already"),
    (f"(row * (p + n), {_PEAK})", "each row once"),
    (f"(row * (p + n * p + n * (n - 1) // 2), {_PEAK})", "the new row is written as well"),
    (f"(row * (p + n) * (p + n + 1) // 2, {_PEAK})", "in one update"),
    (f"(row * (n * p + n * (n + 1) // 2), {_PEAK})", "the first update"),
    (f"(row * (p + 2 * (n * p + n * (n - 1) // 2) + n), {_PEAK})", "read"),
    (f"(row * (p + n * p + n * (n + 1) / 2) + 0.5, {_PEAK})", "fraction"),
    (f"(p + n * p + n * (n + 1) // 2, {_PEAK})", "counts rows"),
    (f"({_WRITTEN}, row * (2 * (p + n) - 2) if n else row * p)", "p + n - 1 rows"),
    (_WRITTEN, "return 2 numbers"),
)

_MASK = "buffer_mask(start, num_new, max_seq_len)"
RIGHT["07-buffer-mask"] = {
    **returns(
        _MASK,
        tril="torch.ones(num_new, max_seq_len, dtype=torch.bool).tril(start)",
        compared="torch.arange(max_seq_len) <= torch.arange(start, start + num_new)[:, None]",
        cut="torch.ones(max_seq_len, max_seq_len, dtype=torch.bool).tril()[start : start + num_new]",
        not_triu="~torch.ones(num_new, max_seq_len).triu(start + 1).bool()",
        numpy="torch.from_numpy(np.tril(np.ones((num_new, max_seq_len), dtype=bool), start))",
        python="torch.tensor([[j <= start + i for j in range(max_seq_len)] for i in range(num_new)])",
    ),
    "loops": cell(_MASK, """
        mask = torch.zeros(num_new, max_seq_len, dtype=torch.bool)
        for i in range(num_new):
            mask[i, : start + i + 1] = True
        return mask
    """),
}
_ONES = "torch.ones(num_new, max_seq_len, dtype=torch.bool)"
WRONG["07-buffer-mask"] = told(
    _MASK,
    (f"{_ONES}.tril(max_seq_len - num_new)", "bottom right"),
    (f"{_ONES}.tril()", "not token 0"),
    (_ONES, "the whole buffer"),
    (f"{_ONES}.tril(start - 1)", "its own slot"),
    (f"{_ONES}.tril(start + 1)", "never written"),
    (f"~{_ONES}.tril(start)", "the opposite"),
    (f"{_ONES}.tril(start).int()", "return bools"),
    (f"{_ONES}.tril(start).T", "not the other way round"),
    ("torch.ones(num_new, start + num_new, dtype=torch.bool).tril(start)", "every slot needs a column"),
    (f"{_ONES}.tril(start)[None]", "the shape must be"),
    (f"{_ONES}.tril(start).tolist()", "return a tensor"),
    (f"{_ONES}.tril(start)[0]", "a row of its own"),
    (f"{_ONES}.tril(start) & {_ONES}.triu(start)", "the old rows"),
    (f"{_ONES}.tril(start) & (torch.arange(max_seq_len) >= start)", "the old rows"),
    (f"{_ONES}.tril(num_new)", "not num_new"),
    ("torch.zeros(num_new, max_seq_len).masked_fill(torch.ones(num_new, max_seq_len).triu(start + 1) > 0, "
     "-torch.inf)", "return bools"),
)  # fmt: skip
