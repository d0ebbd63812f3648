"""
Equal rates of decisions, also on new rows
==========================================

A classifier whose decisions favor a group can be held to rates of selection that differ by little.
Rows that training has not seen say whether that holds for new ones.
"""

import matplotlib.pyplot as plt
import numpy as np

from liftednet import LiftedClassifier
from liftednet.constraints import GroupMeans, GroupRates

generator = np.random.default_rng(0)


def drawn(rows):
    """Return inputs, labels and groups of some people."""
    group = generator.integers(0, 2, rows)
    x = generator.standard_normal((rows, 4)) + 0.6 * group[:, None]
    y = (x[:, 0] + x[:, 1] * x[:, 2] + generator.standard_normal(rows) > 0.8).astype(int)
    return np.column_stack([x, group]), y, group


def gap(model, x, group):
    """Return the difference of selection rates."""
    chosen = model.predict(x)
    return abs(chosen[group == 0].mean() - chosen[group == 1].mean())


x, y, group = drawn(4_000)
new_x, new_y, new_group = drawn(20_000)

# %%
# Mean log-odds may be equal while decisions are not: the report shows both.
found = {}
for name, constraints in (
    ("none", []),
    ("mean log-odds", [GroupMeans(group, within=0.05)]),
    ("rates", [GroupRates(group, within=0.05)]),
):
    model = LiftedClassifier((20,), random_state=0).fit(x, y, constraints=constraints)
    found[name] = gap(model, new_x, new_group)
    print(f"{name}: gap on new rows {found[name]:.3f}, accuracy {model.score(new_x, new_y):.3f}")
figure, panel = plt.subplots(figsize=(5, 2.5), layout="constrained")
panel.barh([*found], [*found.values()])
panel.axvline(0.05, color="gray", linestyle=":", label="within")
panel.set(xlabel="difference of selection rates on new rows")
panel.legend()
plt.show()

# %%
# With a confidence, rows are set aside, and exact bounds on them say what holds.
warranted = LiftedClassifier((20,), random_state=0)
warranted.fit(x, y, constraints=[GroupRates(group, within=0.1)], confidence=0.95, held_out=0.4)
print(warranted.model_.constraint_report())
print(f"gap on new rows {gap(warranted, new_x, new_group):.3f}")
