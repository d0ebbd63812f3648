"""Proximal maps of single entries: one read and one write."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def closed_form_entries(
    y_ptr, u_ptr, z_ptr, count, lam, a, b, PROX: tl.constexpr, BLOCK: tl.constexpr
):
    """Write prox_{lam Phi}(y + lam u) for BLOCK entries.

    Lifted Neural Networks, section 6.2. A row of entries, because maps without a closed form stop
    by their block's last entry.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = at < count
    y = tl.load(y_ptr + at, mask=there, other=0.0)
    u = tl.load(u_ptr + at, mask=there, other=0.0)
    tl.store(z_ptr + at, PROX(y + lam * u, lam, a, b), mask=there)
