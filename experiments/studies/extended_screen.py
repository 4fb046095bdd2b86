"""Which protocol gives the paper's accuracies after 1000 epochs? One seed each.

Takes 8 minutes on one H200: no weight decay, and a tenth of the learning rate;
`extended_screen_batch` has batches of 512. See PLAN.md.
"""

from experiments.config import SGD, with_orthograd
from experiments.studies import extended

_plain = (
  SGD.replace(name="decay_0", weight_decay=0.0),
  SGD.replace(name="rate_0.001", learning_rate=0.001),
)
_projected = tuple(map(with_orthograd, _plain))

STUDY = extended.STUDY.comparing(
  *zip(_plain, _projected, strict=True),
  name="extended_screen",
  methods=(*_plain, *_projected),
  seeds=1,
  first_seed=5,
  evaluate_every=100,
  corrupted_at=(),
  diagnostics=False,
)
