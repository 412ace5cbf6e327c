"""Lesson 04's exercises ask for nothing that their tasks do not say."""

import re

from kvlib.teach.exercises import find
from kvlib.teach.exercises.lesson04 import BYTES_CASES


def test_every_size_of_a_number_that_is_tested_is_named_in_the_task():
    named = re.search(r"one stored number: (.*)\.", find("04-cache-bytes").task).group(1)
    assert {shape[-1] for shape, _ in BYTES_CASES} <= set(map(int, re.findall(r"\d+", named)))
