"""course.py: it parses on old Pythons, does nothing twice, and says in one sentence what failed."""

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "course.py"
STARTED = "2026-01-01T10:00:00,000 Installing collected packages: torch\n"
NESTED = "2026-01-01T10:00:00,000   Installing collected packages: setuptools\n"


@pytest.fixture
def programs(course, monkeypatch):
    """Record what course.py would run; `programs.status` maps a word of a command to its status."""

    class Programs(list):
        status = {}
        log = ""

    ran = Programs()

    def run(command, quiet=False, **extra):
        line = " ".join(map(str, command))
        ran.append(line)
        if " -m venv" in line:
            course.venv_python().parent.mkdir(parents=True, exist_ok=True)
            course.venv_python().touch()
        if " pip install" in line:
            course.setup_log().write_text(ran.log)
        return next((code for word, code in ran.status.items() if word in line), 0)

    monkeypatch.setattr(course, "run", run)
    monkeypatch.setattr(course, "hand_over", lambda command, **extra: ran.append(str(command)))
    return ran


def sentence(text):
    """Assert that a message is one line that ends with a full stop, and return it."""
    text = text.strip()
    assert len(text.splitlines()) == 1 and text.endswith((".", "FOLDER")), text
    return text


def failing(course, capsys, *arguments):
    assert course.main(list(arguments)) == 1
    return sentence(capsys.readouterr().err)


# ---------------------------------------------------------------- this Python


def test_parses_on_an_old_python_and_uses_the_standard_library_only():
    tree = ast.parse(SOURCE.read_text("utf-8"), feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            assert set(name.split(".")[0] for name in names) <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("version", "platform", "machine", "bits", "words"),
    [
        ((3, 10, 13), "linux", "x86_64", 64, "needs Python 3.11 or newer and this is 3.10"),
        ((3, 6), "win32", "AMD64", 64, "python.org"),
        ((3, 12), "win32", "x86", 32, "64-bit"),
        ((3, 12), "darwin", "x86_64", 64, "Intel Macs"),
    ],
)
def test_an_unsuitable_python_gets_a_sentence(course, version, platform, machine, bits, words):
    assert words in sentence(course.python_problem(version, platform, machine, bits))


def test_suitable_pythons_pass(course):
    for platform, machine in [("linux", "aarch64"), ("win32", "AMD64"), ("darwin", "arm64")]:
        assert course.python_problem((3, 11), platform, machine, 64) is None


# ---------------------------------------------------------------- set-up


def test_a_second_set_up_runs_nothing(course, programs):
    course.set_up()
    assert any("pip install" in line for line in programs)
    programs.clear()
    course.set_up()
    assert programs == []


def test_changed_requirements_are_installed_into_the_same_environment(course, programs):
    course.set_up()
    with (course.ROOT / "requirements.txt").open("a") as file:
        file.write("another==1.0\n")
    programs.clear()
    course.set_up()
    assert any("pip install" in line for line in programs)
    assert not any(" -m venv" in line for line in programs)


def test_test_tools_come_on_top_and_lab_needs_nothing_more(course, programs):
    course.set_up(tools=True)
    programs.clear()
    course.set_up()
    assert programs == []


def test_a_broken_off_installation_is_made_afresh(course, programs):
    course.set_up()
    course.setup_log().write_text(STARTED)
    programs.clear()
    course.set_up()
    assert any(" -m venv" in line for line in programs)


def test_a_set_up_that_failed_before_it_installed_keeps_the_environment(course, programs):
    course.set_up()
    course.setup_log().write_text(NESTED)
    programs.clear()
    course.set_up()
    assert programs == []


def test_a_moved_course_is_set_up_again(course, programs, tmp_path, monkeypatch):
    course.set_up()
    moved = tmp_path / "moved"
    shutil.move(course.ROOT, moved)
    monkeypatch.setattr(course, "ROOT", moved)
    monkeypatch.setattr(course, "VENV", moved / ".venv")
    programs.clear()
    course.set_up()
    assert any("pip install" in line for line in programs)


def test_a_folder_takes_the_place_of_the_network(course, programs, tmp_path):
    course.set_up(folder=str(tmp_path))
    installs = [line for line in programs if "pip install" in line]
    assert installs and all(f"--no-index --find-links {tmp_path}" in line for line in installs)


@pytest.fixture
def linux(course, monkeypatch, tmp_path):
    """Make this a Linux without an NVIDIA driver; return the place of the driver's file."""
    driver = tmp_path / "nvidia-version"
    monkeypatch.setattr(course.sys, "platform", "linux")
    monkeypatch.setattr(course, "NVIDIA", [str(driver)])
    return driver


@pytest.mark.parametrize(
    ("driver", "asked", "small"),
    [(False, None, True), (True, None, False), (True, True, True), (False, False, False)],
)
def test_linux_takes_cuda_where_the_driver_is_unless_told(
    course, programs, linux, driver, asked, small
):
    if driver:
        linux.touch()
    course.set_up(cpu=asked)
    installs = [line for line in programs if "pip install" in line]
    assert [course.CPU_INDEX in line for line in installs] == [True, False][not small :]
    assert not small or "torch==" in installs[0] and "--retries 2" in installs[0]
    programs.clear()
    linux.unlink(missing_ok=True) if driver else linux.touch()
    course.set_up()  # the choice stays, whatever is found later
    assert programs == []
    course.set_up(cpu=not small)  # until another one is made
    assert any(" -m venv" in line for line in programs)


def test_each_file_of_a_driver_means_a_driver(course, monkeypatch):
    assert len(course.NVIDIA) == 3
    for only in course.NVIDIA:
        monkeypatch.setattr(course.os.path, "exists", lambda path, only=only: path == only)
        assert course.nvidia_driver(), only
    monkeypatch.setattr(course.os.path, "exists", lambda path: False)
    assert not course.nvidia_driver()


def test_elsewhere_there_is_one_pytorch(course, programs, monkeypatch):
    for system in ("darwin", "win32"):
        monkeypatch.setattr(course.sys, "platform", system)
        assert not course.without_cuda(None) and not course.without_cuda(True)
        assert course.room_needed(False) == course.ROOM


def test_without_the_small_pytorchs_index_the_usual_one_comes(course, programs, capsys, linux):
    programs.status = {course.CPU_INDEX: 1}
    course.set_up()
    assert "the usual one is taken" in capsys.readouterr().out
    assert any("requirements.txt" in line for line in programs)


def test_without_the_small_pytorchs_index_an_explicit_wish_fails(course, programs, capsys, linux):
    programs.status, programs.log = {course.CPU_INDEX: 1}, "getaddrinfo failed"
    assert "connect to the network" in failing(course, capsys, "lab", "--cpu")
    assert not any("requirements.txt" in line for line in programs)


def test_every_front_end_gets_threads_that_sleep_while_they_wait(course, programs):
    spec = course.VENV / "share/jupyter/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["python"], "env": {"KEPT": "1"}}')
    course.write_kernel_environment()
    written = json.loads(spec.read_text())
    assert written == {"argv": ["python"], "env": {"KEPT": "1", "OMP_WAIT_POLICY": "PASSIVE"}}


def test_this_environments_kernel_has_them():
    """The environment that course.py made; another one may be without."""
    stamp = Path(sys.prefix) / "kvlib-stamp.json"
    if not stamp.exists():
        pytest.skip("this Python's environment was not made by course.py")
    spec = json.loads((Path(sys.prefix) / "share/jupyter/kernels/python3/kernel.json").read_text())
    assert spec["env"]["OMP_WAIT_POLICY"] == "PASSIVE"


def test_lab_settings_are_written(course, programs):
    course.set_up()
    text = (course.VENV / "share/jupyter/lab/settings/overrides.json").read_text()
    assert '"fetchNews": "false"' in text and '"windowingMode": "none"' in text
    config = (course.VENV / "etc/jupyter/jupyter_server_config.py").read_text()
    assert str(course.ROOT / "kvlib/lab/saving.py") in config


# ---------------------------------------------------------------- failures


def test_no_venv_module(course, programs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "apt install python3-venv" in failing(course, capsys, "lab")


def test_venv_cannot_be_made(course, programs, capsys):
    programs.status = {" -m venv": 1}
    assert "check that you may write" in failing(course, capsys, "lab")


@pytest.mark.parametrize("driver", [False, True])
def test_disk_too_small(course, programs, capsys, monkeypatch, linux, driver):
    usage = namedtuple("usage", "total used free")(0, 0, (5 if driver else 1) * 10**9)
    monkeypatch.setattr(course.shutil, "disk_usage", lambda path: usage)
    if driver:
        linux.touch()
    message = failing(course, capsys, "lab")
    assert ("has 5.0 GB free" if driver else "has 1.0 GB free") in message and "make room" in message
    assert ("add --cpu" in message) == driver
    assert not any("pip install" in line for line in programs)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("Failed to establish: Temporary failure in name resolution", "connect to the network"),
        ("[Errno 11001] getaddrinfo failed", "connect to the network"),
        ("No matching distribution found for torch==2.13.0", "no package torch==2.13.0 for Python"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES", "arrived damaged"),
        ("[WinError 5] Access is denied: 'zmq.pyd'", "close every JupyterLab"),
        ("something else", "its messages are above"),
    ],
)
def test_pip_fails(course, programs, capsys, log, words):
    programs.status, programs.log = {"pip install": 1}, log
    assert words in failing(course, capsys, "lab")
    assert course.read_stamp() == {}


def test_a_folder_without_the_packages(course, programs, capsys, tmp_path):
    programs.status = {"pip install": 1}
    programs.log = "No matching distribution found for torch==2.13.0"
    message = failing(course, capsys, "lab", "--from", str(tmp_path))
    assert "holds no package torch==2.13.0" in message and "course.py pack" in message


def test_pips_real_message_from_an_empty_folder_is_understood(course, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)]
    command += ["--dry-run", "--log", str(log), "no-such-package-kvlib==1"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    subprocess.run(command, capture_output=True, env=environment)
    text = course.pip_failure(log.read_text(), str(tmp_path))
    assert "holds no package no-such-package-kvlib==1" in sentence(text)


def test_packages_that_do_not_load(course, programs, capsys):
    programs.status = {"import torch": 1}
    assert "do not load" in failing(course, capsys, "lab")


def test_no_such_folder(course, programs, capsys, tmp_path):
    assert "There is no folder" in failing(course, capsys, "lab", "--from", str(tmp_path / "no"))
    assert "--from needs a folder" in failing(course, capsys, "lab", "--from")


def test_port_taken(course, programs, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"Port {port} is taken" in failing(course, capsys, "lab", "--port", port)
        assert f"Port {port} is taken" in failing(course, capsys, "lab", f"--port={port}")
    assert programs == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("lab --port abc", "There is no port 'abc'"),
        ("lab --port=-1", "There is no port '-1'"),
        ("lab --ServerApp.port=70000", "There is no port '70000'"),
        ("lab --no-browser --port", "There is no port ''"),
        ("lab --port=" + "9" * 5000, "There is no port"),
        ("test --processor", "There is no option --processor:"),
        ("test --processors=2", "There is no option --processors=2:"),
        ("lab --cpu=1", "There is no option --cpu=1:"),
        ("lab --cpu --cuda", "not both"),
        ("pack ", "Name the folder"),
    ],
)
def test_a_slip_is_refused_before_anything_is_set_up(course, programs, capsys, arguments, words):
    assert words in failing(course, capsys, *arguments.split(" "))
    assert programs == [] and not course.VENV.exists()


@pytest.mark.parametrize("arguments", ["lab --help", "lab --no-browser -h"])
def test_help_is_shown_before_anything_is_set_up(course, programs, capsys, arguments):
    assert course.main(arguments.split()) == 0
    assert "python course.py lab" in capsys.readouterr().out and programs == []


def test_options_that_begin_like_a_port_are_passed_on(course, programs):
    (course.ROOT / course.LESSONS).mkdir()
    assert course.main(["lab", "--port-retries=5", "--ServerApp.port_retries", "5"]) == 0


def test_without_the_model_the_lab_starts_and_ci_stops(course, programs, capsys, monkeypatch):
    (course.ROOT / course.LESSONS).mkdir()
    programs.status = {"model_file.py": 1}
    assert course.main(["lab"]) == 0
    assert "random weights" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    assert "model is needed" in failing(course, capsys, "test")
    monkeypatch.delenv("CI")
    assert course.main(["test"]) == 0
    assert "model is needed" in failing(course, capsys, "build")


def test_interrupting_is_quiet(course, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(course, "set_up", interrupted)
    assert course.main(["lab"]) == 130
    sentence(capsys.readouterr().err)


def test_a_refusal_by_the_system_is_a_sentence(course, capsys, monkeypatch):
    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied", "requirements.txt")

    monkeypatch.setattr(course, "set_up", refused)
    assert "requirements.txt: Permission denied" in failing(course, capsys, "lab")


# ---------------------------------------------------------------- the commands


def test_lab_passes_options_on_and_keeps_its_own(course, programs, tmp_path):
    (course.ROOT / course.LESSONS).mkdir()
    (course.ROOT / course.LESSONS / course.FIRST).write_text("{}")
    folder = str(tmp_path)
    assert course.main(["lab", "--no-browser", "--cpu", "--port", "0", "--from", folder, "-y"]) == 0
    assert programs[-1].endswith("'--no-browser', '--port', '0', '-y']")
    assert "/lab/tree/my-notebooks/00_start_here.ipynb" in programs[-1]


def test_lab_trusts_the_copies_that_it_hands_out_and_no_edited_one(course, programs):
    lesson = course.ROOT / course.LESSONS / course.FIRST
    lesson.parent.mkdir()
    lesson.write_text('{"cells": []}')
    mine = course.ROOT / course.MINE / course.FIRST

    def trusted():
        programs.clear()
        assert course.main(["lab"]) == 0
        return [line.split("nbformat.sign ")[1] for line in programs if "nbformat.sign" in line]

    assert trusted() == [str(mine)]
    assert trusted() == []
    mine.write_text('{"cells": [{"cell_type": "code", "source": "edited"}]}')
    lesson.write_text('{"cells": [{"cell_type": "code", "source": "new"}]}')
    assert trusted() == [str(mine.with_name("00_start_here.new.ipynb"))]


def test_test_passes_options_to_pytest(course, programs):
    assert course.main(["test", "tests/unit", "-x"]) == 0
    assert "'pytest'" in programs[-1] and programs[-1].endswith("'tests/unit', '-x']")


def test_processors_stops_where_the_settings_do_not_act(course, programs, capsys, monkeypatch):
    monkeypatch.setattr(course.platform, "machine", lambda: "aarch64")
    assert "x86-64" in failing(course, capsys, "test", "--processors")
    assert programs == []


def test_old_processors_have_none_of_the_later_ones_instructions(course):
    later = ["X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"]
    off = [settings.get(course.NUMPY, "").split() for settings in course.PROCESSORS.values()]
    assert off == [[], later[1:], later, later]


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_processors_runs_the_lessons_once_for_each_and_reports_those_that_differ(
    course, programs, capsys, monkeypatch, machine
):
    monkeypatch.setattr(course.platform, "machine", lambda: machine)
    assert course.main(["test", "--processors"]) == 0
    runs = [line for line in programs if " pytest " in line]
    assert len(runs) == 2 * len(course.PROCESSORS) and all(line.endswith("notebooks") for line in runs)
    programs.status = {" pytest ": 1}
    assert course.main(["test", "--processors", "notebooks/03_building_the_cache.ipynb"]) == 1
    said = capsys.readouterr().err
    assert all(f"{name}, {n} thread" in said for name in course.PROCESSORS for n in (1, 2))
    assert programs[-1].endswith("notebooks/03_building_the_cache.ipynb")


@pytest.mark.parametrize("driver", [False, True])
def test_pack_fills_a_folder_with_what_lab_installs(course, programs, tmp_path, linux, driver):
    if driver:
        linux.touch()
    target = tmp_path / "usb"
    assert course.main(["pack", str(target)]) == 0
    *small, line = [line for line in programs if "pip download" in line]
    assert [course.CPU_INDEX in line for line in small] == ([] if driver else [True])
    assert f"--dest {target}" in line and "torch==" in line and "setuptools" in line
    assert "-e" not in line.split()
    assert any(f"--copy-to {target}" in line for line in programs)


def test_pack_needs_a_folder(course, programs, capsys):
    assert "Name the folder" in failing(course, capsys, "pack")


def test_no_command_shows_the_usage(course, capsys):
    assert course.main([]) == 2
    assert course.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "python course.py lab" in said and "There is no command" not in said


@pytest.mark.parametrize("arguments", [["Lab"], ["--cpu", "lab"]])
def test_an_unknown_command_is_named_above_the_usage(course, capsys, arguments):
    assert course.main(arguments) == 2
    first, *usage = capsys.readouterr().out.splitlines()
    assert first == f"There is no command {arguments[0]}." and "python course.py lab" in "".join(usage)


def test_run_returns_the_status_and_hides_other_pythons(course, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    code = "import os, sys; sys.exit(3 if 'PYTHONPATH' not in os.environ else 4)"
    assert course.run([sys.executable, "-c", code]) == 3


def test_a_terminated_set_up_ends_its_program(course):
    code = f"import sys, time; sys.path.insert(0, {str(SOURCE.parent)!r}); import course, signal\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    code += "child = 'import time; print(1, flush=True); time.sleep(60)'\n"
    code += "course.run([sys.executable, '-c', child])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.terminate()
    assert process.stdout.read() == b""  # the child holds the pipe until it ends
    assert process.wait(10) != 0
    process.stdout.close()


# ---------------------------------------------------------------- requirement files


def test_every_requirement_is_pinned_and_says_what_it_is_for():
    for name in ("requirements.txt", "tests/requirements.txt"):
        for line in (SOURCE.parent / name).read_text().splitlines():
            if line and not line.startswith(("#", "-r")):
                pin, _, purpose = line.partition("#")
                assert "==" in pin or pin.strip() == "-e .", line
                assert purpose.strip(), line
