"""Checkers of lesson 7, two blind diagnoses. Only hashes of the answers are stored."""

from support.exercises import sealed_exercise

HANG = {
    "rank": ("b6f6f9fa0d42", "In which rank does no line of the stack call a collective?"),
    "waits for": (
        "d620d6f2adbf",
        "Which process has not read bytes of a connection to this rank (column Recv-Q of ss)?",
    ),
    "cause": ("f069921a7a6d", "The others wait in all_reduce. Could the rank that you named answer before it returns?"),
}
NUMBER = {
    "rank": ("3535831e382a", "Compare the lines of the logs. Which rank has fewer?"),
    "step": ("2d5b542b4cde", "Which step occurs in some logs, but not in all of them?"),
    "cause": ("7b820609a798", "All ranks must call the same collectives in the same order. Which call has no partner?"),
}

check_hang = sealed_exercise(7, 1, HANG)  # the rank that causes the hang, the rank that it waits for, and the cause
check_number = sealed_exercise(7, 2, NUMBER)  # the rank that is responsible, the step, and the cause (a letter)
