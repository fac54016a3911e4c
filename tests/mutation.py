"""Changes the code in small ways, and sees whether the tests fail: mutation testing.

    pip install cosmic-ray
    python -m tests.mutation --count 300 --seed 0

The operators of cosmic-ray make the mutants: a number, an operator, a comparison, a
condition, a loop, a decorator or an exception of a module is changed. Left out is what
cannot matter: annotations, overloads, what stands under `TYPE_CHECKING`, and what does
not compile. Drawn are places of the code, and of each one mutant, by a hash: a change
of the code leaves what is drawn of other lines as it is.

First the tests run once, with coverage, which tells the tests that reach a line: remove
the folders beside the results after a change of the tests. Then each mutant is written
into a copy of the clone, where tests run until one fails: those that reach the line
first. It survives if none does. The same command goes on where it was stopped, and with
`--again` tries what survived. Ends with the survivors and a table.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import difflib
import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import xml.etree.ElementTree
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("layers", "decoding", "scheduling", "training", "text")
# PyTorch starts fastest. TensorFlow then tries what survived there.
TESTS = {
    "torch": "layers decoding scheduling training text models test_contract.py "
    "test_translator.py test_translator_search.py test_text_generator.py "
    "test_terminology.py test_arguments.py test_bad_arguments.py test_empty.py "
    "test_unknown_arguments.py test_audit.py test_golden.py test_recipes.py "
    "test_doctests.py",
    "tensorflow": "text layers/test_chunked.py layers/test_dropout.py "
    "layers/test_factors.py layers/test_unpadding.py training/test_crossentropy.py "
    "training/test_losses.py training/test_optimizers.py",
}
PYTEST = "pytest -q -p no:cacheprovider --hypothesis-seed=0".split()
FORK = multiprocessing.get_context("fork")
# Some mutants ask for all the memory there is.
MEMORY = 20 * 2**30


class Mutant(NamedTuple):
    """The change that an operator makes in a module at its `occurrence`-th chance."""

    module: str
    line: int
    place: str
    operator: str
    occurrence: int


def list_mutants(module):
    """Yields all mutants of a module."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    source = (ROOT / module).read_text()
    lines, ignored = source.splitlines(), spans_of_types(ast.parse(source))
    nodes = list(ast_nodes(get_ast(source)))
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if operator.arguments():
            continue  # It needs the names of variables.
        find = operator().mutation_positions
        starts = (start for node in nodes for start, _ in find(node))
        for occurrence, (line, column) in enumerate(starts):
            if not any(begin <= (line, column) < end for begin, end in ignored):
                text = lines[line - 1]
                place = f"{module} {lines[:line].count(text)} {column} {text}"
                yield Mutant(module, line, place, name, occurrence)


def spans_of_types(tree):
    """Returns the spans of the code that only a type checker reads."""
    nodes = []
    for node in ast.walk(tree):
        nodes += [getattr(node, name, None) for name in ("annotation", "returns")]
        decorators = getattr(node, "decorator_list", [])
        if "overload" in map(ast.unparse, decorators):
            nodes += [*decorators, node]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in nodes
        if node
    ]


def draw(count, seed):
    """Draws places of the folders; returns a mutant of each, with the mutated code."""

    def rank(text):
        return hashlib.sha256(f"{seed} {text}".encode()).digest()

    places = collections.defaultdict(list)
    for folder in FOLDERS:
        for path in (ROOT / "keras_seqattn" / folder).rglob("*.py"):
            for mutant in list_mutants(str(path.relative_to(ROOT))):
                places[mutant.place].append(mutant)
    drawn = []
    for place in sorted(places, key=rank):
        if len(drawn) == count:
            break
        ordered = sorted(places[place], key=lambda mutant: rank(mutant.operator))
        codes = ((mutant, mutate(mutant)) for mutant in ordered)
        drawn += [pair for pair in codes if pair[1]][:1]
    return drawn


def mutate(mutant):
    """Returns the code of a module with a mutant in it, or None if it is none."""
    from cosmic_ray import mutating, plugins

    source = (ROOT / mutant.module).read_text()
    operator = plugins.get_operator(mutant.operator)()
    code = mutating.mutate_code(source, operator, mutant.occurrence)
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(SyntaxError):
        compile(code, mutant.module, "exec")
        return code


def record_tests(folder, backend):
    """Returns coverage's record of the tests, made once, and the seconds of each."""
    import coverage

    folder.mkdir(parents=True, exist_ok=True)
    data = coverage.CoverageData(str(folder / "coverage"))
    report = folder / "tests.xml"
    if not report.exists():
        options = ["--cov=keras_seqattn", "--cov-context=test", "--cov-report="]
        subprocess.run(
            [sys.executable, "-m", *PYTEST, *options, f"--junitxml={report}"]
            + [f"tests/{name}" for name in TESTS[backend].split()],
            cwd=ROOT,
            env=os.environ
            | {"COVERAGE_FILE": data.data_filename(), "KERAS_BACKEND": backend},
            stdout=sys.stderr,
        )
    data.read()
    passed = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if not len(case):  # It has the reason, where a test failed or was skipped.
            path = case.get("classname").replace(".", "/")
            passed[f"{path}.py::{case.get('name')}"] = float(case.get("time"))
    return data, passed


def choose_tests(mutant, record, limit):
    """Returns tests for a mutant, likely ones first, and those that reach its lines."""
    data, seconds = record
    contexts = data.contexts_by_lineno(str(ROOT / mutant.module))
    reached = {
        line: {name.rpartition("|")[0] for name in names}
        for line, names in contexts.items()
    }
    reaching = set().union(*(reached.get(line, ()) for line in lines_of(mutant)))
    others = set().union(*reached.values())
    others |= {name for name in seconds if distance(mutant.module, name) == 0}
    variants = collections.Counter()
    ordered = []
    for name in sorted(others & set(seconds), key=seconds.get):
        function = name.split("[")[0]
        variants[function] += 1
        key = (name not in reaching, variants[function], distance(mutant.module, name))
        ordered.append((*key, seconds[name], name))
    chosen = []
    for *_, took, name in sorted(ordered):
        if not chosen or took <= limit:
            chosen.append(name)
            limit -= took
    return chosen, reaching.intersection(chosen)


def lines_of(mutant):
    """Returns the lines of the innermost statement: of a function's head, all of it."""
    tree = ast.parse((ROOT / mutant.module).read_text())
    for node in ast.walk(tree):  # from the outermost inwards
        if isinstance(node, ast.stmt):
            decorators = getattr(node, "decorator_list", [])
            first = min([part.lineno for part in (node, *decorators)])
            if first <= mutant.line <= node.end_lineno:
                lines = range(first, node.end_lineno + 1)
    return lines


def distance(module, name):
    """Returns 0 for a test in a file of the module's name, 1 for one in its folder."""
    _, folder, *parts = pathlib.Path(module).with_suffix("").parts
    path = name.split("::")[0]
    if path in [f"tests/{folder}/test_{part}.py" for part in parts]:
        return 0
    return 1 if path.startswith(f"tests/{folder}/") else 2


def prepare(backend):
    """Imports, once for all that are forked, what takes long and is not ours."""
    os.environ |= {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    for name in ("keras", "hypothesis"):
        importlib.import_module(name)


def run_pytest(clone, arguments):
    """Runs pytest in a copy of the clone, of which the process has imported nothing."""
    import pytest

    os.setsid()
    os.chdir(clone)
    os.environ["PYTHONPATH"] = str(clone)
    sys.path[:] = [str(clone), *(path for path in sys.path if path != str(ROOT))]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("keras_seqattn", "tests"):
            del sys.modules[name]
    with open("output", "w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os._exit(pytest.main([*PYTEST[1:], *arguments]))


def run_tests(arguments, limit, module="", code=""):
    """Runs tests on changed code; returns pytest's status, or None, and its output."""
    ignored = shutil.ignore_patterns(".*", "runs", "build", "dist")
    with tempfile.TemporaryDirectory() as folder:
        clone = pathlib.Path(folder) / "clone"
        shutil.copytree(ROOT, clone, ignore=ignored)  # compiled files as well
        if module:
            (clone / module).write_text(code)
        process = FORK.Process(target=run_pytest, args=(clone, arguments))
        process.start()
        for _ in range(int(limit)):  # seconds, without those in which all is paused
            process.join(1)
            if process.exitcode is not None:
                break
        status = process.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and all that it started
        process.join()
        return status, (clone / "output").read_text(errors="replace")


def judge(mutant, code, backend, tests, reaching, limit):
    """Runs the tests of a mutant; returns what is kept of it."""
    source = (ROOT / mutant.module).read_text().splitlines()
    diff = list(difflib.unified_diff(source, code.splitlines(), n=2, lineterm=""))
    start = time.monotonic()
    status, output = 0, ""
    if tests:
        status, output = run_tests(["-x", *tests], limit, mutant.module, code)
    # A test that is not there, also by a fault of the record, ends with status 4 too.
    unclear = status == 4 and "ERROR collecting" not in output
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", output, re.M)
    return {
        **mutant._asdict(),
        "verdict": "survived" if status == 0 else "unclear" if unclear else "killed",
        "by": "time" if status is None else "".join(failed[:1]),
        "backend": backend,
        "tests": len(tests),
        "reaching": len(reaching),
        "seconds": round(time.monotonic() - start, 1),
        "diff": "\n".join(diff[2:]),
    }


def read_results(path):
    """Maps the places of the mutants in a file of results to the last result."""
    lines = path.read_text().splitlines() if path.exists() else ()
    return {result["place"]: result for result in map(json.loads, lines)}


def print_results(results):
    """Prints the mutants that no test killed, and a row for each folder."""
    for result in results:
        if result["verdict"] != "killed":
            print("\n{module}:{line} {verdict}, on {backend}".format(**result), end="")
            print(" {tests} tests, {reaching} that reach it\n{diff}".format(**result))
    print(f"\n{'folder':<12}{'mutants':>9}{'killed':>9}{'others':>9}{'share':>9}")
    for folder in (*FOLDERS, ""):
        prefix = f"keras_seqattn/{folder}"
        part = [result for result in results if result["module"].startswith(prefix)]
        killed = sum(result["verdict"] == "killed" for result in part)
        row = f"{folder or 'all':<12}{len(part):>9}{killed:>9}{len(part) - killed:>9}"
        print(f"{row}{killed / max(len(part), 1):>9.1%}")


def try_mutants(drawn, backend, options):
    """Runs the tests of one backend on the mutants that none has killed yet."""
    record = record_tests(options.output.with_suffix(f".{backend}").absolute(), backend)
    done = read_results(options.output)
    tasks = []
    for mutant, code in drawn:
        last = done.get(mutant.place, {"backend": None, "verdict": None})
        is_tried = last["backend"] in (backend, "tensorflow") and not options.again
        if last["verdict"] == "killed" or is_tried:
            continue
        tests, reaching = choose_tests(mutant, record, options.seconds)
        if tests or not last["backend"]:
            limit = 60 + 5 * sum(map(record[1].get, tests))
            tasks.append((mutant, code, backend, tests, reaching, limit))
    with concurrent.futures.ProcessPoolExecutor(
        options.jobs, FORK, prepare, (backend,)
    ) as pool:
        futures = [pool.submit(judge, *task) for task in tasks]
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            result = future.result()
            with options.output.open("a") as file:
                file.write(json.dumps(result) + "\n")
            line = "{verdict} in {seconds} s: {module}:{line}".format(**result)
            print(f"{number}/{len(tasks)} {line}", file=sys.stderr, flush=True)
        results = read_results(options.output).values()
        killers = {x["by"] for x in results if x["backend"] == backend}
        killers = sorted(killers & set(record[1]))
        if killers:  # A kill counts if its test passes on the unchanged code.
            status, output = pool.submit(run_tests, killers, 3600).result()
            if status != 0:
                print(f"These fail without a mutant, too, on {backend}:\n{output}")


def main(arguments=None):
    """Draws the mutants, runs the tests of each, and prints the results."""
    parser = argparse.ArgumentParser("python -m tests.mutation", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=int, default=60, help="a mutant; default: 60")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument(
        "--output", type=pathlib.Path, default=ROOT / "runs" / "mutation.jsonl"
    )
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    drawn = draw(options.count, options.seed)
    for backend in TESTS:
        try_mutants(drawn, backend, options)
    done = read_results(options.output)
    print_results([done[mutant.place] for mutant, _ in drawn])


if __name__ == "__main__":
    main()
