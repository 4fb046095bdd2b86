"""Compare two sets of runs: tests, effect sizes and intervals.

Start with :func:`compare` for one metric, or :func:`compare_table` for several.

Every function takes one number for each run, such as the accuracy of each seed:
a sequence of at least two finite numbers. All compute in float64. A difference
is the first set minus the second.

If all runs of a set are equal, and so are those of the other set, effect sizes
and t-tests go to their limits. Equal sets have an effect of 0 and p = 1.
Different sets have an effect of ±∞ and p = 0.
"""

from orthograd_optax._comparison import Comparison as Comparison
from orthograd_optax._comparison import ComparisonTable as ComparisonTable
from orthograd_optax._comparison import compare as compare
from orthograd_optax._comparison import compare_table as compare_table
from orthograd_optax._significance import TestResult as TestResult
from orthograd_optax._significance import (
  bootstrap_interval as bootstrap_interval,
)
from orthograd_optax._significance import cohens_d as cohens_d
from orthograd_optax._significance import cohens_d_interval as cohens_d_interval
from orthograd_optax._significance import hedges_g as hedges_g
from orthograd_optax._significance import holm as holm
from orthograd_optax._significance import paired_t_test as paired_t_test
from orthograd_optax._significance import required_seeds as required_seeds
from orthograd_optax._significance import tost as tost
from orthograd_optax._significance import welch_t_test as welch_t_test
from orthograd_optax._significance import wilcoxon as wilcoxon
