/* One query a sequence against cached keys and values: every row read once, no score kept. */
#ifndef KVLIB_ATTENTION_H
#define KVLIB_ATTENTION_H

#include "team.h"
#include "vectors.h"

#define BLOCK 64        /* keys whose scores are held at a time */
#define AHEAD 1         /* blocks between what is worked on and what is called from memory */
#define MOST_QUERIES 64 /* query heads that share one KV head */
#define MOST_DIM 256

/* Scores of `count` queries against 16 keys that lie as columns: s[i] = q[i] . k. While it multiplies,
 * it calls 16 rows that come later from memory, a line for each column. */
INLINE void score(int count, const float *q, int dim, const vec *columns, float *s, const float *next_k,
                  const float *next_v) {
    vec acc[16];
    for (int i = 0; i < count; i++) acc[i] = (vec){0};
    for (int d = 0; d < dim; d++) {
        if (next_k) __builtin_prefetch(next_k + d * LANES, 0, 2);
        if (next_v) __builtin_prefetch(next_v + d * LANES, 0, 2);
        for (int i = 0; i < count; i++) acc[i] += columns[d] * q[i * dim + d];
    }
    for (int i = 0; i < count; i++) store(s + i * BLOCK, acc[i]);
}

/* Add p[i] v over `num` values to `count` outputs, `width` vectors of each at a time. */
INLINE void gather(int count, int width, const float *p, const float *v, int num, int dim, float *out) {
    vec acc[32];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < width; j++) acc[i * width + j] = load(out + i * dim + j * LANES);
    for (int t = 0; t < num; t++) {
        vec row[8];
        for (int j = 0; j < width; j++) row[j] = load(v + t * dim + j * LANES);
        for (int i = 0; i < count; i++)
            for (int j = 0; j < width; j++) acc[i * width + j] += row[j] * p[i * BLOCK + t];
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < width; j++) store(out + i * dim + j * LANES, acc[i * width + j]);
}

/* Scores of the whole group against `num` keys; lanes without a key get minus infinity. */
INLINE void score_block(const float *q, int group, int dim, const float *k, const float *v, int num,
                        int64_t ahead, float *s) {
    vec columns[MOST_DIM];
    for (int t = 0; t < num; t += LANES) {
        int rows = num - t < LANES ? num - t : LANES;
        for (int d = 0; d < dim; d += LANES) {
            for (int i = 0; i < LANES; i++)
                columns[d + i] = i < rows ? load(k + (t + i) * dim + d) : (vec){0};
            transpose(columns + d);
        }
        const float *next_k = ahead ? k + t * dim + ahead : 0, *next_v = ahead ? v + t * dim + ahead : 0;
        int i = 0;
#define BY(n)                                                                                             \
    for (; i + n <= group; i += n) {                                                                      \
        int last = i + n == group;                                                                        \
        score(n, q + i * dim, dim, columns, s + i * BLOCK + t, i ? 0 : next_k, last ? next_v : 0);        \
    }
        BY(16) BY(8) BY(4) BY(3) BY(1)
#undef BY
        for (int lane = rows; lane < LANES; lane++)
            for (i = 0; i < group; i++) s[i * BLOCK + t + lane] = -INFINITY;
    }
}

/* Take `num` keys and values (at most BLOCK) into the running softmax of `group` queries. What lies
 * `ahead` floats behind them comes next: it is called from memory while these are worked on. */
INLINE void attend_block(const float *q, int group, int dim, const float *k, const float *v, int num,
                         int64_t ahead, float *out, float *top, float *sum) {
    float s[MOST_QUERIES * BLOCK];
    score_block(q, group, dim, k, v, num, ahead, s);
    for (int i = 0; i < group; i++) {
        float *row = s + i * BLOCK;
        vec most = all(top[i]), total = {0};
        for (int t = 0; t < num; t += LANES) most = larger(most, load(row + t));
        float now = max_of(most), base = now > -INFINITY ? now : 0; /* all scores may have overflowed */
        for (int t = 0; t < num; t += LANES) {
            vec weight = exp_of(load(row + t) - base);
            store(row + t, weight);
            total += weight;
        }
        if (now > top[i]) { /* what was gathered under the old maximum weighs less under the new */
            float rescale = expf(top[i] - now);
            for (int d = 0; d < dim; d += LANES) store(out + i * dim + d, load(out + i * dim + d) * rescale);
            sum[i] *= rescale;
            top[i] = now;
        }
        sum[i] += sum_of(total);
    }
    int at = 0;
#define BY(n, width)                                                                                      \
    for (; i + n <= group; i += n) gather(n, width, s + i * BLOCK, v + at, num, dim, out + i * dim + at);
    for (int i = 0; at + 4 * LANES <= dim; at += 4 * LANES, i = 0) { BY(6, 4) BY(4, 4) BY(3, 4) BY(1, 4) }
    for (int i = 0; at < dim; at += LANES, i = 0) { BY(6, 1) BY(1, 1) }
#undef BY
}

INLINE void attend_keys(const float *q, int group, int dim, const float *k, const float *v, int64_t first,
                        int64_t last, float *out, float *top, float *sum) {
    memset(out, 0, sizeof(float) * group * dim);
    for (int i = 0; i < group; i++) top[i] = -INFINITY, sum[i] = 0;
    for (int64_t t = first; t < last; t += BLOCK) {
        int num = last - t < BLOCK ? (int)(last - t) : BLOCK;
        int64_t ahead = last - t >= (AHEAD + 1) * BLOCK ? AHEAD * BLOCK * dim : 0;
        attend_block(q, group, dim, k + t * dim, v + t * dim, num, ahead, out, top, sum);
    }
}

/* Attend `group` queries of one KV head, already scaled, to its keys [first, last).
 * out (group, dim) is left unnormalised; top and sum are the softmax's running maximum and sum. The usual
 * dimensions are written out: a compiler that knows them unrolls every loop over them. */
static void attend_part(const float *q, int group, int dim, const float *k, const float *v, int64_t first,
                        int64_t last, float *out, float *top, float *sum) {
    if (dim == 64)
        attend_keys(q, group, 64, k, v, first, last, out, top, sum);
    else if (dim == 128)
        attend_keys(q, group, 128, k, v, first, last, out, top, sum);
    else
        attend_keys(q, group, dim, k, v, first, last, out, top, sum);
}

/* Merge `parts` partial softmaxes of one query: each weighs e^(its maximum - the overall one). */
static void merge_parts(int parts, const float *outs, int64_t out_step, const float *tops, const float *sums,
                        int64_t step, int dim, float *out) {
    float top = -INFINITY, sum = 0;
    for (int p = 0; p < parts; p++) top = tops[p * step] > top ? tops[p * step] : top;
    memset(out, 0, sizeof(float) * dim);
    for (int p = 0; p < parts; p++) {
        if (sums[p * step] == 0) continue; /* a part without keys weighs nothing */
        float weight = expf(tops[p * step] - top);
        sum += weight * sums[p * step];
        for (int d = 0; d < dim; d++) out[d] += weight * outs[p * out_step + d];
    }
    for (int d = 0; d < dim; d++) out[d] /= sum;
}

#endif
