"""The glossary: each term's lesson is there and uses it, and no term stands twice."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "assets" / "glossary.md"
ROW = re.compile(
    r"\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| \[(?P<number>\d\d[a-z]?)\]\(\.\./(?P<path>[^)]+)\) \|"
)
LINES = GLOSSARY.read_text("utf-8").splitlines()
ENTRIES = [match.groupdict() for line in LINES if (match := ROW.fullmatch(line))]


def uses(text: str, term: str) -> bool:
    """Tell whether a lesson's words hold a term whole; symbols keep their case."""
    case = 0 if len(term) <= 3 else re.IGNORECASE
    return re.search(rf"(?<!\w){re.escape(term)}s?(?!\w)", text, case) is not None


def words_of(path: Path) -> str:
    """Return the sources of all cells, without the marks of formatting."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return re.sub(r"[*`$]", "", "\n".join("".join(cell["source"]) for cell in cells))


def test_every_row_of_the_tables_is_an_entry():
    rows = [line for line in LINES if line.startswith("| ")]
    assert len(rows) - 2 == len(ENTRIES) > 50, [row for row in rows if not ROW.fullmatch(row)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["term"])
def test_its_lesson_exists_and_uses_it(entry):
    path = ROOT / entry["path"]
    assert path.name.startswith(entry["number"]) and path.is_file()
    assert uses(words_of(path), entry["term"]), f"{path.stem} never says {entry['term']!r}"
    assert entry["meaning"].endswith((".", ")"))


def test_no_term_stands_twice_and_each_table_is_in_order():
    terms = [entry["term"].lower() for entry in ENTRIES if len(entry["term"]) > 3]
    assert len(set(terms)) == len(terms)
    names = [entry["term"] for entry in ENTRIES]
    assert len(set(names)) == len(names)
    words = [name.lower() for name in names[names.index("arithmetic intensity") :]]
    assert words == sorted(words)
    numbers = [entry["number"] for entry in ENTRIES[: names.index("arithmetic intensity")]]
    assert numbers == sorted(numbers)


def test_every_lesson_of_part_one_gives_a_term():
    assert {entry["number"] for entry in ENTRIES} >= {f"{n:02d}" for n in range(7)}


def test_the_readme_links_to_it():
    assert "](assets/glossary.md)" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "term", "found"),
    [
        ("the ridge of it", "ridge", True), ("a bridge", "ridge", False), ("Ridge", "ridge", True),
        ("(B, KV, T, D)", "KV", True), ("kv", "KV", False), ("two chunks", "chunk", True), ("", "T", False),
    ],
)  # fmt: skip
def test_a_term_is_found_whole(text, term, found):
    assert uses(text, term) is found
