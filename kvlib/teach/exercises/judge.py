"""One judge for answers that are tried on cases: a mistake is named by running those that are known.

An exercise's `wrong` holds each known mistake as the words that it deserves and a cell that makes it. Where
an answer differs from the solution, the cell that gives the same is found, and its words are said: nobody
writes down what a mistake's numbers look like.
"""

from __future__ import annotations

import copy
from itertools import permutations

import numpy as np

from kvlib.teach.exercises.contract import Verdict, correct, define, not_yet


@np.errstate(all="ignore")
def judge(exercise, candidate) -> Verdict:
    """Try an answer on the exercise's cases, in order; say what is wrong with the first that it fails."""
    names, ways = exercise.arguments, exercise.answer.ways
    solve, seen = define(exercise.name, exercise.solution, "<solution>"), []
    cases = exercise.cases() if callable(exercise.cases) else exercise.cases
    for number, case in enumerate(cases):
        case, about = case[: len(names)], case[len(names) :]
        result, right = candidate(*copy.deepcopy(case)), solve(*copy.deepcopy(case))
        answer = exercise.answer.of(*case)
        given, wanted = answer.read(result), answer.read(right)
        seen.append((case, given))
        unread = isinstance(given, str)  # it says then why
        ways = [way for way in ways if not unread and answer.same(given, way(wanted))]
        if ways:
            continue
        words = None if unread else answer.short(result, wanted)
        words = words or _named(exercise, answer, seen, wanted, candidate, cases[number + 1 :])
        if words is not given:
            words = words.format(**dict(zip(names, case)), wanted=wanted, given=given)
        tried = f"for {about[0]}," if about else f"with {exercise.told(case)}"
        return not_yet(f"{words}; {tried} {answer.tell(result, wanted)}")
    return correct(exercise.right)


def _named(exercise, answer, seen: list, wanted, candidate, later) -> str:
    """Return the words of the known mistake that gives the same; `seen` are the cases and what was given.

    Best on all cases so far, else on the last; else, of several numbers, in the first that is wrong. Where
    two mistakes give the same, the cases that come `later` tell them apart.
    """
    case, given = seen[-1]

    def same(a, b, near=answer.same) -> bool:
        return a == b if isinstance(a, str) or isinstance(b, str) else near(a, b)

    def like(made, given) -> bool:
        return same(made, given, answer.like)

    known = [(words, define(exercise.name, source, "<mistake>")) for words, source in exercise.wrong.items()]
    results = [(words, [_run(answer, wrong, c) for c, _ in seen]) for words, wrong in known]
    for some in (seen, seen[-1:]):
        found = [
            pair for pair, (_, made) in zip(known, results)
            if all(like(m, g) for m, (_, g) in zip(made[-len(some) :], some)) and not same(made[-1], wanted)
        ]  # fmt: skip
        for another in (c[: len(case)] for c in later if len(found) > 1):
            gives = _run(answer, candidate, another)
            found = [pair for pair in found if like(_run(answer, pair[1], another), gives)] or found
        if found:
            return found[0][0]
    if isinstance(given, str):
        return given
    if exercise.rule is not None and (words := exercise.rule(given, wanted, *case)):
        return words
    if isinstance(exercise.otherwise, str):
        return exercise.otherwise

    def until(i: int, result):  # the rest is right
        return result if isinstance(result, str) else [*result[: i + 1], *wanted[i + 1 :]]

    first = next(i for i in range(len(wanted)) if not same(until(i, given), wanted))
    alike = (words for words, made in results if same(until(first, made[-1]), until(first, given))
             and not any(same(list(order), wanted) for order in permutations(made[-1])))  # fmt: skip
    return next(alike, exercise.otherwise[first])


def _run(answer, wrong, case):
    try:
        return answer.read(wrong(*copy.deepcopy(case)))
    except Exception:  # a mistake may be one that crashes on some case
        return ""
