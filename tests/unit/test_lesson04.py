"""Lesson 04's exercises ask for nothing that their tasks do not say."""

import re

from kvlib.teach.exercises import find


def test_every_size_of_a_number_that_is_tested_is_named_in_the_task():
    task = find("04-cache-bytes")
    named = re.search(r"one stored number: (.*)\.", task.task).group(1)
    place = task.arguments.index("bits")
    assert {case[place] for case in task.cases} <= set(map(int, re.findall(r"\d+", named)))
