"""The blind diagnoses of lesson 9. The checkers accept the solution and reject guesses."""

from solution_support import answer_tests, solutions

from support.exercises import lesson_09

SOLUTION = solutions("09")
WRONG = {
    "nothing": ({"variable": ..., "right value": ...}, "'variable' is still ..."),
    "no key": ({}, "Your code raised KeyError: 'variable'"),
}
WRONG_FIRST = {
    **WRONG,
    "another variable": (
        {**SOLUTION.FIRST, "variable": "MASTER_ADDR"},
        "got       'MASTER_ADDR'\n  hint: ",
    ),
    "the wrong value": ({**SOLUTION.FIRST, "right value": "lo"}, "'right value' is wrong\n  got       'lo'"),
}
WRONG_SECOND = {
    **WRONG,
    "another variable": ({**SOLUTION.SECOND, "variable": "DGL_NUM_SAMPLER"}, "got       'DGL_NUM_SAMPLER'"),
    "samplers only": ({**SOLUTION.SECOND, "right value": 2}, "'right value' is wrong\n  got       2"),
    "of one server more": ({**SOLUTION.SECOND, "right value": 6}, "'right value' is wrong\n  got       6"),
}
AS_TEXT = {**SOLUTION.SECOND, "right value": "4"}
test_right_first, test_wrong_first = answer_tests(lesson_09.check_first, [SOLUTION.FIRST], WRONG_FIRST)
test_right_second, test_wrong_second = answer_tests(lesson_09.check_second, [SOLUTION.SECOND, AS_TEXT], WRONG_SECOND)


def test_faults_have_the_wrong_values():
    assert lesson_09.fault(1) == {SOLUTION.FIRST["variable"]: "lo"}
    assert lesson_09.fault(2) == {SOLUTION.SECOND["variable"]: "2"}
