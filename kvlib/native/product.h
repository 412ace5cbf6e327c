/* A matrix (rows, cols) times a vector, with several rows on their way from memory at once.
 *
 * One row after the other is one stream of addresses, and a core waits for memory between its lines.
 * Rows from distant places are as many streams, which the memory serves side by side. */
#ifndef KVLIB_PRODUCT_H
#define KVLIB_PRODUCT_H

#include "team.h"
#include "vectors.h"

#define ROWS 8 /* streams in flight: enough here, and their sums fit the registers */

/* y[r] = w[r] . x for `count` rows that lie `apart` rows from each other. */
INLINE void rows_at_once(int count, const float *w, int64_t apart, int cols, const float *x, float *y) {
    vec acc[16];
    for (int r = 0; r < count; r++) acc[r] = (vec){0};
    for (int c = 0; c < cols; c += LANES) {
        vec part = load(x + c);
        for (int r = 0; r < count; r++) acc[r] += load(w + r * apart * cols + c) * part;
    }
    for (int r = 0; r < count; r++) y[r * apart] = sum_of(acc[r]);
}

/* y[first:last] = w[first:last] x, `count` rows at a time. */
INLINE void product_by(int count, const float *w, int64_t first, int64_t last, int cols, const float *x, float *y) {
    int64_t apart = (last - first) / count;
    for (int64_t r = first; r < first + apart; r++) rows_at_once(count, w + r * cols, apart, cols, x, y + r);
    for (int64_t r = first + apart * count; r < last; r++) rows_at_once(1, w + r * cols, 1, cols, x, y + r);
}

static inline void product(const float *w, int64_t first, int64_t last, int cols, const float *x, float *y) {
    product_by(ROWS, w, first, last, cols, x, y);
}

#endif
