"""
In a scikit-learn pipeline
==========================

`LiftedClassifier` follows scikit-learn's conventions: labels of any type, pipelines, searches
over parameters, sample weights.
"""

import matplotlib.pyplot as plt
from scipy.stats import loguniform
from sklearn.datasets import load_wine
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import RandomizedSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from liftednet import LiftedClassifier

wine = load_wine()
labels = wine.target_names[wine.target]
x_train, x_test, y_train, y_test = train_test_split(
    wine.data, labels, test_size=0.4, random_state=0, stratify=labels
)

# %%
# Names of parameters are those of the pipeline's step; both are drawn on a logarithmic scale.
pipeline = make_pipeline(StandardScaler(), LiftedClassifier((20,), max_iter=30, random_state=0))
drawn = {"liftedclassifier__lam": loguniform(1, 100), "liftedclassifier__rho": loguniform(1e-3, 1)}
search = RandomizedSearchCV(pipeline, drawn, n_iter=4, cv=3, random_state=0)
search.fit(x_train, y_train)
chosen = ", ".join(f"{name} {value:.3g}" for name, value in search.best_params_.items())
print(f"chosen: {chosen}; test accuracy {search.score(x_test, y_test):.3f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
left.plot(search.best_estimator_[-1].loss_curve_)
left.set(xlabel="epochs", ylabel="mean loss of a batch", yscale="log")
ConfusionMatrixDisplay.from_estimator(search, x_test, y_test, ax=right, colorbar=False)
plt.show()
