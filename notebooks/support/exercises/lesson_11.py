"""Checkers of lesson 11, two blind diagnoses of jobs that break."""

from support.exercises import sealed_exercise

# Packed sources of a function ``fault(step)``, so a diagnosis is not spoiled by accident
FIRST_FAULT = (
    "eNqVUsFq4zAQvecrpjpJEJzmWsitoRQKKcmyp0KQ7XE8VJbEaJLdsuy/r+QEEtOF0ncb6c1780ZqsYPOHp3oJBjNwwwylFIbD4NtevIIyzlI"
    "j5CQT8gQOmDr32EJlCBJiBFbqLELjCMNHZ7QSw+Mtr2yq6w5atMQAwuEdFslOnjrZrdHErjpq5aSMNVHySY2QSkvrG4sqgPKvjhoA3erPFRg"
    "KEHGYnlOU8AoR/ZjmScFbwcE8nmKymWVllirReTQKHPtyRaFV1Fq6UCib64KhD+mBwW/KCcPEb3uzoKLP0Xj7wL9iTh4NQfFtTIlTEcOPysU"
    "nCyTrR0mWI2squxSmypFl+eo1du9MpNG/N1gFNjs1syBP4s2wQv5I04ucr5aPT697Lebl/Xq/LyqbOVqb3174ezW25/r7f75cbWccr6xgyYM"
    "w1fR81CTxGJZUlHUKn5Inzdo/t9YkJ/znZzT5EUXSzO//Kxq9/y0+7F5NbN/1CXTPw=="
)
SECOND_FAULT = (
    "eNpNjksOwjAMBfc9hdVVsomo2CH1ElygShuHBEpdxQ6f25MUhOrdyM/P49CDt3kWxYKrPjVQpm3bs11ucIAZ7QMZJCBcaYRnlLABvqLARA5L"
    "Ji6AK00BOlMOt4J4XykJEO+J39zsWShNwbjIkuKYBR1Yhoq/lN/AXFCGVGyUhr4v7+zioLpW6o5f4Tql3rA4ymL8nDko/V8Rm6Eaq4NuPuiO"
    "R+Y="
)
FIRST = {
    "process": (
        "6a4eb9625bf3",
        "Which process does trainer 0 wait for, according to its stack? Does that process run?",
    ),
    "state": ("dc78ff4bd278", "Run ps -C python3 -o pid,stat,args on the machine of the process."),
}
SECOND = {
    "process": (
        "ae9c3a9592ef",
        "A lost connection is a consequence. Which process has ended, but is not in the message of the launcher?",
    ),
    "exit code": ("45c8c2616074", "Which exit code does the launcher not report as a failure?"),
    "epoch": ("8fca7ee81f1c", "The log of rank 0 has a line for each completed epoch. Epochs are counted from 0."),
}


def fault(number: int) -> str:
    """Return the variable SEALED of the first or second job."""
    return {1: FIRST_FAULT, 2: SECOND_FAULT}[number]


check_first = sealed_exercise(11, 1, FIRST)  # the process that the other ones wait for, and its state
check_second = sealed_exercise(11, 2, SECOND)  # the process that ended the second job, its exit code and the epoch
