/* One team of threads for a whole call, and a meeting point that is cheap when all are awake. */
#ifndef KVLIB_TEAM_H
#define KVLIB_TEAM_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

typedef struct {
    atomic_int arrived, round;
} meeting;

/* Wait until the whole team is here. A short wait spins; a long one lets others use the core. */
static inline void meet(meeting *m, int team) {
    int round = atomic_load(&m->round);
    if (atomic_fetch_add(&m->arrived, 1) == team - 1) {
        atomic_store(&m->arrived, 0);
        atomic_store(&m->round, round + 1);
        return;
    }
    for (int spins = 0; atomic_load(&m->round) == round; spins++)
        if (spins > 20000) sched_yield();
}

/* The share of `count` things, in whole `grain`s, that belongs to one of the team. */
static inline void share(int64_t count, int64_t grain, int member, int team, int64_t *first, int64_t *last) {
    int64_t grains = (count + grain - 1) / grain;
    *first = grains * member / team * grain;
    *last = grains * (member + 1) / team * grain;
    if (*first > count) *first = count;
    if (*last > count) *last = count;
}

#endif
