"""`eqco COMMAND …`: finds the command, parses its options from its signature, runs it.

A command is a module of this package with one function `run`, whose typed, keyword-only arguments
are the options and whose docstring is the help text; or with a `parse` of its own, whose result
`run` takes. Only the chosen command is imported, so that `eqco --help` waits for nothing.
"""

import difflib
import importlib
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import eqco
from eqco.cli.flags import flag_value
from eqco.cli.help_text import help_text, settings_in_one_line, with_options_in_one_line
from eqco.cli.machine_errors import explain_error
from eqco.runtime.cores import available_cores, busy_cores, threads_beside
from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["COMMANDS", "main"]

# name -> one line for `eqco --help`; the module is eqco.cli.<name>
COMMANDS: dict[str, str] = {
    "train": "turn a folder of images into an encoder, by a published recipe or one chosen for you",
    "transfer": "fine-tune a detector from pre-trained weights, and measure its average precision",
    "plan": "work out margin, learning rate, memory and steps of a setting before it runs",
    "recipes": "list the published recipes, or show one",
    "data": "describe a folder of images or a data set by name, with a contact sheet",
    "views": "draw images beside their augmented views, to look at before training",
    "export": "write an encoder for torchvision, timm, ONNX, safetensors, MoCo or the Hub",
    "index": "make the photos of a folder searchable by an encoder",
    "search": "find the photos most like one, or near-duplicates, with a contact sheet",
    "embed": "turn a folder of images into vectors, with any weights",
    "demo": "see the rule at work: what it does to a training, and similar photos, in minutes",
    "lab": "estimate information between Gaussians; each value says if it is a guaranteed bound",
    "eval": "test an encoder by kNN, probe or linear protocol, beside pixels and random weights",
    "compare": "set several runs side by side: settings, curves, accuracy, speed, one plot",
    "sweep": "train every combination of some settings for several seeds, on Ray if you like",
    "reproduce": "regenerate a figure, table or study of the paper, with its number beside ours",
    "report": "all records as one page to look at: charts, tables, the rule to try",
}

# What `pip install ".[train]"` brings; a missing one is answered with that line.
TRAIN_PACKAGES = {"tyro", "rich", "matplotlib", "numpy", "PIL", "torchvision", "tensorboard"}
TRAIN_PACKAGES |= {"sklearn"}

# commands that compute for long
COMPUTING = {"train", "transfer", "index", "embed", "demo", "lab", "eval", "reproduce"}

HELP_COLUMNS = 100  # more would set the groups of options side by side


def overview() -> str:
    """The text of `eqco --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: eqco COMMAND [options]        (eqco COMMAND --help shows the options)",
            "",
            "Contrastive learning that depends less on how many negatives you can afford.",
            "",
            "commands:",
            *lines,
            "",
            "examples:",
            "  eqco demo                  the whole story in a few minutes",
            "  eqco train photos/         a folder of images -> an encoder in runs/photos",
            "  eqco eval runs/photos      how good it is, beside raw pixels and random weights",
            "",
            "options:",
            "  --help     this text",
            "  --version  the version",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0 when it worked, 2 when the user can mend it, 130 after Ctrl-C, 141 when nobody reads on.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters shows "?"
            stream.reconfigure(errors="replace")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"eqco {eqco.__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(COMMANDS)}."
        return refuse(f"there is no command {name!r}. {hint}")
    try:
        try:
            return dispatch(name, rest)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be flushed at the end
        return 141  # as of a program that SIGPIPE ends
    except (InputError, MissingExtraError) as error:
        return refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in TRAIN_PACKAGES:
            raise
        return refuse(str(MissingExtraError(error.name or "", "train")))
    except OSError as error:  # a full disk, a read-only folder, a file where a folder should be
        return refuse(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except (MemoryError, RuntimeError) as error:
        reason = explain_error(error)
        if reason is None:
            raise
        return refuse(reason)
    except KeyboardInterrupt:
        print("eqco: stopped", file=sys.stderr)
        return 130


def dispatch(name: str, arguments: Sequence[str]) -> int:
    """Import the command, parse its options, call it."""
    alone = flag_value(arguments, "--processes", "1") == "1"  # several are given their threads
    if name in COMPUTING and alone and not {"-h", "--help", "--list"}.intersection(arguments):
        leave_busy_cores()  # before torch is loaded, which then has as many threads
    import tyro

    module = importlib.import_module(f"eqco.cli.{name}")
    run = module.run
    with narrow_help(arguments):
        if hasattr(module, "parse"):  # its defaults depend on what was given
            with settings_in_one_line():
                options = module.parse(arguments)
            run(options)
        else:
            description = help_text(run.__doc__)
            run.__doc__ = with_options_in_one_line(run.__doc__)
            tyro.cli(run, args=arguments, prog=f"eqco {name}", description=description)
    return 0


def leave_busy_cores() -> None:
    """Compute in as many threads as other programs leave cores; say so where that is not all."""
    if "OMP_NUM_THREADS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return
    cores, busy = len(available_cores()), busy_cores()
    threads = threads_beside(busy, cores)
    if threads < cores:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        print(
            f"eqco: other programs keep {busy:.1f} of {cores} cores busy, so this computes in "
            f"{threads} thread{'s' * (threads > 1)}; OMP_NUM_THREADS={cores} uses all.",
            file=sys.stderr,
        )


@contextmanager
def narrow_help(arguments: Sequence[str]) -> Iterator[None]:
    """While help is printed, let a wide terminal count as one of `HELP_COLUMNS`."""
    before = os.environ.get("COLUMNS")
    if {"-h", "--help", "-H", "--help-verbose"}.intersection(arguments):
        os.environ["COLUMNS"] = str(min(HELP_COLUMNS, shutil.get_terminal_size().columns))
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


def refuse(message: str) -> int:
    """Say on standard error why nothing was done, and in which of several processes."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    who = f"eqco (rank {os.environ.get('RANK', '?')})" if several else "eqco"
    print(f"{who}: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
