"""Rows: what a run measured. Their fields, how they are stored and kept.

A row holds what one network measured on one set of images after one epoch.
:mod:`schema` lists its fields, :mod:`storing` explains the files.
"""

from experiments.rows.provenance import environment as environment
from experiments.rows.provenance import now as now
from experiments.rows.schema import FIELDS as FIELDS
from experiments.rows.schema import Key as Key
from experiments.rows.schema import key as key
from experiments.rows.storing import Missing as Missing
from experiments.rows.storing import Rows as Rows
from experiments.rows.storing import RowsError as RowsError
from experiments.rows.storing import join as join
from experiments.rows.storing import read as read
from experiments.rows.storing import write as write
