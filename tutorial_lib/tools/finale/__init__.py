"""The scripted multi-machine run: machines, data, partition, training, predictions, scaling, report; step by step."""

from tutorial_lib.tools.finale.report import write_report
from tutorial_lib.tools.finale.script import Finale
from tutorial_lib.tools.finale.settings import FULL_EPOCHS, FULL_SCALE, FinaleSettings

__all__ = ["FULL_EPOCHS", "FULL_SCALE", "Finale", "FinaleSettings", "write_report"]
