"""Where the numbers of a training go beside the run's own metrics: TensorBoard, CSV, W&B, MLflow.

A resumed run computes the steps after its checkpoint again, to the same values. TensorBoard and CSV
drop what they had of them; W&B and MLflow cannot, so that steps they have are not sent again.
"""

import csv
import importlib.util
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import MissingExtraError
from eqco.runtime.run_directory import RunDirectory, read_json, write_json

__all__ = ["Logger", "LoggerName", "open_loggers", "require_loggers"]

LoggerName = Literal["tensorboard", "csv", "wandb", "mlflow"]
PROJECT = "eqco"  # of W&B, and the experiment of MLflow, where the environment names none
EXTRAS = {"wandb": "wandb", "mlflow": "mlflow"}  # package -> extra


class Logger(Protocol):
    """What takes numbers, step after step."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of the state after `step` steps."""

    def close(self) -> None:
        """Send what is left."""


def require_loggers(names: Sequence[LoggerName]) -> None:
    """Refuse loggers whose packages are not installed, before anything is trained."""
    for name in names:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, EXTRAS[name])


def open_loggers(
    names: Sequence[LoggerName], run: RunDirectory, start: int, settings: Mapping[str, Any]
) -> list[Logger]:
    """The loggers of a run, which go on as they were where it is resumed.

    Args:
        names: which.
        run: its folder.
        start: the first step to come.
        settings: of the run, by groups, which W&B and MLflow show.
    """
    makers: dict[str, Callable[[], Logger]] = {
        "tensorboard": lambda: TensorBoardLogger(run.path / "tensorboard", start),
        "csv": lambda: CSVLogger(run.path / "metrics.csv", start),
        "wandb": lambda: WandbLogger(run, settings),
        "mlflow": lambda: MLflowLogger(run, settings),
    }
    return [makers[name]() for name in dict.fromkeys(names)]


class TensorBoardLogger:
    """Events in the run directory."""

    def __init__(self, folder: Path, start: int):
        from torch.utils.tensorboard import SummaryWriter

        self.events = SummaryWriter(str(folder), purge_step=start + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event for each number."""
        for name, value in values.items():
            self.events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush the events."""
        self.events.close()


class CSVLogger:
    """A table with a column for each number and a line for each write."""

    def __init__(self, path: Path, start: int):
        self.path = path
        self.columns = ["step"]
        self.lines: list[dict[str, str]] = []
        if path.exists() and start > 0:
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]  # a line that was cut short is none
            reader = csv.DictReader(whole.splitlines())
            self.columns = list(reader.fieldnames or self.columns)
            self.lines = [line for line in reader if int(line["step"]) <= start]
        self.rewrite()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a line; a number that was not there before adds its column."""
        line = {"step": str(step), **{name: repr(value) for name, value in values.items()}}
        self.lines.append(line)
        new = [name for name in line if name not in self.columns]
        if new:
            self.columns += new
            self.rewrite()
            return
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(line)

    def rewrite(self) -> None:
        """The whole table."""
        with atomic_write(self.path) as partial, open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.lines)

    def close(self) -> None:
        """Nothing is left."""


class WandbLogger:
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE and the others say where."""

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]):
        import wandb

        number = kept_id(run, "wandb") or keep_id(run, "wandb", uuid.uuid4().hex[:12])
        self.run = wandb.init(
            id=number,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.resolve().name,
            dir=str(run.path),
            config=dict(settings),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, unless it has later ones."""
        if step >= self.run.step:
            self.run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is left."""
        self.run.finish()


class MLflowLogger:
    """A run of MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]):
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient()
        number = kept_id(run, "mlflow")
        if number is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self.client.get_experiment_by_name(title)
            experiment = (
                self.client.create_experiment(title) if found is None else found.experiment_id
            )
            made = self.client.create_run(experiment, run_name=run.path.resolve().name)
            number = keep_id(run, "mlflow", made.info.run_id)
            params = [
                Param(f"{group}.{name}", str(value))
                for group, values in settings.items()
                for name, value in values.items()
            ]
            self.client.log_batch(number, params=params)
        else:
            self.client.update_run(number, status="RUNNING")
        self.number = number
        self.known: dict[str, int] = {}
        """The last step of each number that an earlier part of the run has sent."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, but for those that it has."""
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step)
            for name, value in values.items()
            if step > self.last_step(name)
        ]
        self.client.log_batch(self.number, metrics=metrics)

    def last_step(self, name: str) -> int:
        """The last step that had this number when the run went on, or -1."""
        if name not in self.known:
            history = self.client.get_metric_history(self.number, name)
            self.known[name] = max((metric.step for metric in history), default=-1)
        return self.known[name]

    def close(self) -> None:
        """Mark the run as ended."""
        self.client.set_terminated(self.number)


def kept_id(run: RunDirectory, name: str) -> str | None:
    """The number that a logger gave this run, if it has one."""
    if not run.loggers.exists():
        return None
    found: str | None = read_json(run.loggers).get(name)
    return found


def keep_id(run: RunDirectory, name: str, number: str) -> str:
    """Note the number that a logger gives this run, so that a resumed one goes on with it."""
    known = read_json(run.loggers) if run.loggers.exists() else {}
    write_json(run.loggers, {**known, name: number})
    return number
