"""scripts/mutants.py finds modules and tests, and makes valid Python with one change."""

import ast

from commands import ROOT, load_script

mutants = load_script("mutants")


def test_every_group_has_modules_and_tests():
    for pattern in mutants.TARGETS:
        paths = [str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)]
        assert any(mutants.list_mutants(path) for path in paths), pattern
        for path in paths:
            assert all((ROOT / word).exists() for word in mutants.select_tests(path) if word.startswith("tests/")), path


def test_mutants_are_python_with_one_change():
    for mutant in mutants.sample_mutants(40, 0, "sampling"):
        source = (ROOT / mutant.path).read_bytes()
        changed = source[: mutant.begin] + mutant.new.encode() + source[mutant.end :]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutant


def test_allowed_survivors_are_current_mutants():
    for text in mutants.MAY_SURVIVE:
        assert text in map(str, mutants.list_mutants(text.split(",")[0]))
