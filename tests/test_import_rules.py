"""The arrows of the design, and what must answer without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import decodegap

SOURCE = Path(decodegap.__file__).parent
HEAVY = (
    *("torch", "transformers", "numpy", "scipy", "safetensors", "huggingface_hub", "triton"),
    *("ray", "altair", "vl_convert", "pyarrow"),
)

# What each part may import of the others. A part is the first name below `decodegap`.
ALLOWED: dict[str, set[str]] = {
    "units": set(),
    "errors": set(),
    "runtime_name": set(),
    "facts": set(),
    "grouping": set(),
    "predict": {"errors", "units"},
    "engine": {"predict", "errors"},
    "files": {"errors"},
    "record": {"predict", "errors"},
    "record_files": {"record", "files", "errors"},
    "measure": {
        *("record", "record_files", "files", "predict", "errors", "units", "runtime_name"),
        "__version__",
    },
    "explain": {"record", "predict", "errors", "units", "runtime_name", "grouping"},
    "doctor": {"measure", "record", "predict", "errors", "units"},
    "report": {"explain", "record", "predict", "errors", "units", "grouping"},
    "study": {
        *("explain", "measure", "record", "record_files", "files", "predict", "errors", "units"),
        "grouping",
    },
    "generate": {"engine", "measure", "explain", "record", "predict", "errors", "units"},
    "tuning": {"engine", "measure", "files", "predict", "errors", "units"},
    "__main__": {"cli"},
}
FREE = {"cli"}  # stands above all arrows

# Exceptions, file by file.
ALSO: dict[str, set[str]] = {
    "measure/runtimes/engine.py": {"engine"},
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """Parts of decodegap that a file imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [alias.name for alias in node.names]
            whole = node.module == "decodegap"
            found |= {f"decodegap.{name}" for name in names} if whole else {node.module}
    return {name.split(".")[1] for name in found if name.startswith("decodegap.")}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
RULED = [path for path in FILES if part_of(path) not in FREE]
PURE = (
    *("predict", "explain", "report", "record", "cli", "doctor", "plan"),
    *("units", "errors", "runtime_name"),
)


def test_the_reader_of_imports_sees_every_spelling(tmp_path):
    path = tmp_path / "some.py"
    path.write_text(
        "import decodegap.record\nfrom decodegap import cli\n"
        "def f():\n    from decodegap.measure.timers import wall\n"
    )
    assert imported_parts(path) == {"record", "cli", "measure"}


@pytest.mark.parametrize("path", RULED, ids=name_of)
def test_arrows_point_one_way(path):
    part = part_of(path)
    assert imported_parts(path) <= ALLOWED[part] | ALSO.get(name_of(path), set()) | {part}


def test_every_part_has_a_rule():
    assert {part_of(path) for path in FILES} <= set(ALLOWED) | FREE


def test_nobody_imports_the_command_line():
    importers = {part_of(path) for path in FILES if "cli" in imported_parts(path)}
    assert importers == {"__main__", "cli"}


def loaded_after(code: str) -> set[str]:
    """Which heavy packages a fresh process has loaded after `code`."""
    loaded = f"print(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    listing = f"import sys; {code}; {loaded}"
    ended = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stderr.split())


def pure_modules() -> list[str]:
    paths = [path.relative_to(SOURCE).with_suffix("") for path in FILES if part_of(path) in PURE]
    return [".".join(("decodegap", *path.parts)) for path in paths]


def test_the_check_for_heavy_packages_can_fail():
    assert "safetensors" in loaded_after("import safetensors")


def test_pure_modules_load_nothing_heavy():
    modules = pure_modules()
    some = {"decodegap.cli.program", "decodegap.predict.traffic", "decodegap.report.text"}
    assert some <= set(modules)
    assert loaded_after("import decodegap, " + ", ".join(modules)) == set()


def test_the_registry_of_runtimes_loads_nothing_heavy():
    assert loaded_after("import decodegap.measure.runtimes.registry") == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["floor", "qwen2.5-7b", "--flows"],
        ["floor", "qwen2.5-7b", "--json"],
        ["doctor"],
        ["report", "RECORDS"],
        ["plan", "qwen2.5-7b", "--rate", "50", "--records", "RECORDS"],
        ["--help"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_that_reads_loads_nothing_heavy(arguments, tmp_path):
    from builders import make_record
    from decodegap.record_files import write_record

    write_record(make_record(), tmp_path)
    arguments = [str(tmp_path) if word == "RECORDS" else word for word in arguments]
    run = (
        f"sys.argv = ['decodegap', *{arguments!r}]; from decodegap.cli import main; "
        "exec('try:\\n main()\\nexcept SystemExit as stop:\\n assert stop.code in (0, 1)')"
    )
    assert loaded_after(run) == set()


@pytest.mark.parametrize("path", [path for path in FILES if part_of(path) in PURE], ids=name_of)
def test_pure_files_name_no_heavy_package_at_their_top(path):
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    assert names.isdisjoint(HEAVY)
