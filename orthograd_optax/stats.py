"""Is it a difference, how large, and how sure: two sets of runs compared.

Every function takes one number for each run (a metric of each seed), as any
sequence of at least two finite numbers, and computes in float64. Differences
are the first less the second.

Where the runs of each set are all equal, effect sizes and t-tests go to their
limits: equal sets have an effect of 0 and p = 1, others of ±∞ and p = 0.
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
