"""Set up the course and run it, from nothing but Python 3.11 or newer.

    python course.py lab [options of JupyterLab]     open the lessons
    python course.py test [options of pytest]        run every test
    python course.py test --processors               compare the lessons as other processors round
    python course.py build [names of lessons]        run the notebooks again, store the outputs
    python course.py pack FOLDER                     fill a folder for a room with no network

Where there is no `python`, write `python3` (macOS, Debian, Ubuntu) or `py` (Windows).
Options of its own, after any command:

    --from FOLDER   take packages and the model from a folder made by `pack`, use no network
                    (the environment variable KVLIB_WHEELS=FOLDER does the same)
    --cpu, --cuda   on Linux: PyTorch without CUDA or with it; by itself it takes CUDA where it finds
                    an NVIDIA driver, as a download and on disk several GB more

Everything goes into the folder .venv beside this file; delete it to start afresh. `lab` opens your
own copies of the lessons, in my-notebooks: an update of the course replaces those whose cells you
never edited, and puts the new version of an edited one beside yours as NN_name.new.ipynb.

This file uses the standard library only. It must parse on an old Python too, to be able to say so.
"""

import sys


def python_problem(version, platform, machine, bits):
    """Return a sentence on why this Python cannot run the course, or None."""
    if tuple(version[:2]) < (3, 11):
        return (
            f"The course needs Python 3.11 or newer and this is {version[0]}.{version[1]}: install "
            "one from python.org and start with it, for example `python3.12 course.py lab`."
        )
    if bits < 64:
        return "This is a 32-bit Python, for which PyTorch does not exist: install a 64-bit one."
    if platform == "darwin" and machine == "x86_64":
        return (
            "PyTorch no longer exists for Intel Macs, or for an Intel Python on a newer Mac: use "
            "a native Python there, or another computer."
        )
    return None


if sys.version_info < (3, 11):
    sys.exit(python_problem(sys.version_info, sys.platform, "", 64))

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
LESSONS, MINE = "notebooks", "my-notebooks"
FIRST = "00_start_here.ipynb"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
GB = 10**9
ROOM, ROOM_CUDA = 2 * GB, 9 * GB  # free bytes that an installation needs, without and with CUDA
NVIDIA = (  # what the driver puts there: of Linux, of its container tools, of Windows for WSL
    "/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libnvidia-ml.so.1",
)  # fmt: skip

# Settings under which the number libraries of an x86-64 processor round as another one would.
NUMPY = "NPY_DISABLE_CPU_FEATURES"
PROCESSORS = {
    "as it is": {},
    "with AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell", NUMPY: "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "with AVX": {
        "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX", "MKL_CBWR": "AVX",
        "OPENBLAS_CORETYPE": "Sandybridge", NUMPY: "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
    "with SSE 4.1": {
        "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem", NUMPY: "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
}  # fmt: skip

LAB_DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


class Stop(Exception):
    """A step failed; the message says in one sentence what failed and what to do."""


def say(text):
    print(text, flush=True)


# ---------------------------------------------------------------- the environment in .venv


def venv_python():
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def clean_environment(**extra):
    """Return the environment for programs in .venv: none of the user's other Pythons leaks in."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    # torch's threads wait for each other by spinning; where another program wants a core too, that
    # makes a step ten times slower. Sleeping while they wait costs little where none does.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.update(PYTHONNOUSERSITE="1", JUPYTER_PREFER_ENV_PATH="1", **extra)
    return environment


def run(command, quiet=False, **extra):
    """Run a program to its end, or end it when this one is interrupted; return its exit status."""
    sink = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=clean_environment(**extra),
        stdout=sink,
        stderr=sink,
    )
    try:
        return process.wait()
    except BaseException as reason:
        if not isinstance(reason, KeyboardInterrupt):
            process.terminate()
        try:
            process.wait(5)  # Ctrl-C reached it too: let it finish in its own way
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def hand_over(command, **extra):
    """Become another program (on Windows: wait for it) and end with its exit status."""
    command = [str(part) for part in command]
    sys.stdout.flush()
    if os.name != "nt":
        os.chdir(ROOT)
        os.execve(command[0], command, clean_environment(**extra))
    signal.signal(signal.SIGINT, lambda *_: None)  # the other program answers Ctrl-C
    sys.exit(subprocess.call(command, cwd=ROOT, env=clean_environment(**extra)))


def requirement_files(tools):
    """Return the requirement files of an installation, with the test tools or without."""
    return [
        ROOT / name for name in ["requirements.txt"] + (["tests/requirements.txt"] if tools else [])
    ]


def fingerprint(tools):
    """Hash what an installation depends on: the requirement files, kvlib's own, and this folder."""
    digest = hashlib.sha256(str(ROOT).encode())
    for path in requirement_files(tools) + [ROOT / "pyproject.toml"]:
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def read_stamp():
    """Return what the last finished installation noted down, or {}."""
    try:
        return json.loads((VENV / "kvlib-stamp.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def write_stamp(stamp):
    temporary = VENV / "kvlib-stamp.tmp"
    temporary.write_text(json.dumps(stamp, indent=1), "utf-8")
    os.replace(temporary, VENV / "kvlib-stamp.json")


def nvidia_driver():
    """Say whether this Linux has an NVIDIA driver, by the driver's own files."""
    return any(os.path.exists(path) for path in NVIDIA)


def without_cuda(asked):
    """Say whether to leave CUDA out: as asked (None: as it was installed before, or as fits).

    Only Linux has the choice; elsewhere the usual PyTorch is the one there is.
    """
    if sys.platform != "linux":
        return False
    return read_stamp().get("cpu", not nvidia_driver()) if asked is None else asked


def room_needed(cpu, folder=None):
    """Return the free bytes that an installation of this kind needs."""
    return ROOM_CUDA if sys.platform == "linux" and not cpu and not folder else ROOM


def set_up(tools=False, cpu=None, folder=None):
    """Make .venv hold what is asked for; do nothing where it already does."""
    stamp = read_stamp()
    chosen, cpu = cpu is not None or "cpu" in stamp, without_cuda(cpu)
    part = "test" if tools else "lab"
    if (
        stamp.get(part) == fingerprint(tools)
        and not broken_off()
        and stamp.get("cpu", False) == cpu
        and venv_python().exists()
    ):
        return
    switched = bool(stamp) and stamp.get("cpu", False) != cpu
    make_venv(afresh=switched or broken_off())
    if not stamp or switched:
        stamp = {"cpu": cpu}
        announce_download(cpu, folder, chosen)
    say(
        f"Installing the packages of {requirement_files(tools)[-1].relative_to(ROOT)}; pip shows "
        "its progress, and can be quiet for some minutes at 'Installing collected packages'."
    )
    if cpu and not folder and not small_torch(pip_command("install"), must=chosen):
        announce_download(False, None, chosen=True)
    install(tools, folder)
    write_lab_defaults()
    write_kernel_environment()
    stamp[part] = fingerprint(tools)
    if tools:
        stamp["lab"] = fingerprint(False)
    write_stamp(stamp)


def setup_log():
    return VENV / "kvlib-setup.log"


def broken_off():
    """Say whether the last installation was cut off while packages were being written."""
    try:
        log = setup_log().read_text("utf-8", "replace")
    except OSError:
        return False
    return re.search(r"^\S+ Installing collected packages", log, re.M) is not None


def make_venv(afresh):
    """Make .venv where there is none that works."""
    works = venv_python().exists() and run([venv_python(), "-c", "import pip"], quiet=True) == 0
    if works and not afresh:
        return
    try:
        import ensurepip  # noqa: F401  (Debian packs both apart from Python)
        import venv  # noqa: F401
    except ImportError:
        raise Stop(
            "This Python has no venv module: on Debian and Ubuntu run `sudo apt install "
            "python3-venv`, elsewhere install Python from python.org, then start again."
        ) from None
    say("Making the folder .venv for the course's packages.")
    base_python = getattr(sys, "_base_executable", None) or sys.executable  # not .venv's own
    shutil.rmtree(VENV, ignore_errors=True)
    if run([base_python, "-m", "venv", "--clear", VENV]):
        raise Stop(
            f"Python could not make the folder .venv: check that you may write in {ROOT} and that "
            "the disk is not full, then start again."
        )


def announce_download(cpu, folder, chosen):
    """Say what is about to come and check that it fits on the disk."""
    free, need = shutil.disk_usage(ROOT).free, room_needed(cpu, folder)
    cuda = need == ROOM_CUDA
    if free < need:
        small = " (without an NVIDIA GPU add --cpu: it takes much less)" if cuda else ""
        raise Stop(
            f"The course needs about {need / GB:.0f} GB while it installs and the disk of {ROOT} has "
            f"{free / GB:.1f} GB free{small}: make room, then start again."
        )
    why = "" if chosen or sys.platform != "linux" else "This computer has {} NVIDIA driver. "
    if cuda:
        say(
            f"{why.format('an')}PyTorch comes with CUDA: about 3 GB will be fetched, once; it takes "
            "5.1 GB on disk. (--cpu takes PyTorch without CUDA.)"
        )
    elif not folder:
        other = " (--cuda takes PyTorch with CUDA.)" if why else ""
        say(
            f"{why.format('no')}About 0.4 GB will be fetched, once; it takes 1.4 GB on disk.{other}"
        )


def small_torch(pip, must):
    """Let pip take PyTorch without CUDA from its own index; return whether it could, or it must."""
    setup_log().unlink(missing_ok=True)
    # Five retries for each of a dozen packages would take minutes where the index cannot be reached.
    status = run(pip + [torch_requirement(), "--index-url", CPU_INDEX, "--retries", "2"])
    if must:
        finish_pip(status, None)
    if status:
        say("PyTorch without CUDA could not be had (see above): the usual one is taken instead.")
    return status == 0


def install(tools, folder):
    """Let pip install what the files ask for, then check that the main parts load."""
    setup_log().unlink(missing_ok=True)
    pip = pip_command("install")
    if folder:
        pip += ["--no-index", "--find-links", folder]
    finish_pip(run(pip + ["-r", requirement_files(tools)[-1].relative_to(ROOT).as_posix()]), folder)
    setup_log().unlink(missing_ok=True)
    say("Checking that PyTorch and JupyterLab load.")
    if run([venv_python(), "-c", "import torch, jupyterlab"]):
        raise Stop(
            "The packages are installed and do not load (see above; on Windows PyTorch needs "
            "Microsoft's Visual C++ Redistributable): repair that, delete the folder .venv and "
            "start again."
        )


def pip_command(verb):
    """Return pip's command line; what pip does goes into a log that later tells how far it came."""
    quiet = ["--disable-pip-version-check", "--no-input"]
    return [venv_python(), "-m", "pip", verb, *quiet, "--log", setup_log()]


def torch_requirement():
    """Return requirements.txt's pin of PyTorch."""
    return re.search(r"^torch==\S+", (ROOT / "requirements.txt").read_text("utf-8"), re.M).group()


def finish_pip(status, folder):
    """Turn a failure of pip into a sentence."""
    if status:
        try:
            log = setup_log().read_text("utf-8", "replace")
        except OSError:
            log = ""
        raise Stop(pip_failure(log, folder))


def pip_failure(log, folder):
    """Say in one sentence what made pip fail, from its log."""
    missing = re.search(r"No matching distribution found for (\S+)", log)
    if re.search(r"No space left|Errno 28|not enough space", log):
        need = room_needed(without_cuda(None), folder)
        return f"The disk is full: make room (about {need / GB:.0f} GB), then start again."
    if folder and missing:
        return (
            "{} holds no package {} that suits Python {}.{} on this system: fill it with `python "
            "course.py pack FOLDER` on a computer with the same system and Python.".format(
                folder, missing.group(1), *sys.version_info
            )
        )
    if re.search(
        r"name resolution|getaddrinfo|nodename nor servname|NewConnectionError|Max retries|"
        r"ConnectTimeout|unreachable|ReadTimeout|ProxyError|SSLError",
        log,
    ):
        return (
            "pip could not reach the package index: connect to the network and start again, or "
            "take the packages from a folder with --from FOLDER."
        )
    if missing:
        return (
            "There is no package {} for Python {}.{} on this system: install a Python from 3.11 "
            "to 3.14 and start with that one.".format(missing.group(1), *sys.version_info)
        )
    if re.search(
        r"DO NOT MATCH THE HASHES|incomplete-download|BadZipFile|Wheel .* is invalid", log
    ):
        return (
            "A package arrived damaged: start again, and pack the folder again if it came from one."
        )
    if re.search(r"Permission denied|Access is denied|being used by another", log):
        return (
            "pip may not write into .venv: close every JupyterLab of this course, then start again."
        )
    return (
        f"pip could not install the packages (its messages are above and in {setup_log()}): repair "
        "what it names, then start again."
    )


def write_lab_defaults():
    """Set JupyterLab's defaults in .venv: no news, notebooks drawn whole, panels saved as pictures."""
    path = VENV / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(LAB_DEFAULTS, indent=2) + "\n", "utf-8")
    path = VENV / "etc" / "jupyter" / "jupyter_server_config.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(server_config(ROOT), "utf-8")


def server_config(root):
    """Return a server's configuration that saves panels as pictures, in the way of root's kvlib."""
    hook = root / "kvlib" / "lab" / "saving.py"  # run by itself: the server needs no PyTorch
    keep = f"runpy.run_path({str(hook)!r})['keep_pictures']"
    return f"import runpy\n\nc.ContentsManager.pre_save_hook = {keep}\n"


def write_kernel_environment():
    """Let threads of every kernel sleep while they wait, whichever program starts the kernel."""
    for path in VENV.glob("share/jupyter/kernels/python3/kernel.json"):
        spec = json.loads(path.read_text("utf-8"))
        spec["env"] = {**spec.get("env", {}), "OMP_WAIT_POLICY": "PASSIVE"}
        path.write_text(json.dumps(spec, indent=1) + "\n", "utf-8")


# ---------------------------------------------------------------- the model


def fetch_model(folder=None, required=False):
    """Have the model's file in place, or say what happens without it."""
    command = [venv_python(), ROOT / "kvlib" / "model_file.py"]
    if run(command + (["--from", folder] if folder else [])) == 0:
        return
    if required:
        raise Stop(
            "The model is needed here and could not be had: see the line above, then start again."
        )
    say(
        "Without the model the lessons run on random weights and say so; the next start tries "
        "again."
    )


# ---------------------------------------------------------------- the learner's own copies


def cells_hash(path):
    """Hash what a person writes in a notebook (kinds and sources of cells), or a file's bytes."""
    data = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = json.loads(data.decode("utf-8"))["cells"]
            written = [[cell["cell_type"], "".join(cell["source"]).strip()] for cell in cells]
            data = json.dumps([cell for cell in written if cell[1]]).encode()
        except (ValueError, KeyError, TypeError):
            pass
    return hashlib.sha256(data).hexdigest()


def refresh_copies(lessons, mine):
    """Bring the learner's copies up to date and never lose an edit; return what was done.

    mine/.course.json remembers, for each file, the hash of the course's version last handed out.
    A copy that was only run counts as untouched. The result maps a name to "copied", "updated" or
    the name of the new version that was put beside an edited copy.
    """
    mine.mkdir(exist_ok=True)
    record = mine / ".course.json"
    try:
        handed_out = json.loads(record.read_text("utf-8"))
    except (OSError, ValueError):
        handed_out = {}
    done = {}
    for source in sorted(path for path in lessons.rglob("*") if path.is_file()):
        name = source.relative_to(lessons).as_posix()
        if any(part.startswith((".", "__pycache__")) for part in Path(name).parts):
            continue
        copy, new = mine / name, cells_hash(source)
        current = cells_hash(copy) if copy.exists() else None
        if current is None:
            place(source, copy)
            done[name] = "copied"
        elif new not in (handed_out.get(name), current):
            if current == handed_out.get(name):
                place(source, copy)
                done[name] = "updated"
            else:
                beside = free_name(copy)
                place(source, beside)
                done[name] = beside.name
        handed_out[name] = new
    temporary = mine / ".course.tmp"
    temporary.write_text(json.dumps(handed_out, indent=1), "utf-8")
    os.replace(temporary, record)
    return done


def place(source, target):
    """Copy a file so that the target is never half written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def free_name(copy):
    """Return NN_name.new.ipynb, or NN_name.new2.ipynb and so on where that exists."""
    for number in ["", *range(2, 1000)]:
        path = copy.with_name(f"{copy.stem}.new{number}{copy.suffix}")
        if not path.exists():
            return path
    raise Stop(f"There are a thousand new versions of {copy.name}: delete the old ones.")


# ---------------------------------------------------------------- the commands


def lab(options, cpu, folder):
    """Open the lessons in JupyterLab."""
    check_port(options)
    set_up(cpu=cpu, folder=folder)
    fetch_model(folder)
    try:
        done = refresh_copies(ROOT / LESSONS, ROOT / MINE)
    except OSError as error:
        raise Stop(
            f"Your copies of the lessons could not be written to {MINE} "
            f"({error.strerror or error}): make room there, or allow writing, then start again."
        ) from None
    for name, what in done.items():
        if what == "updated":
            say(f"{name} has a new version; yours had no edits and was replaced.")
        elif what != "copied":
            say(f"{name} has a new version: yours is kept, the new one lies beside it as {what}.")
    trust([ROOT / MINE / (name if what in ("copied", "updated") else what) for name, what in done.items()])
    say(f"Your lessons are in {MINE}. Ctrl-C here ends JupyterLab.")
    page = f"/lab/tree/{MINE}/{FIRST}" if (ROOT / MINE / FIRST).exists() else "/lab"
    defaults = ["--LabApp.default_url=" + page, "--ServerApp.root_dir=" + str(ROOT)]
    defaults += ["--ServerApp.answer_yes=True"]  # Ctrl-C ends it without a question
    if os.name != "nt" and os.geteuid() == 0:
        defaults.append("--allow-root")  # as in a container, where there is nobody else
    hand_over([venv_python(), "-m", "jupyterlab"] + defaults + options)


def trust(copies):
    """Let JupyterLab show the stored figures of the course's own lessons in its dark theme, too."""
    notebooks = [path for path in copies if path.suffix == ".ipynb"]
    if notebooks:
        run([venv_python(), "-m", "nbformat.sign", *notebooks], quiet=True)


def check_port(options):
    """Refuse a port that there is not, or that another program holds, before anything long begins."""
    match = re.search(r"(?:^|\s)--(?:ServerApp\.)?port(?:[= ](\S*)|$)", " ".join(options))
    if not match:
        return  # JupyterLab finds a free one by itself
    port = match.group(1) or ""
    if not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
        raise Stop(f"There is no port '{port:.20}': choose one from 1024 to 65535.")
    with socket.socket() as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(port)))
        except OSError:
            raise Stop(
                f"Port {port} is taken or not allowed: end the program that holds it, or choose "
                "another with --port."
            ) from None


def test(options, cpu, folder):
    """Run every test, or what pytest's options choose."""
    everywhere = "--processors" in options
    if everywhere and platform.machine() not in ("x86_64", "AMD64"):
        raise Stop("--processors sets how an x86-64 processor rounds, and this one is of another kind.")
    set_up(tools=True, cpu=cpu, folder=folder)
    options = [option for option in options if option != "--processors"]
    fetch_model(folder, required=everywhere or bool(os.environ.get("CI")))
    workers = str(min(4, os.cpu_count() or 1))
    pytest = [venv_python(), "-m", "pytest", "-n", workers, "--dist", "loadfile", "--timeout=300"]
    if everywhere:
        return on_all_processors(pytest, options or [LESSONS])
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # the workers share the cores
    hand_over(pytest + options, OMP_NUM_THREADS=threads)


def on_all_processors(pytest, options):
    """Run the same tests as each of PROCESSORS would round, with one thread and with two."""
    failed = []
    patient = ["--nbval-cell-timeout=900", "--timeout=1200"]  # an old processor is several times slower
    for name, settings in PROCESSORS.items():
        for threads in ("1", "2"):
            title = f"{name}, {threads} thread" + "s" * (threads != "1")
            say(f"===== {title}: {' '.join(f'{k}={v!r}' for k, v in settings.items())}")
            if run(pytest + patient + options, OMP_NUM_THREADS=threads, **settings):
                failed.append(title)
    if failed:
        raise Stop(f"Other results were found on a processor {'; '.join(failed)}.")
    say(f"The same results on all {2 * len(PROCESSORS)} combinations of processor and threads.")


def build(options, cpu, folder):
    """Run the notebooks again and store clean outputs."""
    set_up(cpu=cpu, folder=folder)
    fetch_model(folder, required=True)
    hand_over([venv_python(), "-m", "kvlib.teach.build"] + options)


def pack(options, cpu, folder):
    """Fill a folder from which --from sets up the course with no network."""
    if len(options) != 1 or options[0][:1] in ("", "-"):
        raise Stop("Name the folder to fill: python course.py pack FOLDER")
    target = Path(options[0]).absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(f"{target} cannot be made ({error.strerror}): name another folder.") from None
    chosen, cpu = cpu is not None, without_cuda(cpu)
    need = room_needed(cpu)
    if shutil.disk_usage(target).free < need:
        raise Stop(
            f"The disk of {target} has less than {need / GB:.0f} GB free: make room or name another."
        )
    make_venv(afresh=False)
    pip = pip_command("download") + ["--dest", target, "--find-links", target]
    if cpu:
        small_torch(pip, must=chosen)
    setup_log().unlink(missing_ok=True)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    backend = re.search(r'requires = \["(.+?)"\]', project).group(1)  # it builds kvlib itself
    finish_pip(run(pip + packages(ROOT / "requirements.txt") + [backend]), folder)
    setup_log().unlink(missing_ok=True)
    fetch_model(folder, required=True)
    if run([venv_python(), ROOT / "kvlib" / "model_file.py", "--copy-to", target]):
        raise Stop(f"The model could not be copied to {target}: make room there, then start again.")
    say(
        "{} is ready for computers with this system and Python {}.{}: copy it and the course "
        "there and run\n    python course.py lab --from FOLDER".format(target, *sys.version_info)
    )


def packages(path):
    """Return the requirements of a file, without comments and without the course's own package."""
    lines = (line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("-")]


COMMANDS = {"lab": lab, "test": test, "build": build, "pack": pack}


def split_options(arguments):
    """Take this file's own options out; return (the rest in order, cpu, folder).

    cpu: True for --cpu, False for --cuda, None where neither is said.
    """
    rest, cpu, folder = [], None, os.environ.get("KVLIB_WHEELS") or None
    arguments = list(arguments)
    while arguments:
        argument = arguments.pop(0)
        if argument in ("--cpu", "--cuda"):
            if cpu not in (None, argument == "--cpu"):
                raise Stop("Give --cpu or --cuda, not both.")
            cpu = argument == "--cpu"
        elif argument == "--from" or argument.startswith("--from="):
            folder = argument[len("--from=") :] or (arguments.pop(0) if arguments else "")
            if not folder:
                raise Stop("--from needs a folder: python course.py lab --from FOLDER")
        elif re.match("--(cpu|cuda|processor)", argument) and argument != "--processors":
            raise Stop(f"There is no option {argument}: write --cpu, --cuda or --processors.")
        else:
            rest.append(argument)
    if folder is not None:
        folder = str(Path(folder).expanduser().absolute())
        if not Path(folder).is_dir():
            raise Stop(
                f"There is no folder {folder}: check the name after --from (or in KVLIB_WHEELS)."
            )
    return rest, cpu, folder


def main(arguments):
    """Run one command and return the exit status."""
    asked = {"-h", "--help"} & set(arguments if arguments[:1] == ["lab"] else arguments[:1])
    asked = asked or arguments[:1] == ["help"]
    if asked or not arguments or arguments[0] not in COMMANDS:
        if arguments and not asked:
            print(f"There is no command {arguments[0]}.\n")
        print(__doc__.strip())
        return 0 if asked else 2
    problem = python_problem(
        sys.version_info, sys.platform, platform.machine(), 8 * struct.calcsize("P")
    )
    try:
        if problem:
            raise Stop(problem)
        options, cpu, folder = split_options(arguments[1:])
        COMMANDS[arguments[0]](options, cpu, folder)
        return 0
    except Stop as stop:
        print(stop, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the next start goes on from here.", file=sys.stderr)
        return 130
    except OSError as error:
        print(
            "{}: {}; check the disk and your permissions there, then start again.".format(
                error.filename or "The system refused", error.strerror or error
            ),
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    # A terminated set-up ends its pip too, instead of leaving it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
