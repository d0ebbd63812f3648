"""Solvers whose work is done by Triton kernels, for float32 tensors on a GPU.

They take over where data are on a CUDA device, large enough, and Triton is installed; elsewhere the
torch solvers serve. The first fit of each on a device is a small one, compared with torch: a kernel
that fails it is left aside, with one warning. float64 stays with torch, but for the system over
time. Triton is imported when the first kernel runs. Under TRITON_INTERPRET=1, set before that, the
kernels run on the CPU, slowly: that is how they are tested.

Block sizes stand in `states`; `FusedStates(blocks=StateBlocks(...))` overrides them. A state fit
needs memory for its states, for judging some of them, and a scratch of some tens of megabytes;
where that is not there, the error names the bytes needed and free, and how many samples would fit.

All checks of `python -m benchmarks.gpu` have passed on an H100.
"""
