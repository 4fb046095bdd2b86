"""Makes tables, figures and pages from rows, without training.

Each module computes the facts of the template of its name, in `templates/`.
"""

from experiments.report.folder import check as check_folder
from experiments.report.folder import left_out as left_out
from experiments.report.folder import next_step as next_step
from experiments.report.grokking import write as write_grokking
from experiments.report.pages import write as write_pages
from experiments.report.study import show as show
from experiments.report.study import write as write_study
from experiments.rows.kept import begin as begin
from experiments.rows.kept import keep as keep

__all__ = [
  "begin",
  "check_folder",
  "keep",
  "left_out",
  "next_step",
  "show",
  "write_grokking",
  "write_pages",
  "write_study",
]
