"""Compares two sets of runs: tests, effect sizes, intervals and tables.

Start with :func:`compare` for one metric, or :func:`compare_table` for several.
Both take the old method first and report differences as **new − old**. The
functions that they are built on, such as :func:`cohens_d` or
:func:`welch_t_test`, take ``a`` and ``b`` and report a − b, as SciPy does.

Each set has one number for each run, such as the accuracy of each seed: at
least two finite numbers. Everything is computed in float64.

If no set has any spread, effect sizes and t-tests take their limiting values:
an effect of 0 and p = 1 if the sets are equal, ±∞ and p = 0 if they differ.
"""

from ._effects import cohens_d as cohens_d
from ._effects import cohens_d_interval as cohens_d_interval
from ._effects import hedges_g as hedges_g
from ._effects import required_seeds as required_seeds
from ._tables import Comparison as Comparison
from ._tables import ComparisonTable as ComparisonTable
from ._tables import compare as compare
from ._tables import compare_table as compare_table
from ._tests import TestResult as TestResult
from ._tests import bootstrap as bootstrap
from ._tests import holm as holm
from ._tests import paired_t_test as paired_t_test
from ._tests import tost as tost
from ._tests import welch_t_test as welch_t_test
from ._tests import wilcoxon as wilcoxon
