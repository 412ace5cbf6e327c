"""Wrong C: one slip each in the sources as they are, which the comparisons of test_native reject."""

MUTANTS = {  # what is wrong: (file, what stands there, what the slip writes)
    "lanes without a key get weight": (
        "attention.h",
        "= -INFINITY;\n    }\n}",
        "= 0;\n    }\n}",
    ),
    "the running output is not rescaled": (
        "attention.h",
        "out + i * dim + d) * rescale",
        "out + i * dim + d)",
    ),
    "the running sum is not rescaled": (
        "attention.h",
        "sum[i] *= rescale;",
        "",
    ),
    "the block's maximum is forgotten": (
        "attention.h",
        "            top[i] = now;\n",
        "",
    ),
    "the maximum starts at 0": (
        "attention.h",
        "top[i] = -INFINITY, sum[i]",
        "top[i] = 0, sum[i]",
    ),
    "a NaN is taken for nothing": (
        "vectors.h",
        " | (x != x)",
        "",
    ),
    "a block without weight has no base": (
        "attention.h",
        "now > -INFINITY ? now : 0",
        "now",
    ),
    "parts are merged without their weights": (
        "attention.h",
        "out[d] += weight * outs",
        "out[d] += outs",
    ),
    "the last block is cut short": (
        "attention.h",
        "for (int64_t t = first; t < last; t += BLOCK)",
        "for (int64_t t = first; t + BLOCK <= last; t += BLOCK)",
    ),
    "scores are not scaled": (
        "attention.c",
        "1 / sqrtf((float)dim)",
        "1",
    ),
    "every head reads the first head's keys": (
        "attention.c",
        "dim, k[h], v[h]",
        "dim, k[0], v[0]",
    ),
    "a member's share starts one key late": (
        "team.h",
        "*first = grains * member / team * grain",
        "*first = (grains * member / team + (member > 0)) * grain",
    ),
    "rows behind the last eight are dropped": (
        "product.h",
        "for (int64_t r = first + apart * count; r < last; r++)",
        "for (int64_t r = last; r < last; r++)",
    ),
    "the new key is not written": (
        "step.c",
        "rotate(k + h * dim, cosine, sine, dim, 1, ks + position * dim);",
        "",
    ),
    "the new key is not rotated": (
        "step.c",
        "rotate(k + h * dim, cosine, sine, dim, 1, ks + position * dim);",
        "memcpy(ks + position * dim, k + h * dim, sizeof(float) * dim);",
    ),
    "the new value is not written": (
        "step.c",
        "memcpy(vs + position * dim, v + h * dim, sizeof(float) * dim);",
        "",
    ),
    "the token does not see itself": (
        "step.c",
        "share(position + 1, 1, me, team, &first, &last);\n    for (int h = 0; h < s->num_kv_heads",
        "share(position, 1, me, team, &first, &last);\n    for (int h = 0; h < s->num_kv_heads",
    ),
    "gate and up change places": (
        "step.c",
        "gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i]",
        "gate[i] = up[i] / (1 + expf(-up[i])) * gate[i]",
    ),
    "the residual is lost": (
        "step.c",
        "d->x[i] += y[i];",
        "d->x[i] = y[i];",
    ),
    "the norm forgets eps": (
        "step.c",
        "/ size + eps",
        "/ size",
    ),
}
