"""Solvers whose work is done by Triton kernels, for float32 tensors on a GPU.

They take over where data are on a CUDA device and Triton is installed; elsewhere the torch solvers
serve. float64 stays with torch, but for the system over time. Triton is imported when the first
kernel runs. Under TRITON_INTERPRET=1, set before that, the kernels run on the CPU, slowly: that is
how they are tested.

Block sizes come from `table`; `FusedStates(blocks=StateBlocks(...))` overrides them. A state fit
needs memory for its states, for judging some of them, and a scratch of some tens of megabytes;
where that is not there, the error names the bytes needed and free, and how many samples would fit.

No kernel has run on hardware yet.
"""

from .outputs import FusedClosedForm, FusedSimplex
from .over_time import FusedRedBlack
from .states import FusedStates
from .table import StateBlocks

__all__ = ["FusedClosedForm", "FusedRedBlack", "FusedSimplex", "FusedStates", "StateBlocks"]
