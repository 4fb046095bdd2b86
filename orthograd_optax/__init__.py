"""⊥Grad (OrthoGrad) for optax: gradient steps orthogonal to the weights."""

from orthograd_optax._aliases import orthograd_adamw as orthograd_adamw
from orthograd_optax._aliases import orthograd_sgd as orthograd_sgd
from orthograd_optax._diagnostics import Alignment as Alignment
from orthograd_optax._diagnostics import Diagnostics as Diagnostics
from orthograd_optax._diagnostics import alignment as alignment
from orthograd_optax._diagnostics import read_diagnostics as read_diagnostics
from orthograd_optax._orthograd import OrthogradState as OrthogradState
from orthograd_optax._orthograd import orthograd as orthograd
