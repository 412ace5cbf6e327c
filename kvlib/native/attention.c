/* Decode attention over a cache, shared by a team of threads key by key (flash-decoding). */
#include <stdlib.h>

#include "attention.h"

/* q (heads, group, dim) -> out, alike. Head h's keys and values, (num_keys, dim), start at k[h], v[h].
 * Returns 0, or 1 where memory is short. */
int kvlib_attend(const float *q, const float *const *k, const float *const *v, float *out, int64_t heads,
                 int group, int64_t num_keys, int dim, int threads) {
    int64_t size = heads * group;
    float *scaled = malloc(sizeof(float) * size * dim);
    float *outs = malloc(sizeof(float) * threads * size * dim);
    float *tops = malloc(sizeof(float) * threads * size), *sums = malloc(sizeof(float) * threads * size);
    int failed = !scaled || !outs || !tops || !sums;
    if (!failed) {
        float scale = 1 / sqrtf((float)dim);
        for (int64_t i = 0; i < size * dim; i++) scaled[i] = q[i] * scale;
        meeting point = {0};
#pragma omp parallel num_threads(threads)
        {
            int team = omp_get_num_threads(), me = omp_get_thread_num();
            int64_t first, last; /* of all heads' keys, end to end */
            share(heads * num_keys, 1, me, team, &first, &last);
            for (int64_t h = 0; h < heads; h++) {
                int64_t from = first - h * num_keys, to = last - h * num_keys, at = me * size + h * group;
                from = from < 0 ? 0 : from > num_keys ? num_keys : from;
                to = to < 0 ? 0 : to > num_keys ? num_keys : to;
                attend_part(scaled + h * group * dim, group, dim, k[h], v[h], from, to, outs + at * dim,
                            tops + at, sums + at);
            }
            meet(&point, team);
            share(size, 1, me, team, &first, &last);
            for (int64_t i = first; i < last; i++)
                merge_parts(team, outs + i * dim, size * dim, tops + i, sums + i, size, dim, out + i * dim);
        }
    }
    free(scaled), free(outs), free(tops), free(sums);
    return failed;
}
