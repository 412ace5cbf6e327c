"""One judge for answers that are tried on cases: a mistake is named by running those that are known.

An exercise's `wrong` holds each known mistake as the words that it deserves and a cell that makes it. Where
an answer differs from the solution, the cell that gives the same is found, and its words are said: nobody
writes down what a mistake's numbers look like.
"""

from __future__ import annotations

import copy

from kvlib.teach.exercises.contract import Verdict, correct, define, not_yet


def judge(exercise, candidate) -> Verdict:
    """Try an answer on the exercise's cases, in order; say what is wrong with the first that it fails."""
    names, answer = exercise.arguments, exercise.answer
    solve, seen = define(exercise.name, exercise.solution, "<solution>"), []
    for case in exercise.cases:
        case, about = case[: len(names)], case[len(names) :]
        result, right = candidate(*case), solve(*copy.deepcopy(case))
        tried = f"for {about[0]}," if about else f"with {exercise.told(case)}"
        given, wanted = answer.read(result), answer.read(right)
        seen.append((case, given))
        unread = isinstance(given, str)  # it says then why
        if unread or not answer.same(given, wanted):
            words = None if unread else answer.short(result, wanted)
            words = words or _named(exercise, seen, wanted)
            if words is not given:
                words = words.format(**dict(zip(names, case)), wanted=wanted, given=given)
            return not_yet(f"{words}; {tried} {answer.tell(result, wanted)}")
    return correct(exercise.right)


def _named(exercise, seen: list, wanted) -> str:
    """Return the words of the known mistake that gives the same; `seen` are the cases and what was given.

    Best on all cases so far, else on the last; else, of several numbers, in the first that is wrong.
    """
    case, given = seen[-1]

    def same(a, b) -> bool:
        return a == b if isinstance(a, str) or isinstance(b, str) else exercise.answer.same(a, b)

    known = [(words, define(exercise.name, source, "<mistake>")) for words, source in exercise.wrong.items()]
    results = [(words, [_run(exercise.answer, wrong, c) for c, _ in seen]) for words, wrong in known]
    for some in (seen, seen[-1:]):
        for words, made in results:
            if all(same(m, g) for m, (_, g) in zip(made[-len(some) :], some)) and not same(made[-1], wanted):
                return words
    if isinstance(given, str):
        return given
    if exercise.rule is not None and (words := exercise.rule(given, wanted, *case)):
        return words
    if isinstance(exercise.otherwise, str):
        return exercise.otherwise
    first = next(i for i, (a, b) in enumerate(zip(given, wanted)) if a != b)
    # A mistake of order is none of one number.
    right = sorted(wanted, key=str)
    others = [(words, made[-1]) for words, made in results if sorted(made[-1], key=str) != right]
    alike = (words for words, made in others if made[: first + 1] == given[: first + 1])
    return next(alike, exercise.otherwise[first])


def _run(answer, wrong, case):
    try:
        return answer.read(wrong(*copy.deepcopy(case)))
    except Exception:  # a mistake may be one that crashes on some case
        return ""
