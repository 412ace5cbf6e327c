/* The product alone, for whoever wants to see what rows at once are worth. */
#include "product.h"

/* y (rows) = w (rows, cols) x (cols), `count` of 1, 2, 4, 8 or 16 rows at a time; 1 for another count. */
int kvlib_product(const float *w, int64_t rows, int cols, const float *x, float *y, int count, int threads) {
    if (count != 1 && count != 2 && count != 4 && count != 8 && count != 16) return 1;
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        share(rows, 1, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        if (count == 1) product_by(1, w, first, last, cols, x, y);
        if (count == 2) product_by(2, w, first, last, cols, x, y);
        if (count == 4) product_by(4, w, first, last, cols, x, y);
        if (count == 8) product_by(8, w, first, last, cols, x, y);
        if (count == 16) product_by(16, w, first, last, cols, x, y);
    }
    return 0;
}
