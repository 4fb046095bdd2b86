"""From rows to tables, figures and pages. It never trains.

Each module computes what the template of its name, in `templates/`, says.
"""

from experiments.report.answer import write as write_answer
from experiments.report.grokking import write as write_grokking
from experiments.report.kept import keep as keep
from experiments.report.replication import write as write_replication
from experiments.report.screen import write as write_screen
from experiments.report.study import show as show
from experiments.report.study import write as write_study
from experiments.report.study import write_kept as write_kept_studies

__all__ = [
  "keep",
  "show",
  "write_answer",
  "write_grokking",
  "write_kept_studies",
  "write_replication",
  "write_screen",
  "write_study",
]
