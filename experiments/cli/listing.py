"""Lists the studies, without the imports that training needs."""

import argparse

from experiments import config


def do_list(_: argparse.Namespace) -> None:
  names = config.study_names()
  width = max(map(len, names))
  for name in names:
    try:
      study, text = config.describe(name)
      about = f"{len(study.runs):3} runs  {text.splitlines()[0]}"
    except config.ConfigError as error:
      about = f"Error: {error}"
    print(f"{name:{width}} {about}")
