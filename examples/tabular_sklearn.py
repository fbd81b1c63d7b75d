"""The work of ``tabular.py`` with plain scikit-learn, in one process and its memory.

``diff examples/tabular_sklearn.py examples/tabular.py`` shows how little differs.
"""

import sys

import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def main(source: str, target: str) -> float:
    """Fit a model on the rows of Parquet files, and write its predictions of the test rows."""
    rows = pd.read_parquet(source)
    X, y = rows.drop(columns="payment"), rows["payment"]
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
    preparation = ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include="number")),
            ("texts", texts, make_column_selector(dtype_exclude="number")),
        ]
    )
    model = make_pipeline(preparation, LogisticRegression(C=0.1, max_iter=1000))
    model.fit(X_train, y_train)
    X_test.assign(paid=model.predict(X_test)).to_parquet(target + ".parquet")
    return model.score(X_test, y_test)


if __name__ == "__main__":
    print(f"accuracy on test rows: {main(*sys.argv[1:]):.4f}")
