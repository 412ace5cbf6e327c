/* One query a sequence against cached keys and values: every row read once, no score kept. */
#ifndef KVLIB_ATTENTION_H
#define KVLIB_ATTENTION_H

#include "team.h"
#include "vectors.h"

#define STREAMS 4                  /* places of the keys that are read side by side */
#define DEPTH 16                   /* rows of each of them in a block */
#define BLOCK (STREAMS * DEPTH)    /* keys of a block; its scores are all that is kept */
#define MOST_QUERIES 64            /* query heads that share one KV head */
#define MOST_DIM 256

/* Scores of `count` queries against 16 keys that lie as columns: s[i] = q[i] . k. */
INLINE void score(int count, const float *q, int dim, const vec *columns, float *s) {
    vec acc[16];
    for (int i = 0; i < count; i++) acc[i] = (vec){0};
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < count; i++) acc[i] += columns[d] * q[i * dim + d];
    for (int i = 0; i < count; i++) store(s + i * BLOCK, acc[i]);
}

/* Add p[i] v over the block's values to `count` outputs, `width` vectors of each at a time. */
INLINE void gather(int count, int width, const float *p, const float *const *rows, int num, int dim,
                   int at, float *out) {
    vec acc[32];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < width; j++) acc[i * width + j] = load(out + i * dim + at + j * LANES);
    for (int t = 0; t < num; t++) {
        vec v[8];
        for (int j = 0; j < width; j++) v[j] = load(rows[t] + at + j * LANES);
        for (int i = 0; i < count; i++)
            for (int j = 0; j < width; j++) acc[i * width + j] += v[j] * p[i * BLOCK + t];
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < width; j++) store(out + i * dim + at + j * LANES, acc[i * width + j]);
}

/* Take `num` keys and values (at most BLOCK) into the running softmax of `group` queries. */
static void attend_block(const float *q, int group, int dim, const float *const *k, const float *const *v,
                         int num, float *out, float *top, float *sum) {
    static const float nothing[MOST_DIM] = {0};
    float s[MOST_QUERIES * BLOCK];
    vec columns[MOST_DIM];
    for (int t = 0; t < num; t += LANES) {
        for (int d = 0; d < dim; d += LANES) {
            for (int i = 0; i < LANES; i++) columns[d + i] = load((t + i < num ? k[t + i] : nothing) + d);
            transpose(columns + d);
        }
        int i = 0;
        for (; i + 16 <= group; i += 16) score(16, q + i * dim, dim, columns, s + i * BLOCK + t);
        for (; i + 4 <= group; i += 4) score(4, q + i * dim, dim, columns, s + i * BLOCK + t);
        for (; i + 3 <= group; i += 3) score(3, q + i * dim, dim, columns, s + i * BLOCK + t);
        for (; i < group; i++) score(1, q + i * dim, dim, columns, s + i * BLOCK + t);
    }
    for (int i = 0; i < group; i++) {
        float *row = s + i * BLOCK;
        for (int t = num; t % LANES; t++) row[t] = -INFINITY; /* lanes without a key weigh nothing */
        vec most = all(top[i]), total = {0};
        for (int t = 0; t < num; t += LANES) most = larger(most, load(row + t));
        float now = max_of(most), rescale = expf(top[i] - now);
        for (int t = 0; t < num; t += LANES) {
            vec weight = exp_of(load(row + t) - now);
            store(row + t, weight);
            total += weight;
        }
        for (int d = 0; d < dim; d += LANES) store(out + i * dim + d, load(out + i * dim + d) * rescale);
        sum[i] = sum[i] * rescale + sum_of(total);
        top[i] = now;
    }
    int at = 0;
    for (; at + 4 * LANES <= dim; at += 4 * LANES) {
        int i = 0;
        for (; i + 6 <= group; i += 6) gather(6, 4, s + i * BLOCK, v, num, dim, at, out + i * dim);
        for (; i + 4 <= group; i += 4) gather(4, 4, s + i * BLOCK, v, num, dim, at, out + i * dim);
        for (; i + 3 <= group; i += 3) gather(3, 4, s + i * BLOCK, v, num, dim, at, out + i * dim);
        for (; i < group; i++) gather(1, 4, s + i * BLOCK, v, num, dim, at, out + i * dim);
    }
    for (; at < dim; at += LANES)
        for (int i = 0; i < group; i++) gather(1, 1, s + i * BLOCK, v, num, dim, at, out + i * dim);
}

/* Attend `group` queries of one KV head, already scaled, to its keys [first, last).
 * out (group, dim) is left unnormalised; top and sum are the softmax's running maximum and sum. */
static void attend_part(const float *q, int group, int dim, const float *k, const float *v, int64_t first,
                        int64_t last, float *out, float *top, float *sum) {
    const float *ks[BLOCK], *vs[BLOCK];
    memset(out, 0, sizeof(float) * group * dim);
    for (int i = 0; i < group; i++) top[i] = -INFINITY, sum[i] = 0;
    int64_t blocks = (last - first) / BLOCK, stride = blocks * DEPTH;
    for (int64_t b = 0; b < blocks; b++) {
        for (int t = 0; t < BLOCK; t++) {
            int64_t row = first + t % STREAMS * stride + b * DEPTH + t / STREAMS;
            ks[t] = k + row * dim, vs[t] = v + row * dim;
        }
        attend_block(q, group, dim, ks, vs, BLOCK, out, top, sum);
    }
    first += blocks * BLOCK;
    for (int64_t row = first; row < last; row++) ks[row - first] = k + row * dim, vs[row - first] = v + row * dim;
    if (last > first) attend_block(q, group, dim, ks, vs, (int)(last - first), out, top, sum);
}

/* Merge `parts` partial softmaxes of one query: each weighs e^(its maximum - the overall one). */
static void merge_parts(int parts, int64_t step, const float *outs, const float *tops, const float *sums,
                        int64_t num_step, int dim, float *out) {
    float top = -INFINITY, sum = 0;
    for (int p = 0; p < parts; p++) top = tops[p * num_step] > top ? tops[p * num_step] : top;
    memset(out, 0, sizeof(float) * dim);
    for (int p = 0; p < parts; p++) {
        float weight = expf(tops[p * num_step] - top); /* 0 for a part without keys */
        sum += weight * sums[p * num_step];
        for (int d = 0; d < dim; d++) out[d] += weight * outs[p * step + d];
    }
    for (int d = 0; d < dim; d++) out[d] /= sum;
}

#endif
