"""⊥Grad (OrthoGrad) for optax: steps that can't inflate confidence."""

from orthograd_optax._orthograd import Alignment as Alignment
from orthograd_optax._orthograd import OrthogradState as OrthogradState
from orthograd_optax._orthograd import alignment as alignment
from orthograd_optax._orthograd import orthograd as orthograd
from orthograd_optax._orthograd import orthograd_sgd as orthograd_sgd
