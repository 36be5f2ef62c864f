"""The scripted multi-machine run: machines, data, partition, training, predictions, scaling, report; step by step."""

from tutorial_lib.tools.finale.forecast import Forecast, agree
from tutorial_lib.tools.finale.report import write_report
from tutorial_lib.tools.finale.script import Finale
from tutorial_lib.tools.finale.settings import EPOCHS, FULL_SCALE, SCALE, FinaleSettings, recipe

__all__ = [
    "EPOCHS",
    "FULL_SCALE",
    "SCALE",
    "Finale",
    "FinaleSettings",
    "Forecast",
    "agree",
    "recipe",
    "write_report",
]
