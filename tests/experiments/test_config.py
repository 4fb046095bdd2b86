"""Settings, and what is said of those that can't be."""

import dataclasses
import json
import subprocess
import sys

import pytest

from experiments import __main__ as command_line
from experiments import config, studies
from experiments.config import ORTHOGRAD, SGD, Config, Study
from experiments.fields import ConfigError

STUDY = Study(name="test")


def test_defaults_are_the_protocols():
  c = Config()
  assert (c.model, c.dataset, c.per_class) == ("resnet18", "cifar10", 500)
  assert (c.epochs, c.batch_size, c.learning_rate) == (100, 64, 0.01)
  assert (c.momentum, c.weight_decay, c.eps) == (0.9, 5e-4, 1e-30)
  assert c.augment
  assert hash(c) == hash(Config())


def test_hash_is_of_all_settings():
  hashes = {Config().hash}
  for change in ({"epochs": 99}, {"augment": False}, {"eps": 1e-8}):
    hashes.add(dataclasses.replace(Config(), **change).hash)
  assert len(hashes) == 4
  # It stays the same from one version to the next, for rows to be found again.
  assert Config().hash == "cc365fdaac22b161"


def test_override():
  study = STUDY.override(
    ["epochs=3", "seeds=2", "learning_rate=1e-3", "augment=false"]
    + ["methods=orthograd", "corruptions=fog,jpeg"]
  )
  assert study.config.epochs == 3 and study.config.learning_rate == 1e-3
  assert study.config.augment is False and study.corruptions == ("fog", "jpeg")
  assert study.runs == [(ORTHOGRAD, 0), (ORTHOGRAD, 1)]
  assert len(STUDY.override(["corruptions=all"]).corruptions) == 19
  assert STUDY.override(["corruptions="]).corruptions == ()
  assert STUDY.override([]) == STUDY


@pytest.mark.parametrize(
  ("setting", "message"),
  [
    ("epochs", "'epochs' is not a setting. Write key=value.*batch_size"),
    ("epoch=3", "'epoch=3' is not a setting.*epochs"),
    ("name=x", "not a setting"),
    ("epochs=three", "epochs is 'three', but must be of type int"),
    ("epochs=0", "epochs is 0, but must be at least 1"),
    ("epochs=1.5", "must be of type int"),
    ("momentum=1", "momentum is 1.0, but must be below 1.0"),
    ("learning_rate=-1", "learning_rate is -1.0, but must be above 0"),
    ("learning_rate=nan", "learning_rate is nan"),
    ("augment=maybe", "augment is 'maybe', but must be true or false"),
    ("model=vgg", "model is 'vgg', but must be one of resnet18, wrn28_10"),
    ("methods=adam", "methods is 'adam', but must be one of sgd"),
    ("methods=", "methods is empty"),
    ("methods=sgd,sgd", "methods has an entry twice"),
    ("corruptions=rain", "corruptions is 'rain'"),
    ("corrupted_at=1,x", "corrupted_at is '1,x', but must be whole numbers"),
    ("corrupted_at=0", "corrupted_at is 0, but must be at least 1"),
    ("corrupted_at=5,5", "corrupted_at has an entry twice: 5, 5"),
    ("corrupted_at=200", "corrupted_at is 200, but must be at most epochs"),
    ("seeds=-1", "seeds is -1"),
  ],
)
def test_settings_that_can_not_be(setting, message):
  with pytest.raises(ConfigError, match=message):
    STUDY.override([setting])


def test_a_study_without_methods():
  with pytest.raises(ConfigError, match="methods is empty"):
    Study("test", methods=(), share=(1, 2), pairs=(("sgd", "orthograd"),))


def test_hidden_files_are_no_studies(tmp_path):
  for name in ("._a.py", ".#b.py", "_c.py", "d.py"):
    (tmp_path / name).touch()
  assert [*config._paths((str(tmp_path),))] == ["d"]


def test_wrong_types_in_python():
  wrong = {"epochs": "3"}
  with pytest.raises(ConfigError, match="epochs is '3'"):
    Config(**wrong)


def test_what_is_evaluated_when():
  study = STUDY.override(
    ["epochs=10", "evaluate_every=4", "corruptions=fog", "seeds=1"]
  )
  assert study.epochs_evaluated() == [4, 8, 10]
  assert study.datasets(4) == ["train", "clean"]
  assert study.datasets(10)[:3] == ["train", "clean", "fog/1"]
  assert len(study.datasets(10)) == 7
  assert STUDY.epochs_evaluated() == [100]


def test_studies():
  actual = config.studies()
  assert {"quick", "table1"} <= set(actual) == set(config.study_names())
  for name, study in actual.items():
    again, text = config.describe(name)
    assert again is study and study.name == name
    assert len(text.splitlines()) > 2  # a title, and how long it takes
  with pytest.raises(ConfigError, match="no study 'tabel1'; there are.*table1"):
    config.load_study("tabel1")


def test_epochs():
  study = STUDY.override(["epochs=10", "corruptions=fog", "corrupted_at=3,6"])
  assert study.epochs_evaluated() == [3, 6, 10]
  assert study.datasets(3) == study.datasets(10)
  study = study.override(["evaluate_every=4"])
  assert study.epochs_evaluated() == [3, 4, 6, 8, 10]
  assert study.datasets(4) == ["train", "clean"]


def test_pairs_are_of_the_studys_methods(tmp_path):
  schedules = config.load_study("schedules")
  (tmp_path / "study.json").write_text(
    json.dumps(dataclasses.asdict(schedules))
  )
  assert config.load_settings(tmp_path) == schedules
  some = schedules.override(["methods=sgd,orthograd,cosine"])
  assert some.pairs == (("sgd", "orthograd"),)
  with pytest.raises(ConfigError, match="pairs has 'adamw', but must"):
    dataclasses.replace(schedules, pairs=(("sgd", "adamw"),))


def test_pairs_may_be_of_ensembles():
  study = config.load_study("ensembles")
  assert study.pairs == (
    ("cosine ensemble of 5", "orthograd_cosine ensemble of 5"),
  )
  assert study.override(["seeds=5"]).pairs == study.pairs
  both = study.override(["methods=cosine,orthograd_cosine"])
  assert both.pairs == study.pairs
  assert not study.override(["ensembles=2"]).pairs
  with pytest.raises(ConfigError, match="pairs has 'cosine ensemble of 5'"):
    dataclasses.replace(study, ensembles=(2,))


MINE = '''"""Mine, of one method."""
from experiments.config import SGD, Study
STUDY = Study(name="mine", methods=(SGD,))
'''


def test_a_study_outside_the_clone(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(MINE)
  study, text = config.describe(str(path))
  assert study.methods == (SGD,) and text == "Mine, of one method."
  assert study.folder.name == "mine"
  with pytest.raises(
    ConfigError, match="no study 'x.py'; .*the path of a study file"
  ):
    config.load_study("x.py")


@pytest.mark.parametrize(
  ("lines", "message"),
  [
    (
      "STUDY = 3",
      "broken.py: TypeError: STUDY must be a Study, got 3.",
    ),
    ("", "broken.py: KeyError: .STUDY.. .* It must define STUDY"),
    ("x = 1\nSTUDY = y", "broken.py, line 2: NameError: name 'y' is not"),
    ("import sys\nsys.exit()", "line 2: SystemExit: . Correct the file"),
    (f"raise ValueError({10**4} * 'x')", r"line 1: ValueError: x+…. Correct"),
    (MINE.replace("SGD,)", "SGD,), config=3"), "config is .*must be a Config"),
    ("STUDY = (", r"broken.py: SyntaxError: .*\(broken.py, line 1\)"),
    (
      MINE.replace("SGD,)", "SGD, SGD)"),
      r"line 3: ConfigError: methods has an entry twice: [^.]*\.$",
    ),
  ],
)
def test_a_broken_study(tmp_path, monkeypatch, lines, message):
  """Is named, and breaks no other study."""
  path = tmp_path / "broken.py"
  path.write_text(lines)
  with pytest.raises(ConfigError, match=message):
    config.load_study(str(path))


def test_a_broken_study_of_the_clone(tmp_path, monkeypatch, capsys):
  """Is named by `list`, and breaks no other study."""
  (tmp_path / "broken.py").write_text("STUDY = y")
  monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(tmp_path)])
  monkeypatch.setattr(sys, "argv", ["experiments", "list"])
  command_line.main()
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == len(config.study_names())
  (line,) = (line for line in lines if line.startswith("broken"))
  assert f"Error: {tmp_path / 'broken.py'}, line 1: NameError" in line
  assert "broken" not in config.studies() and "quick" in config.studies()


def test_a_study_is_loaded_alone():
  code = "import sys; from experiments import config; config.load_study('best')"
  code += "; print(*(name for name in sys.modules if 'studies.' in name))"
  command = [sys.executable, "-c", code]
  loaded = subprocess.run(command, capture_output=True, text=True, check=True)
  names = {name.rpartition(".")[2] for name in loaded.stdout.split()}
  assert names == {"best", "methods", "schedules", "strength"}
