/* Vectors of 16 floats, in the notation GCC and Clang share; each machine's own instructions follow. */
#ifndef KVLIB_VECTORS_H
#define KVLIB_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(64), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4)));

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
INLINE vec all(float x) { return (vec){0} + x; }

INLINE vec larger(vec a, vec b) {
    ivec choose = a > b;
    return (vec)((choose & (ivec)a) | (~choose & (ivec)b));
}

/* Fold a vector onto its first lane, half by half. */
#define FOLD(x, join)                                                                          \
    x = join(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
    x = join(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
    x = join(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
    x = join(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));

INLINE vec plus(vec a, vec b) { return a + b; }

INLINE float sum_of(vec x) {
    FOLD(x, plus)
    return x[0];
}

INLINE float max_of(vec x) {
    FOLD(x, larger)
    return x[0];
}

/* e^x within 2 units in the last place for x <= 0; 0 below -87, where float32 runs out; NaN stays. */
INLINE vec exp_of(vec x) {
    vec kept = larger(x, all(-87.0f));
    vec n = (kept * 1.44269504f + 12582912.0f) - 12582912.0f; /* nearest whole power of two */
    vec r = kept - n * 0.693145752f - n * 1.42860677e-6f;     /* ln 2 in two parts */
    vec p = all(1.0f / 720);
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    ivec power = __builtin_convertvector(n, ivec) << 23; /* into the exponent's bits */
    return (vec)((((ivec)p + power) & (x > all(-87.0f))) | (x != x)); /* all bits set is a NaN */
}

/* Turn 16 rows of 16 floats into 16 columns, by interleaving halves four times. */
INLINE void transpose(vec t[LANES]) {
    vec u[LANES];
#define INTERLEAVE(to, from)                                                                              \
    for (int i = 0; i < 8; i++) {                                                                         \
        to[2 * i] = __builtin_shufflevector(from[i], from[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); \
        to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); \
    }
    INTERLEAVE(u, t)
    INTERLEAVE(t, u)
    INTERLEAVE(u, t)
    INTERLEAVE(t, u)
#undef INTERLEAVE
}

#endif
