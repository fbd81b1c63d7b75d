"""What a notebook shows of fleets, estimators, searches and lazy answers."""

import re
from html.parser import HTMLParser

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier

from skfleet import Fleet
from skfleet.estimators import Incremental, LogisticRegression
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV


class Text(HTMLParser):
    """Collects the words that a browser shows."""

    def __init__(self, html):
        super().__init__()
        self.words, self.hidden = [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.hidden = tag in ("style", "script")

    def handle_endtag(self, tag):
        self.hidden = False

    def handle_data(self, data):
        self.words += [] if self.hidden else data.split()


def show(title, thing):
    html = thing._repr_html_()
    print(f"--- {title}\n{thing!r}")
    if isinstance(thing, BaseEstimator):
        if html.startswith("<table"):  # of results, above the diagram
            print("words:", *Text(html[: html.index("</table>")]).words)
        links = re.findall(r'href="(https?://scikit-fleet[^"#]*)"', html)
        print("links to:", *dict.fromkeys(links))
    else:
        print("words:", *Text(html).words)


if __name__ == "__main__":
    X, y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2
    rows, labels = da.from_array(X, chunks=(50, 3)), da.from_array(y, chunks=50)
    fleet = Fleet(n_workers=2)
    show("a fleet", fleet)
    show("an estimator", LogisticRegression(C=0.5))
    show("a wrapper", Incremental(SGDClassifier(random_state=0)))
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    show("a search", search)
    show("a search that has found", search.fit(X, y))
    search = HyperbandSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4]}, max_iter=3)
    show("an adaptive search", search)
    show("an adaptive search that has found", search.set_params(random_state=0).fit(X, y))
    print("--- a lazy answer")
    print(LogisticRegression().fit(rows, labels).predict(rows))
    fleet.close()
    show("a fleet that is closed", fleet)
