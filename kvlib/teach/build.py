"""Run the lessons and store clean, reproducible outputs: `python -m kvlib.teach.build [names]`.

The same sources give the same file, byte for byte. Cells whose output is a measurement cannot
repeat it: they carry the tags `nbval-ignore-output` and `timing` or `device`, and a first line
`# timing: why` or `# device: why`. Their stored outputs stay until what they depend on changes (see
`sources_hash`), or `--fresh` asks for new ones.

This module does not know what a lesson teaches. `problems` is what the tests hold every lesson to.
"""

import argparse
import base64
import hashlib
import io
import json
import os
import re
import socket
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from kvlib.model_file import model_home

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "notebooks"
ASSETS = ROOT / "assets"
CELL_TIMEOUT_S = 600
COLOURS = 64  # in a stored picture: a quarter of the bytes, no visible difference in a figure
MEASURED = ("timing", "device")
PICTURE = re.compile(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=]+")  # in an output's HTML
WIDGET = "application/vnd.jupyter.widget-view+json"
DRAWS = {"curves.py", "label.py", "layout.py", "measuring.py", "picture.py", "smaller_run.py", "style.py"}
PRIVATE = re.compile(
    r"/(?:home|Users|root|tmp|var/folders|private)/|[A-Za-z]:\\\\|site-packages|0x[0-9a-f]{8,}"
)


def measured(cell) -> str | None:
    """Return "timing" or "device" for a cell whose output cannot repeat, None for any other."""
    return next((kind for kind in MEASURED if kind in cell.metadata.get("tags", [])), None)


def problems(notebook) -> list[str]:
    """List what keeps a lesson from being fit to store, one sentence each."""
    found = []
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        where = f"cell {cell.id}"
        if cell.execution_count != count:
            found.append(f"{where} has execution count {cell.execution_count} instead of {count}.")
        found += [f"{where} {sentence}" for sentence in _marking_problems(cell)]
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{where} raised {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"{where} wrote to stderr: {output.text.strip()[:200]}")
            elif leak := _private_part(output):
                found.append(f"{where} shows {leak!r}, which belongs to one machine.")
    return found


def _marking_problems(cell) -> list[str]:
    """Say where the tags and the first line of a cell disagree on whether it is measured."""
    tags = set(cell.metadata.get("tags", []))
    kinds = tags & set(MEASURED)
    ignored = "nbval-ignore-output" in tags
    comment = re.match(r"# (timing|device): \S", cell.source)
    if not (kinds or ignored or comment):
        return []
    if ignored and len(kinds) == 1 and comment and comment.group(1) in kinds:
        return []
    return [
        "needs all three: the tag nbval-ignore-output, one tag of timing and device, and a first "
        f"line `# timing: why` or `# device: why` that agrees (tags {sorted(tags)})."
    ]


def _private_part(output) -> str | None:
    """Return a path, an address in memory or this machine's name from an output, or None."""
    output = dict(output)
    if "data" in output:
        output["data"] = {
            k: PICTURE.sub("", "".join(v)) if k == "text/html" else v
            for k, v in output["data"].items()
            if not k.startswith("image/")
        }
    text = json.dumps(output, ensure_ascii=False)
    names = [str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix]
    names = [name for name in names if len(name) > 3]
    if len(host := socket.gethostname()) > 3 and host != "localhost":
        names.append(host)
    for name in names:
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text):
            return name
    match = PRIVATE.search(text)
    return text[max(0, match.start() - 10) : match.end() + 20] if match else None


def sources_hash(notebook) -> str:
    """Hash what a measurement depends on: the lesson's code, what runs, measures and draws, the requirements.

    A lesson's text, and what panels and exercises say, do not change what was measured.
    """
    digest = hashlib.sha256()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            digest.update(cell.source.encode() + b"\0")
    for path in [*filter(_is_measured, sorted((ROOT / "kvlib").rglob("*.*"))), ROOT / "requirements.txt"]:
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def _is_measured(path: Path) -> bool:
    """Whether a file of kvlib is code that a stored measurement, or its picture, depends on."""
    room = path.relative_to(ROOT / "kvlib").parts[0]
    draws = path.name in DRAWS or path.stem.endswith(("_picture", "_step"))
    return path.suffix in (".py", ".c", ".h") and room != "teach" and (room != "lab" or draws)


def execute(notebook, folder: Path) -> None:
    """Run every cell in a new kernel that starts in `folder`, with the progress of nobody."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
    )
    with tempfile.TemporaryDirectory() as nobody:
        homes = {"KVLIB_MODEL_HOME": str(model_home()), "KVLIB_HOME": nobody}
        quiet = {"KVLIB_NO_PROGRESS": "1"}  # a bar is for a person who watches
        client.execute(env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **homes, **quiet})


def tidy(notebook, previous=None) -> None:
    """Bring a run notebook into the one form that is stored.

    previous: the stored lesson, whose measured outputs are kept where its sources are the same.
    """
    stamp = sources_hash(notebook)
    old = {}
    if previous is not None and previous.metadata.get("kvlib", {}).get("sources") == stamp:
        old = {i: cell for i, cell in enumerate(previous.cells) if cell.cell_type == "code"}
    kept = notebook.metadata
    notebook.metadata = nbformat.from_dict({k: kept[k] for k in ("title",) if k in kept})
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python"}
    notebook.metadata.kernelspec["name"] = "python3"
    notebook.metadata.language_info = {"name": "python"}
    own = {k: v for k, v in kept.get("kvlib", {}).items() if k != "sources"}
    if any(measured(cell) for cell in notebook.cells):
        own["sources"] = stamp
    if own:
        notebook.metadata["kvlib"] = own
    notebook.nbformat_minor = 5
    _name_cells(notebook.cells)
    for index, cell in enumerate(notebook.cells):
        wanted = ("tags", "kvlib", "jupyter")
        cell.metadata = nbformat.from_dict(
            {k: cell.metadata[k] for k in wanted if k in cell.metadata}
        )
        if cell.cell_type != "code":
            cell.pop("attachments", None)
            continue
        was = old.get(index)
        if measured(cell) and was is not None and was.execution_count is not None:
            cell.outputs = was.outputs
        else:
            cell.outputs = _clean_outputs(cell.outputs)


def _name_cells(cells) -> None:
    """Give cells without a readable id one made of the heading above them and a number."""
    random_id = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4,})*")
    taken = {cell.id for cell in cells if cell.get("id") and not random_id.fullmatch(cell.id)}
    section = "start"
    for cell in cells:
        heading = (
            re.search(r"^#+ (.+)$", cell.source, re.M) if cell.cell_type == "markdown" else None
        )
        if heading:
            slug = re.sub(r"[^a-z0-9]+", "-", heading.group(1).lower()).strip("-")
            section = slug[:40].strip("-") or section
        if cell.get("id") in taken:
            continue
        names = ([section] if heading else []) + [
            f"{section}-{n}" for n in range(1, len(cells) + 1)
        ]
        cell.id = next(name for name in names if name not in taken)
        taken.add(cell.id)


def _clean_outputs(outputs) -> list:
    """Join streams, drop live widgets that also have a picture or text, and shrink pictures."""
    clean = []
    for output in outputs:
        output = deepcopy(output)
        if output.output_type == "stream" and clean and clean[-1].get("name") == output.name:
            clean[-1].text += output.text
            continue
        data = output.get("data", {})
        if len(data) > 1:
            data.pop(WIDGET, None)
        if "image/png" in data:
            data["image/png"] = _small_png(data["image/png"])
        if "text/html" in data:
            data["text/html"] = PICTURE.sub(lambda found: _small_png(found[0]), data["text/html"])
        clean.append(output)
    return clean


def _small_png(encoded: str) -> str:
    """Return a picture in base64 with few colours and without the name of what drew it."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    picture = picture.convert("RGBA")
    opaque = picture.getchannel("A").getextrema() == (255, 255)
    method = Image.Quantize.MEDIANCUT if opaque else Image.Quantize.FASTOCTREE
    picture = picture.convert("RGB" if opaque else "RGBA")
    small = picture.quantize(COLOURS, method=method, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def build(path: Path, fresh: bool = False) -> list[str]:
    """Run one lesson and store it unless it has problems; return these."""
    stored = path.read_text("utf-8")
    previous = nbformat.reads(stored, as_version=4)
    notebook = deepcopy(previous)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    _name_cells(notebook.cells)
    start = time.perf_counter()
    try:
        execute(notebook, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return [str(error).strip()]
    tidy(notebook, None if fresh else previous)
    found = problems(notebook)
    text = nbformat.writes(notebook) + "\n"
    if not found and text != stored:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(text, "utf-8", newline="\n")
        os.replace(temporary, path)
    if not found:
        for name, picture in pictures(notebook).items():
            (ASSETS / name).write_bytes(picture)
    outcome = "not stored" if found else "unchanged" if text == stored else "stored"
    print(f"{path.name}: {outcome}, {time.perf_counter() - start:.0f} s", flush=True)
    return found


def pictures(notebook) -> dict[str, bytes]:
    """Return the pictures that cells give away, by file name in assets/: what the README shows.

    A cell names its picture in the metadata {"kvlib": {"asset": "name.png"}}.
    """
    found = {}
    for cell in notebook.cells:
        if name := cell.metadata.get("kvlib", {}).get("asset"):
            pages = (o.get("data", {}).get("text/html", "") for o in cell.outputs)
            encoded = next(filter(None, map(PICTURE.search, pages)))
            found[name] = base64.b64decode(encoded[0])
    return found


def from_script(script: Path) -> Path:
    """Turn a percent script into a lesson of the same name, and return the lesson's path."""
    import jupytext  # an author's tool; learners and tests do without it

    path = LESSONS / f"{script.stem}.ipynb"
    notebook = jupytext.read(script)
    if path.exists():
        stored = nbformat.read(path, as_version=4)
        notebook.metadata["kvlib"] = stored.metadata.get("kvlib", {})
        _carry_over(stored, notebook)
    _name_cells(notebook.cells)
    path.write_text(nbformat.writes(notebook) + "\n", "utf-8", newline="\n")
    return path


def _carry_over(stored, notebook) -> None:
    """Give cells that did not change the ids and outputs that they are stored with."""
    known = {}
    for cell in stored.cells:
        known.setdefault((cell.cell_type, cell.source), []).append(cell)
    for cell in notebook.cells:
        if same := known.get((cell.cell_type, cell.source)):
            was = same.pop(0)
            cell.id = was.id
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = was.outputs, was.execution_count


def main(arguments=None) -> int:
    """Build the named lessons, or all; return 1 where one has problems."""
    parser = argparse.ArgumentParser(
        prog="python course.py build", description=__doc__.split(":")[0]
    )
    parser.add_argument("names", nargs="*", help="beginnings of lessons' names, for example 03")
    parser.add_argument("--fresh", action="store_true", help="measure again what is measured")
    parser.add_argument(
        "--from-script",
        type=Path,
        metavar="FILE.py",
        action="append",
        default=[],
        help="first make the lesson of this name from a percent script",
    )
    options = parser.parse_args(arguments)
    paths = [from_script(script) for script in options.from_script]
    for name in options.names or ([] if paths else [""]):
        chosen = sorted(LESSONS.glob(f"{Path(name).stem if name else ''}*.ipynb"))
        if not chosen:
            print(f"There is no lesson {name}*.ipynb in {LESSONS.name}.", file=sys.stderr)
            return 1
        paths += chosen
    failed = False
    for path in dict.fromkeys(paths):
        for problem in build(path, options.fresh):
            failed = True
            print(f"{path.name}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
