"""The blind diagnoses of lesson 11. The checkers accept the solution and reject guesses."""

from solution_support import answer_tests, solutions

from support.exercises import lesson_11

SOLUTION = solutions("11")
NOTHING = {"nothing": ({"process": ..., "state": ..., "exit code": ...}, "'process' is still ...")}
WRONG_FIRST = {
    **NOTHING,
    "the rank that waits": ({**SOLUTION.FIRST, "process": "trainer-0"}, "got       'trainer-0'\n  hint: Which process"),
    "the other server": ({**SOLUTION.FIRST, "process": "server-0"}, "got       'server-0'"),
    "waits": ({**SOLUTION.FIRST, "state": "S"}, "'state' is wrong\n  got       'S'\n  hint: Run ps"),
}
WRONG_SECOND = {
    **NOTHING,
    "the consequence": ({**SOLUTION.SECOND, "process": "trainer-1"}, "hint: A lost connection"),
    "killed": ({**SOLUTION.SECOND, "exit code": -9}, "'exit code' is wrong\n  got       -9"),
    "the completed epoch": ({**SOLUTION.SECOND, "epoch": 0}, "'epoch' is wrong\n  got       0"),
}
AS_TEXT = {**SOLUTION.SECOND, "exit code": "0", "epoch": "1"}
test_right_first, test_wrong_first = answer_tests(lesson_11.check_first, [SOLUTION.FIRST], WRONG_FIRST)
test_right_second, test_wrong_second = answer_tests(lesson_11.check_second, [SOLUTION.SECOND, AS_TEXT], WRONG_SECOND)
