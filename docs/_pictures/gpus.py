"""A drawing: the candidates of a mixed search, and the workers to which device_of sends them."""

import matplotlib.pyplot as plt
from _drawing import BLUE, ORANGE
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from xgboost import XGBClassifier

from skfleet.engine import device_of
from skfleet.estimators import LogisticRegression

plt.rcParams["font.size"] = 10
CANDIDATES = {
    "SVC()": SVC(),
    "RandomForestClassifier()": RandomForestClassifier(),
    'LogisticRegression(device="auto")': LogisticRegression(device="auto"),
    'LogisticRegression(device="cuda")': LogisticRegression(device="cuda"),
    'XGBClassifier(device="cuda")': XGBClassifier(device="cuda"),
    'StandardScaler, LogisticRegression(device="cuda")': make_pipeline(
        StandardScaler(), LogisticRegression(device="cuda")
    ),
}
COLORS = {"cpu": BLUE, "cuda": ORANGE}
WORKERS = {"cpu": (1.0, "CPU workers\nprocesses, one for each\nremaining core"),
           "cuda": (4.0, "GPU workers\none process with one\nthread for each GPU")}  # fmt: skip

figure, axes = plt.subplots(layout="constrained")
for row, (text, estimator) in enumerate(CANDIDATES.items()):
    device = device_of(estimator)
    color, (target, _) = COLORS[device], WORKERS[device]
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": color}
    axes.text(5.5, row, text, ha="right", va="center", bbox=box, family="monospace", size=9)
    axes.annotate(
        "", (7.1, target), (5.7, row), arrowprops={"arrowstyle": "->", "color": color, "lw": 1.3}
    )
for device, (place, text) in WORKERS.items():
    box = {"boxstyle": "round,pad=0.7", "facecolor": COLORS[device], "edgecolor": "none"}
    axes.text(8.65, place, text, ha="center", va="center", bbox=box)
axes.set_xlim(0.2, 10.1)
axes.set_ylim(5.6, -0.6)
axes.axis("off")
