/* One decode step of a Llama-style decoder for one sequence, float32: from a token to its logits.
 *
 * One team of threads runs the whole step and meets five times a layer. Each member takes its rows of
 * every matrix; what is short (norms, rotations, merging) every member does for itself, which is cheaper
 * than to meet once more. New keys and values go straight into the cache's buffers, whose addresses the
 * caller looked up once. */
#include <stdlib.h>

#include "attention.h"
#include "product.h"

typedef struct {
    int32_t num_layers, num_heads, num_kv_heads, dim, hidden, mlp;
    int64_t vocab;
    float eps;
} shape;

typedef struct {
    const float *attention_norm, *qkv, *out, *mlp_norm, *gate_up, *down;
    float *k, *v;      /* (num_kv_heads, room, dim) each */
    int64_t k_step, v_step; /* floats from one head's rows to the next's */
} layer;

/* Memory that the whole team sees; what is a member's own lies in `own`. */
typedef struct {
    float *x, *qkv, *hidden, *outs, *tops, *sums, *own;
    meeting point;
} desk;

static void norm(const float *x, const float *gain, int size, float eps, float *y) {
    vec squares = {0};
    for (int i = 0; i < size; i += LANES) squares += load(x + i) * load(x + i);
    float scale = 1 / sqrtf(sum_of(squares) / size + eps);
    for (int i = 0; i < size; i += LANES) store(y + i, load(x + i) * scale * load(gain + i));
}

/* y = x cos + (x2, x1) sin, the sign of (-x2, x1) being in the table, as kvlib.rotary has it. */
static void rotate(const float *x, const float *cosine, const float *sine, int dim, float scale, float *y) {
    for (int i = 0; i < dim; i++)
        y[i] = (x[i] * cosine[i] + x[i < dim / 2 ? i + dim / 2 : i - dim / 2] * sine[i]) * scale;
}

/* Attend to the keys 0 .. position; leave the outputs of all heads in `mixed`. */
static void attend(const shape *s, const layer *l, const float *cosine, const float *sine, int64_t position,
                   desk *d, int me, int team, float *q, float *mixed) {
    int dim = s->dim, group = s->num_heads / s->num_kv_heads;
    const float *k = d->qkv + s->num_heads * dim, *v = k + s->num_kv_heads * dim;
    for (int h = 0; h < s->num_heads; h++)
        rotate(d->qkv + h * dim, cosine, sine, dim, 1 / sqrtf((float)dim), q + h * dim);
    int64_t first, last;
    share(position + 1, 1, me, team, &first, &last);
    for (int h = 0; h < s->num_kv_heads; h++) {
        int64_t at = me * s->num_heads + h * group;
        float *ks = l->k + h * l->k_step, *vs = l->v + h * l->v_step;
        if (last == position + 1 && first < last) { /* the newest row is this member's to write */
            rotate(k + h * dim, cosine, sine, dim, 1, ks + position * dim);
            memcpy(vs + position * dim, v + h * dim, sizeof(float) * dim);
        }
        attend_part(q + h * group * dim, group, dim, ks, vs, first, last, d->outs + at * dim, d->tops + at,
                    d->sums + at);
    }
    meet(&d->point, team);
    for (int h = 0; h < s->num_heads; h++)
        merge_parts(team, d->outs + h * dim, (int64_t)s->num_heads * dim, d->tops + h, d->sums + h,
                    s->num_heads, dim, mixed + h * dim);
}

static void run_layer(const shape *s, const layer *l, const float *cosine, const float *sine,
                      int64_t position, desk *d, int me, int team, float *own) {
    int width = s->num_heads * s->dim;
    float *y = own, *mixed = own + s->hidden, *q = mixed + width;
    int64_t first, last;

    norm(d->x, l->attention_norm, s->hidden, s->eps, y);
    share((s->num_heads + 2 * s->num_kv_heads) * s->dim, 1, me, team, &first, &last);
    product(l->qkv, first, last, s->hidden, y, d->qkv);
    meet(&d->point, team);

    attend(s, l, cosine, sine, position, d, me, team, q, mixed);
    share(s->hidden, 1, me, team, &first, &last);
    product(l->out, first, last, width, mixed, y);
    for (int64_t i = first; i < last; i++) d->x[i] += y[i];
    meet(&d->point, team);

    norm(d->x, l->mlp_norm, s->hidden, s->eps, y);
    share(s->mlp, 1, me, team, &first, &last);
    float *gate = d->hidden, *up = d->hidden + s->mlp;
    product(l->gate_up, first, last, s->hidden, y, gate);
    product(l->gate_up + (int64_t)s->mlp * s->hidden, first, last, s->hidden, y, up);
    for (int64_t i = first; i < last; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    meet(&d->point, team);

    share(s->hidden, 1, me, team, &first, &last);
    product(l->down, first, last, s->mlp, gate, y);
    for (int64_t i = first; i < last; i++) d->x[i] += y[i];
    meet(&d->point, team);
}

static int64_t own_size(const shape *s) { return s->hidden + 2 * s->num_heads * s->dim; }

/* Run `token` at `position` through the model: its K and V rows go into every layer's buffer, its logits
 * (vocab) to `logits`. `cosine` and `sine` (dim) are this position's. Returns 0, or 1 if memory is short. */
int kvlib_step(const shape *s, const layer *layers, const float *embedding, const float *gain,
               const float *head, const float *cosine, const float *sine, int64_t token, int64_t position,
               float *logits, int threads) {
    int64_t width = (int64_t)s->num_heads * s->dim;
    int64_t sizes[] = {s->hidden, (s->num_heads + 2 * s->num_kv_heads) * s->dim, 2 * s->mlp,
                       threads * width, threads * s->num_heads, threads * s->num_heads,
                       threads * own_size(s)};
    int64_t total = 0;
    for (int i = 0; i < 7; i++) total += sizes[i];
    float *memory = malloc(sizeof(float) * total), *at = memory;
    if (!memory) return 1;
    desk d = {0};
    float **parts[] = {&d.x, &d.qkv, &d.hidden, &d.outs, &d.tops, &d.sums, &d.own};
    for (int i = 0; i < 7; i++) *parts[i] = at, at += sizes[i];
    memcpy(d.x, embedding + token * s->hidden, sizeof(float) * s->hidden);
#pragma omp parallel num_threads(threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        float *own = d.own + me * own_size(s);
        int64_t first, last;
        for (int i = 0; i < s->num_layers; i++)
            run_layer(s, layers + i, cosine, sine, position, &d, me, team, own);
        norm(d.x, gain, s->hidden, s->eps, own);
        share(s->vocab, 1, me, team, &first, &last);
        product(head, first, last, s->hidden, own, logits);
    }
    free(memory);
    return 0;
}
