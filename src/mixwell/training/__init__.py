"""From data, a model and a method to a trained, calibrated classifier."""

from mixwell.runs import Interrupted
from mixwell.training.fit import FitResult, fit, quiet_libraries
from mixwell.training.run import RunResult, resume, train
from mixwell.training.settings import TrainSettings

__all__ = ["FitResult", "Interrupted", "RunResult", "TrainSettings", "fit", "quiet_libraries", "resume", "train"]
