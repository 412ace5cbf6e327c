"""Every question: one right option, a reason for each, the same text every time."""

import json
from collections import Counter

import pytest

from kvlib.latent_attention import LatentShape
from kvlib.teach import quiz, quizzes
from kvlib.teach.quizzes import Option, Question, find, lessons, names, of_lesson, read

QUESTIONS = [question for number in lessons() for question in of_lesson(number)]
EVERY = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)


@EVERY
def test_every_option_answers_with_its_own_reason(question):
    assert 2 <= len(question.options) <= 5
    assert 0 <= question.right < len(question.options)
    assert len({option.text for option in question.options}) == len(question.options)
    assert len({option.reason for option in question.options}) == len(question.options)
    assert question.stem.strip() and all(option.reason.strip() for option in question.options)


@EVERY
def test_picking_shows_the_reason_and_is_kept(question, home):
    panel = quiz(question.key)
    for index, option in enumerate(question.options):
        panel.buttons[0][index].click()
        opening = "Right." if index == question.right else "Not this one."
        assert f"{question.letter(index)}. {opening}" in panel.answers[0].value
        assert "kvlib-status" in panel.answers[0]._dom_classes
        assert panel.pick(1, question.letter(index).lower()).endswith(option.reason)
    kept = json.loads((home / "progress.json").read_text())["quizzes"][question.key]
    assert kept["first_right"] is (question.right == 0)


@EVERY
def test_once_right_stays_right_and_is_shown_after_a_restart(question, home):
    wrong = next(i for i in range(len(question.options)) if i != question.right)
    panel = quiz(question.key)
    panel.buttons[0][wrong].click()
    assert quiz(question.key).answers[0].value == ""
    panel.buttons[0][question.right].click()
    panel.buttons[0][wrong].click()
    kept = json.loads((home / "progress.json").read_text())["quizzes"][question.key]
    assert kept["right"] is True and kept["first_right"] is False
    again = quiz(question.key)
    assert f"answered this one right: {question.letter(question.right)}." in again.answers[0].value
    assert again.plain() == panel.plain()


@pytest.mark.parametrize("name", names())
def test_a_quiz_has_three_or_four_questions(name):
    assert 3 <= len(find(name)) <= 4
    assert quiz(name).plain() == repr(quiz(name))
    assert all(question.key.startswith(f"{name[:2]}-") for question in find(name))


def test_a_lesson_in_two_parts_has_two_quizzes():
    assert {"09", "09b"} <= set(names()) and 9 in lessons()
    assert find("09") + find("09b") == of_lesson(9)
    assert quiz(9).plain() == quiz("09").plain() != quiz("09b").plain()
    assert find("09-latent-later")[0] in find("09b")


@pytest.mark.parametrize("part", [range(5, 10)], ids=["05 to 09"])
def test_neither_place_nor_length_gives_the_answer_away(part):
    questions = [question for number in part for question in of_lesson(number)]
    places = [sum(question.right == place for question in questions) for place in range(3)]
    assert max(places) <= len(questions) / 2 and min(places) >= len(questions) / 5
    longest = [max(range(len(q.options)), key=lambda i: len(q.options[i].text)) == q.right for q in questions]
    assert sum(longest) <= len(questions) / 2


def test_what_absorbing_does_not_save_is_false_for_one_score():
    shape, question = LatentShape(), next(q for q in QUESTIONS if q.key == "09-latent-absorb")
    absorbed, expanded = shape.row_dim, shape.nope_dim + shape.rope_dim
    assert (absorbed, expanded) == (576, 192) and question.right != 0
    assert question.options[0].text == "Each score takes fewer multiplications."
    assert f"{absorbed} instead of {expanded}" in question.options[0].reason


def test_keys_are_unique():
    assert len({question.key for question in QUESTIONS}) == len(QUESTIONS)


def test_the_text_does_not_give_the_answers_away():
    panel = quiz("00")
    before = panel.plain()
    panel.pick(1, "b")
    assert panel.plain() == before
    for question in panel.questions:
        assert all(option.reason not in before for option in question.options)


@pytest.mark.parametrize("key", ["99", 99, "00-nothing", "x", True, -1])
def test_an_unknown_quiz_names_the_known(key):
    with pytest.raises(ValueError, match="Lessons with questions: 00, 01"):
        find(key)


def test_a_wrong_pick_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="There are 4 questions"):
        quiz(0).pick(5, "a")
    with pytest.raises(ValueError, match="has the options A, B, C"):
        quiz(0).pick(1, "z")


def test_the_right_answer_stands_in_no_favoured_place():
    places = [question.letter(question.right) for question in QUESTIONS]
    for letter in "ABC":
        assert 0.2 <= places.count(letter) / len(places) <= 0.4, Counter(places)
    longer = [question for question in QUESTIONS if len(question.options) == 4]
    assert 0.1 <= sum(question.right == 3 for question in longer) / len(longer) <= 0.4, Counter(places)
    assert not any(len(set(places[i : i + 3])) == 1 for i in range(len(places) - 2)), places
    for step in (1, 2, 3, 4):  # nor does a place follow from the one a few questions before
        repeats = sum(a == b for a, b in zip(places, places[step:])) / (len(places) - step)
        assert repeats < 0.5, (step, places)


def test_the_right_answer_is_not_told_by_its_length():
    lengths = [([len(option.text) for option in question.options], question.right) for question in QUESTIONS]
    for extreme in (max, min):
        told = sum(sizes[right] == extreme(sizes) for sizes, right in lengths)
        assert told / len(lengths) <= 0.42, (extreme.__name__, told, len(lengths))


def test_a_common_misconception_is_answered_where_it_belongs():
    question = next(question for question in QUESTIONS if question.key == "00-same-text")
    [option] = [option for option in question.options if "see its whole history" in option.text]
    assert question.options.index(option) != question.right and "context window" in option.reason


WELL = "# Lesson\n\n## 00-a\nWhy\nthis?\n\n- [ ] One\n  line.\n  > No,\n  > never.\n- [x] Two.\n  > Yes.\n"


def test_a_question_is_text_with_its_options_and_their_reasons():
    start = WELL[WELL.index("##") :]
    for text in (WELL, WELL.replace("\n", "\r\n"), WELL.rstrip(), WELL + "\n\n", WELL.replace("## ", "##"),
                 "\ufeff" + start, WELL.replace("- [x] ", "- [x]   ")):
        [question] = read(text)
        assert question == Question(
            "00-a", "Why this?", (Option("One line.", "No, never."), Option("Two.", "Yes.")), right=1
        )
    assert len(read(WELL + "\n" + start.replace("00-a", "00-b"))) == 2
    [question] = read(WELL.replace("> Yes.", "> r\n  > > 3  >= r\n  >"))
    assert question.options[1].reason == "r > 3 >= r"


@pytest.mark.parametrize(("was", "becomes", "word"), [
    ("[x]", "[ ]", "0 of them right"), ("[ ]", "[x]", "2 of them right"),
    ("- [ ] One", "- One", "an option is"), ("  > Yes.\n", "", "an option is"),
    ("[x]", "[X]", "an option is"),
    ("- [x] Two.\n  > Yes.\n", "", "1 options"), ("  > Yes.", "  > Yes.\n\nMore.", "an option is"),
    ("- [ ] One\n  line.\n  > No,\n  > never.\n", "", "1 options, 1 of them right"),
    *(("this?\n", f"this?\n{mark} Zero\n  > No.", "option") for mark in ("* [x]", "+ [ ]", "[x]", "-  [ ]")),
    ("- [ ] One\n  line.", "- [ ] ", "an option is"),
    ("- [x] Two.", "- [x]  ", "an option is"),
    ("- [x]", "".join(f"- [ ] {i}\n  > {i}\n" for i in range(7)) + "- [x]", "9 options"),
    ("Why\nthis?", "", "words"), ("> Yes.", ">", "words"), ("Two.", "One line.", "words"),
    ("## 00-a", "## 00-a b", "one word"), ("## 00-a", "### 00-a", "one word"),
])  # fmt: skip
def test_a_badly_written_question_is_named(was, becomes, word):
    with pytest.raises(ValueError, match=f"^(# )?00-a.*{word}"):
        read(WELL.replace(was, becomes))


@pytest.mark.parametrize(("text", "words"), [
    ("", "here: none"), (WELL.replace("## 00-a", ""), "here: none"), (WELL.replace("00-a", ""), "one word"),
    (WELL + WELL[WELL.index("##") :], "here: 00-a, 00-a"),
])  # fmt: skip
def test_a_badly_written_file_is_named(text, words, tmp_path, monkeypatch):
    (tmp_path / "77.md").write_text(text)
    monkeypatch.setattr(quizzes, "HERE", tmp_path)
    with pytest.raises(ValueError, match=rf"^77\.md: .*{words}"):
        find(77)
