"""Right and wrong answers to the exercises of lessons 08 and 09, with a word of what a wrong one is told."""

from tests.teach.answers_05_07 import cell, returns, told

RIGHT: dict[str, dict[str, str]] = {}
WRONG: dict[str, list] = {}

_ABSORB = "my_absorb(high, total, out, scores, values)"
_TOP = "new = torch.maximum(high, scores.amax(1, keepdim=True))\n"
RIGHT["08-online-softmax"] = {
    name: cell(_ABSORB, body)
    for name, body in {
        "rescaled": _TOP + """w, r = (scores - new).exp(), (high - new).exp()
return new, total * r + w.sum(1, keepdim=True), out * r + w @ values""",
        "through log-sums": """both = torch.cat([high + total.log(), scores], dim=1)
new = torch.cat([high, scores], 1).max(dim=1, keepdim=True).values
w = (scores - new).exp()
return new, (both.logsumexp(1, keepdim=True) - new).exp(), out * (high - new).exp() + w @ values""",
        "in place": _TOP + """r, w = (high - new).exp(), (scores - new).exp()
total *= r
total += w.sum(1, keepdim=True)
out.mul_(r).add_(w @ values)
return new, total, out""",
        "key by key": """for j in range(scores.shape[1]):
    s = scores[:, j : j + 1]
    new = torch.maximum(high, s)
    r, w = (high - new).exp().nan_to_num(0), (s - new).exp().nan_to_num(0)
    high, total, out = new, total * r + w, out * r + w * values[j]
return high, total, out""",
        "float32": _TOP + """high, new, total, out, scores, values = (
    x.float() for x in (high, new, total, out, scores, values))
w, r = (scores - new).exp(), (high - new).exp()
return new, total * r + w.sum(1, keepdim=True), out * r + w @ values""",
        "einsum": _TOP + """w, r = torch.exp(scores - new), torch.exp(high - new)
total = r * total + torch.einsum("rn->r", w)[:, None]
return new, total, r * out + torch.einsum("rn,nd->rd", w, values)""",
        "rows in a loop": """result = []
for h, t, o, s in zip(high, total, out, scores):
    new = max(float(h), float(s.max()))
    r, w = torch.exp(h - new), torch.exp(s - new)
    result.append((torch.full_like(h, new), t * r + w.sum(), o * r + (w[:, None] * values).sum(0)))
return [torch.stack(parts) for parts in zip(*result)]""",
    }.items()
}
_PARTS = _TOP + "w, r = (scores - new).exp(), (high - new).exp()\n"
WRONG["08-online-softmax"] = told(
    _ABSORB,
    (_PARTS + "return new, total + w.sum(1, keepdim=True), out * r + w @ values", "the sum so far"),
    (_PARTS + "return new, total * r + w.sum(1, keepdim=True), out + w @ values", "the output so far"),
    (_PARTS + "return new, total + w.sum(1, keepdim=True), out + w @ values", "nothing is rescaled"),
    (_PARTS + "return new, total * r + w.sum(1, keepdim=True), (out * r + w @ values) / (total * r + "
     "w.sum(1, keepdim=True))", "divided already"),
    (_PARTS + "return new, total * r + w.sum(1), out * r + w @ values", "keepdim"),
    (_PARTS + "return new, total * r + w.sum(), out * r + w @ values", "one sum for all rows"),
    (_PARTS + "return new, total * r + w.sum(1, keepdim=True) + 1e-6, out * r + w @ values", "`total` is"),
    (_PARTS + "return new, w.sum(1, keepdim=True), w @ values", "only this tile"),
    (_PARTS + "return new, out * r + w @ values, total * r + w.sum(1, keepdim=True)", "another order"),
    ("scores -= 1\n" + _PARTS + "return new + 1, total * r + w.sum(1, keepdim=True), out * r + w @ values",
     "`total` is"),
    ("w = scores.exp()\nreturn high, total + w.sum(1, keepdim=True), out + w @ values", "old maximum"),
    (_PARTS + "scores.zero_()\nreturn new, total * r + w.sum(1, keepdim=True), out * r + w @ values",
     "changes `scores`"),
    (_PARTS + "return new.squeeze(), (total * r + w.sum(1, keepdim=True)).squeeze(), (out * r + w @ "
     "values).squeeze()", "keepdim"),
    (_PARTS + "return new.half(), (total * r + w.sum(1, keepdim=True)).half(), (out * r + w @ values).half()",
     "16 bits"),
    ("new = torch.maximum(high, scores[:, :1])\nw, r = (scores - new).exp(), (high - new).exp()\n"
     "return new, total * r + w.sum(1, keepdim=True), out * r + w @ values", "new_high"),
    (_TOP + "r, w = (high - new).exp(), scores.softmax(1)\n"
     "return new, total * r + w.sum(1, keepdim=True), out * r + w @ values", "do not divide inside a tile"),
    (_PARTS + "w = w / w.sum(1, keepdim=True)\n"
     "return new, total * r + w.sum(1, keepdim=True), out * r + w @ values", "do not divide inside a tile"),
    ("new = torch.maximum(high, scores.amax(1))\nreturn new, total, out + (scores - new).exp() @ values",
     "out + (scores - new).exp() @ values`. Give keepdim=True"),
    ("new = torch.maximum(high, scores.amax(1))\nreturn new, total, out + (scores - new).exp() @ values",
     "this was with high=a (2, 1) array, total=a (2, 1) array, out=a (2, 4) array, scores=a (2, 3) array"),
    ("new = torch.maximum(high, scores.max(1))\nreturn new, total, out", "take `.values`"),
    (_PARTS + "w = w.clamp(min=1e-4)\nreturn new, total * r + w.sum(1, keepdim=True), out * r + w @ values",
     "`total`"),
)  # fmt: skip

_MERGE = "my_merge(outs, log_sums)"
RIGHT["08-merge-parts"] = {
    name: cell(_MERGE, body)
    for name, body in {
        "logsumexp": "s = torch.logsumexp(log_sums, 0)\nreturn torch.exp(log_sums - s) @ outs, s",
        "softmax": "return log_sums.softmax(0) @ outs, log_sums.logsumexp(dim=0)",
        "by hand": """top = log_sums.max()
w = (log_sums - top).exp()
return (w[:, None] * outs).sum(0) / w.sum(), top + w.sum().log()""",
        "float32": "outs, log_sums = outs.float(), log_sums.float()\n"
        "return log_sums.softmax(0) @ outs, log_sums.logsumexp(dim=0)",
        "numpy": """outs, log_sums = outs.numpy(), log_sums.numpy()
top = log_sums.max()
w = np.exp(log_sums - top)
return w @ outs / w.sum(), top + np.log(w.sum())""",
        "python": """top = max(log_sums.tolist())
weights = [math.exp(x - top) for x in log_sums.tolist()]
total = sum(weights)
out = [sum(w * row[d] for w, row in zip(weights, outs.tolist())) / total for d in range(outs.shape[1])]
return out, top + math.log(total)""",
        "two at a time": """out, s = outs[0], log_sums[0]
for o, t in zip(outs[1:], log_sums[1:]):
    both = torch.logaddexp(s, t)
    out, s = out * (s - both).exp().nan_to_num(0) + o * (t - both).exp().nan_to_num(0), both
return out, s""",
    }.items()
}
_SUM = "s = torch.logsumexp(log_sums, 0)\n"
WRONG["08-merge-parts"] = told(
    _MERGE,
    (_SUM + "return outs.mean(0), s", "plain average"),
    (_SUM + "w = log_sums.exp2() if log_sums.abs().max() < 100 else log_sums.softmax(0)\n"
     "return w @ outs / w.sum(), s", "powers of 2"),
    ("w = log_sums.exp()\nreturn w @ outs / w.sum(), w.sum().log()", "not finite"),
    (_SUM + "return (log_sums - log_sums.max()).exp() @ outs, s", "do not sum to 1"),
    (_SUM + "return log_sums.softmax(0) @ outs, log_sums.max()", "the largest one"),
    (_SUM + "return log_sums.softmax(0) @ outs, s / math.log(2)", "base 2"),
    (_SUM + "return s, log_sums.softmax(0) @ outs", "the other order"),
    (_SUM + "return outs[log_sums.argmax()], s", "the largest part alone"),
    (_SUM + "return (log_sums.softmax(0) @ outs)[None], s", "shape"),
    (_SUM + "return log_sums.softmax(0) @ outs, s[None]", "leave out `keepdim`"),
    (_SUM + "return log_sums.softmax(0) @ outs, log_sums", "sum over the parts"),
    (_SUM + "return log_sums.softmax(0) @ outs + 1e-7, s", "not ["),
    (_SUM + "return (log_sums.softmax(0) @ outs).bfloat16(), s.bfloat16()", "16 bits"),
    ("outs *= log_sums.softmax(0)[:, None]\nreturn outs.sum(0), torch.logsumexp(log_sums, 0)",
     "changes `outs`"),
    (_SUM + "return outs.sum(0), s", "the outputs are added"),
    (_SUM + "return (log_sums * math.log(10)).softmax(0) @ outs, s", "not by powers of 10"),
    ("w = 10**log_sums\nreturn w @ outs / w.sum(), w.sum().log10()", "not by powers of 10"),
    (_SUM + "return log_sums.softmax(0) @ outs, s / math.log(10)", "base 10"),
    (_SUM + "w = log_sums[:2].softmax(0)\nreturn w @ outs[:2], s", "`out` is"),
    (_SUM + "return log_sums.softmax(0) @ outs, log_sums.exp().sum()", "the sum itself"),
)  # fmt: skip

_QUANTISE = "quantise(x, bits)"
_RANGE = """low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
scale = (high - low) / (2**bits - 1)
"""
_STEP = "step = torch.where(scale > 0, scale, 1)\n"
_CODED = _RANGE + _STEP + "codes = ((x - low) / step).round()\n"
RIGHT["09-quantise"] = {
    name: cell(_QUANTISE, body)
    for name, body in {
        "round": _CODED + "return codes, scale, low",
        "uint8": _CODED + "return codes.to(torch.uint8), scale, low",
        "floor of a half more": _RANGE + _STEP + "return ((x - low) / step + 0.5).floor().int(), scale, low",
        "float32": "x = x.float()\n" + _CODED + "return codes, scale, low",
        "numpy": """x = x.numpy()
low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
scale = (high - low) / (2**bits - 1)
return np.rint((x - low) / np.where(scale == 0, 1, scale)), scale, low""",
        "rows in a loop": """codes, scales, zeros = [], [], []
for row in x.tolist():
    low, high = min(row), max(row)
    scale = (high - low) / (2**bits - 1) or 1.0
    codes.append([round((n - low) / scale) for n in row])
    scales.append([scale])
    zeros.append([low])
return torch.tensor(codes), torch.tensor(scales, dtype=x.dtype), torch.tensor(zeros, dtype=x.dtype)""",
    }.items()
}
WRONG["09-quantise"] = told(
    _QUANTISE,
    (_CODED + "return codes.to(torch.int8), scale, low", "int8 holds -128 to 127"),
    (_CODED + "return codes, low, scale", "another order"),
    (_CODED + "return codes, low, scale.masked_fill(scale == 0, 1)", "another order"),
    (_CODED + "return scale, low, codes", "another order"),
    (_CODED + "return low, scale, codes", "another order"),
    (_RANGE + "return ((x - low) / scale).round(), scale, low", "0 / 0"),
    (_RANGE + _STEP + "return ((x - low) / step).floor(), scale, low", "nearest code"),
    (_RANGE + _STEP + "return (x - low) / step, scale, low", "round to whole"),
    (_RANGE + "scale = (high - low) / 2**bits\n" + _STEP + "return ((x - low) / step).round(), scale, low",
     "codes are 0 to"),
    ("x -= x.amin(1, keepdim=True)\n" + _CODED + "return codes, scale, low", "zero"),
    (_CODED + "x.zero_()\nreturn codes, scale, low", "changes `x`"),
    ("low, high = x.amin(), x.amax()\nscale = ((high - low) / (2**bits - 1)).expand(len(x), 1)\n"
     "return ((x - low) / scale).round(), scale, low.expand(len(x), 1)", "each row has its own"),
    (_CODED + "return codes, scale.squeeze(), low.squeeze()", "keepdim"),
    (_CODED + "return low + codes * scale, scale, low", "round to whole"),
    (_CODED + "return codes, scale", "three things"),
    (_CODED + "return codes, 1 / scale, low", "scale is inf"),
    (_CODED + "return codes, scale, low / 0", "zero is"),
    (_CODED + "return codes - 2 ** (bits - 1), scale, low", "codes are 0 to"),
    ("low, high = x.amin(0, keepdim=True), x.amax(0, keepdim=True)\nscale = (high - low) / (2**bits - 1)\n"
     "return ((x - low) / scale).round(), scale, low", "dim=1"),
)  # fmt: skip
_KEEP = "rows_to_keep(n, W, S)"
_KEPT = "[j for j in range(n) if j < S or n - j < W]"
RIGHT["09-rows-to-keep"] = returns(
    _KEEP,
    a_list=_KEPT,
    a_tuple=f"tuple({_KEPT})",
    numpy="np.flatnonzero((np.arange(n) < S) | (np.arange(n) > n - W))",
    torch="torch.arange(n)[(torch.arange(n) < S) | (n - torch.arange(n) < W)]",
    elements=f"list(np.array({_KEPT}, dtype=int))",
    whole_floats=f"[float(j) for j in {_KEPT}]",
    a_float_array=f"np.array({_KEPT}, dtype=float)",
    sorted_set="sorted(set(range(min(S, n))) | set(range(max(0, n - W + 1), n)))",
    two_ranges="list(range(min(S, n))) + list(range(max(min(S, n), n - W + 1), n))",
)
WRONG["09-rows-to-keep"] = told(
    _KEEP,
    (f"set({_KEPT})", "a set has no order"),
    (f"frozenset({_KEPT})", "a set has no order"),
    ("[j for j in range(n) if j < S or n - j <= W]", "one row too many"),
    ("[j for j in range(n) if j < S or n - j < W - 1]", "one row too few"),
    ("[j for j in range(n) if n - j < W]", "the first S tokens stay"),
    ("[j for j in range(n) if j < S or n - j < W - S]", "do not make it smaller"),
    ("[j < S or n - j < W for j in range(n)]", "not True or False"),
    (f"{_KEPT}[::-1]", "count up"),
    ("[j for j in range(n + 1) if j < S or n - j < W]", "only 0 to n - 1"),
    ("list(range(min(S, n))) + list(range(max(0, n - W + 1), n))", "twice"),
    ("list(range(n))", "can go"),
    (f"len({_KEPT})", "return a list"),
    (f"[str(j) for j in {_KEPT}]", "whole numbers"),
    (f"[j + 0.5 for j in {_KEPT}]", "whole numbers"),
    ("[j for j in range(n) if j < S or n - j < W][-W:]", "missing"),
    (f"list(range(n - W + 1, n)) if S == 0 else {_KEPT}", "only 0 to n - 1"),
    (f"sorted(set(range(n)) - set({_KEPT}))", "the rows that may go"),
)

_BITS = "bits_per_number(bits, group, w)"
RIGHT["09-bits-per-number"] = returns(
    _BITS,
    plain="bits + 2 * w / group",
    whole_group="(group * bits + w + w) / group",
    a_fraction="__import__('fractions').Fraction(group * bits + 2 * w, group)",
    numpy="np.float32(bits + 2 * w / group)",
    torch="torch.tensor(bits + 2 * w / group)",
    zero_axes="np.array(bits + 2 * w / group)",
    counted="sum([bits] * group + [w, w]) / group",
)
WRONG["09-bits-per-number"] = told(
    _BITS,
    ("bits", "the code alone"),
    ("bits + w / group", "its scale and its zero"),
    ("bits + 2 * w", "shared by the whole group"),
    ("bits * group + 2 * w", "the whole group"),
    ("bits + 2 * w / 8 / group", "w is in bits already"),
    ("bits + 2 * group / w", "turned over"),
    ("bits + 2 * w // group", "do not round"),
    ("math.ceil(bits + 2 * w / group)", "do not round"),
    ("round(bits + 2 * w / group, 1)", "do not round"),
    ("16 / (bits + 2 * w / group)", "how many times smaller"),
    ("str(bits + 2 * w / group)", "return a number"),
    ("[bits + 2 * w / group]", "return a number"),
    ("(bits + 2 * w / group) / 8", "in bytes"),
    ("torch.tensor([bits + 2 * w / group])", "return a number"),
)

_LATENT = "latent_bytes(L, H, D, latent, rope, T, b)"
_ROW, _HEADS = "L * (latent + rope) * T * b", "L * H * (D + rope + D) * T * b"
RIGHT["09-latent-bytes"] = returns(
    _LATENT,
    ints=f"({_ROW}, {_HEADS})",
    a_list=f"[{_ROW}, {_HEADS}]",
    whole_floats=f"(1.0 * {_ROW}, 1.0 * {_HEADS})",
    numpy="np.array([latent + rope, H * (2 * D + rope)]) * (L * T * b)",
    torch="tuple(torch.tensor([latent + rope, H * (2 * D + rope)]) * (L * T * b))",
    loops="(sum(T * b * (latent + rope) for _ in range(L)), "
    "sum(T * b * (2 * D + rope) for _ in range(L * H)))",
)
WRONG["09-latent-bytes"] = told(
    _LATENT,
    (f"({_ROW}, L * H * (D + D) * T * b)", "D does not include the rotary numbers"),
    (f"({_ROW}, L * H * (D + D - rope) * T * b)", "D does not include the rotary numbers"),
    (f"({_ROW}, L * H * (D + rope) * T * b)", "the values are kept as well"),
    (f"({_ROW}, L * H * 2 * (D + rope) * T * b)", "no rotary part"),
    (f"({_ROW}, L * (H * 2 * D + rope) * T * b)", "of its own"),
    (f"(2 * {_ROW}, {_HEADS})", "no factor 2"),
    (f"(L * latent * T * b, {_HEADS})", "rotary key is kept"),
    (f"(L * H * (latent + rope) * T * b, {_HEADS})", "serves all heads"),
    (f"({_HEADS}, {_ROW})", "the other order"),
    ("(L * (latent + rope) * T, L * H * (D + rope + D) * T)", "b bytes"),
    (f"({_ROW}, {_HEADS} / 7)", "fraction"),
    (f"(np.float32({_ROW} + 1), {_HEADS})", "`kept`"),
    (_ROW, "return 2 numbers"),
    (f"({_ROW}, {_HEADS} // H)", "each of H heads"),
    (f"(8 * {_ROW}, 8 * {_HEADS})", "in bits"),
    (f"({_ROW}, None)", "`expanded` is None"),
)
