"""
What matters, and how often intervals hold
==========================================

Three pictures of a fit without settings: its curve over one feature, how many new answers lie in
intervals of every level, and which features move the answers.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from liftednet import LiftedRegressor
from liftednet.models.displays import CoverageDisplay, FitDisplay, RelevanceDisplay

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X, X_new, y, y_new = train_test_split(X, y, random_state=0)
model = LiftedRegressor(random_state=0).fit(X, y)

# %%
# Intervals hold what they say where the line is near the diagonal.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
CoverageDisplay.from_estimator(model, X_new, y_new, ax=left)
RelevanceDisplay.from_estimator(model, ax=right)
plt.show()

# %%
# Over one feature alone the interval is wide: what the others say is noise here.
alone = LiftedRegressor(random_state=0).fit(X[["bmi"]], y)
FitDisplay.from_estimator(alone, X[["bmi"]], y)
plt.show()
print(
    f"R2 with all features {model.score(X_new, y_new):.2f}, "
    f"with one {alone.score(X_new[['bmi']], y_new):.2f}"
)
