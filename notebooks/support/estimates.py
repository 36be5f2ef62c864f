"""Compare the learner's estimate with the measurement, and name the mistake that explains their ratio."""

from typing import Any

MISTAKES = {
    8.0: "Did you mix up bits and bytes? A byte has 8 bits.",
    2.0: "Is a factor of 2 missing or counted twice, such as float32 and float64, or two layers or machines?",
    1e3: "Check the unit. kB, MB and GB differ by factors of 1,000.",
    1e6: "Check the unit. Bytes and MB differ by a factor of 1,000,000.",
    1e9: "Check the unit. Bytes and GB differ by a factor of 1,000,000,000.",
    100.0: "Did you mix up a share and a percentage?",
}
Hints = dict[float, str] | None


def compare_estimate(
    estimate: Any, measured: float, unit: str, within: float = 0.1, mistakes: Hints = None, label: str = "measurement"
) -> None:
    """Print an estimate and the measurement, and a likely mistake if they differ.

    Args:
        estimate: the learner's number, or ``...`` if the learner has not written one yet.
        within: largest relative difference of a good estimate.
        mistakes: sentences for the ratio of the estimate to the measurement, in addition to ``MISTAKES``.
        label: word for ``measured`` in the output, if a formula and not a measurement returned the number.
    """
    shown = (f"{measured:,.4g} {unit}" if measured < 1e4 else f"{measured:,.0f} {unit}").strip()
    if estimate is ...:
        print(f"The {label} is {shown}. Replace the dots of my_estimate to compare your estimate.")
        return
    try:
        ratio = float(estimate) / measured
    except (TypeError, ValueError):
        print(f"The {label} is {shown}. my_estimate must be a number, and it is {estimate!r}.")
        return
    print(f"Your estimate is {float(estimate):,.6g}, and the {label} is {shown}.")
    if abs(ratio - 1) <= within:
        print(f"They differ by {abs(ratio - 1):.1%}.")
        return
    print(f"The estimate is {ratio:,.3g} times the {label}.")
    known = {1 / factor: text for factor, text in MISTAKES.items()} | MISTAKES | (mistakes or {})
    print(*[text for factor, text in known.items() if abs(ratio - factor) <= within * factor][-1:], sep="\n")
