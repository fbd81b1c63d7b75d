"""Tables of dask-ml's public names and of what replaces them, in the page for its users.

Names and keywords are read from the files of the installed dask-ml, which is not imported: some
of its modules fail to. Where it is not installed, the names are those of `ROWS`.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """What replaces a name: dotted names, what differs, and what replaces single keywords."""

    ours: str
    remark: str = ""
    keywords: dict = {}


# Keywords that several names have, and what to do instead.
KEYWORDS = {
    "cache_cv": "splits are cut once a worker",
    "compute": "not needed, scores are computed at once",
    "iid": "not needed, scikit-learn has given it up",
    "multi_class": "not needed, several classes are one multinomial model",
    "n_jobs": "not needed, the fleet's threads work",
    "prefix": "not needed, the logger is `skfleet.model_selection`",
    "scheduler": "the open `Fleet` or client",
    "solver_kwargs": "not needed, `solver_` tells what ran",
    "predict_meta": "not needed, types are inferred",
    "predict_proba_meta": "not needed, types are inferred",
    "transform_meta": "not needed, types are inferred",
    "preserve_dataframe": '`set_output(transform="pandas")`',
}

_GLM = {
    "dual": "not needed",
    "intercept_scaling": "not needed, the intercept is not penalised",
    "random_state": "not needed, the solver draws nothing",
}
_DISTANCES = (
    "There is no distributed matrix of distances. For the nearest rows take `NearestNeighbors`;"
    " for distances to a few rows, map scikit-learn's function over the blocks."
)
_KERNELS = "There is no distributed kernel matrix. Map scikit-learn's function over the blocks."
_HISTORY = "`model_history_` is `history_`, one row a score."
_CONTINUE = " There is no `partial_fit`: continue with that of `best_estimator_`."
_SEARCH = (
    "`cv` is 5 by default (there 3), and `error_score` is NaN (there `'raise'`)."
    " There is no `dask_graph_` and no `visualize`; the dashboard and `plot()` show the fits."
)
_COEFFICIENTS = (
    "There the penalty is on standardised columns and on the intercept too, so coefficients"
    " differ: here they are scikit-learn's."
)

ROWS = {
    "dask_ml.cluster": {
        "KMeans": Row(
            "skfleet.estimators.KMeans",
            "Only `n_clusters` may be positional. Up to 10,000 rows the start is k-means++, on more"
            r" k-means\|\|. `inertia_` is the sum of squares, and `tol` is relative, as in"
            ' scikit-learn. `algorithm="full"` is `"lloyd"`.',
            {
                "oversampling_factor": r"not needed, k-means\|\| draws twice `n_clusters`",
                "init_max_iter": "not needed, it makes three rounds",
                "precompute_distances": "not needed",
            },
        ),
        "SpectralClustering": Row(
            "skfleet.estimators.SpectralClustering",
            "The number of sampled rows is `n_landmarks`; `n_components` is the number of"
            " eigenvectors, as in scikit-learn. `assign_labels` is a name, so that there is no"
            " `assign_labels_`.",
            {
                "persist_embedding": "`config_context(keep_blocks=...)`",
                "kmeans_params": "`n_init`",
            },
        ),
    },
    "dask_ml.compose": {
        "ColumnTransformer": Row(
            "skfleet.estimators.ColumnTransformer",
            "All parts are fitted in shared passes.",
        ),
        "make_column_transformer": Row("skfleet.estimators.compose.make_column_transformer"),
    },
    "dask_ml.datasets": {
        "make_blobs": Row("skfleet.datasets.make_blobs"),
        "make_classification": Row(
            "skfleet.datasets.make_classification",
            "Clusters as in scikit-learn, of any number of classes; there, labels of a logistic"
            " model for two.",
        ),
        "make_classification_df": Row(
            "skfleet.datasets.make_classification",
            "With `as_frame=True`. There are no dates: assign a column.",
            {
                "response_rate": "`weights=[1 - response_rate]`",
                "predictability": "`flip_y=1 - predictability`",
                "dates": "`X.assign(date=...)`",
            },
        ),
        "make_counts": Row("skfleet.datasets.make_counts"),
        "make_regression": Row("skfleet.datasets.make_regression"),
        "random_date": Row("", "Not here."),
    },
    "dask_ml.decomposition": {
        "IncrementalPCA": Row(
            "skfleet.estimators.IncrementalPCA",
            "Batches may span blocks, so that the answer does not depend on the chunks. There is"
            " no `score` (take `PCA`), and no `n_samples_`, `sum_` and `squared_sum_`:"
            " `n_samples_seen_`, `mean_` and `var_` are scikit-learn's.",
            {
                "svd_solver": "not needed, each batch is decomposed exactly",
                "iterated_power": "not needed",
                "random_state": "not needed",
            },
        ),
        "PCA": Row(
            "skfleet.estimators.PCA",
            '`svd_solver="tsqr"` is `"full"`; one pass with `"auto"` up to 2,000 columns.',
        ),
        "TruncatedSVD": Row(
            "skfleet.estimators.TruncatedSVD",
            '`algorithm="auto"` is the default, and exact up to 2,000 columns.',
        ),
    },
    "dask_ml.ensemble": {
        "BlockwiseVotingClassifier": Row("skfleet.estimators.BlockwiseVotingClassifier"),
        "BlockwiseVotingRegressor": Row("skfleet.estimators.BlockwiseVotingRegressor"),
    },
    "dask_ml.feature_extraction.text": {
        "CountVectorizer": Row("skfleet.estimators.CountVectorizer", "One pass."),
        "FeatureHasher": Row("skfleet.estimators.FeatureHasher"),
        "HashingVectorizer": Row("skfleet.estimators.HashingVectorizer"),
        "build_array": Row("", "Not here; an internal of the vectorizers."),
        "vocabulary_length": Row("", "Not here; an internal of the vectorizers."),
    },
    "dask_ml.impute": {
        "SimpleImputer": Row(
            "skfleet.estimators.SimpleImputer",
            "Medians are exact, and integer columns and text are taken.",
        ),
    },
    "dask_ml.linear_model": {
        "LinearRegression": Row(
            "skfleet.estimators.LinearRegression skfleet.estimators.Ridge",
            "There it has an L2 penalty of `C=1.0` by default. Here, as in scikit-learn, it has"
            " none, and `Ridge` has one. There is no `family`. " + _COEFFICIENTS,
            {
                **_GLM,
                "penalty": "`Ridge`, `Lasso` or `ElasticNet`",
                "C": "`Ridge(alpha=0.5 / C)`",
                "class_weight": "not needed",
                "solver": "not needed",
                "max_iter": "not needed, the answer is exact",
                "verbose": "`config_context(progress=True)`",
                "warm_start": "not needed",
            },
        ),
        "LogisticRegression": Row(
            "skfleet.estimators.LogisticRegression",
            '`penalty="l1"` is `l1_ratio=1`. `solver="auto"` replaces `"admm"`, `"newton"`,'
            ' `"proximal_grad"` and `"gradient_descent"`. Labels may be any values, of any number'
            " of classes; `predict` returns labels, not booleans. `coef_` has two dimensions."
            " There is no `family`. " + _COEFFICIENTS,
        ),
        "PoissonRegression": Row(
            "skfleet.estimators.PoissonRegressor",
            "scikit-learn's name and parameters. `score` is the share of the deviance that is"
            " explained; `get_deviance` is `mean_poisson_deviance` times the number of rows."
            " There is no `family`. " + _COEFFICIENTS,
            {
                **_GLM,
                "penalty": "not here, always L2",
                "C": "`alpha=1 / (C * n_rows)`",
                "class_weight": "`sample_weight` of `fit`",
            },
        ),
    },
    "dask_ml.metrics": {
        "SCORERS": Row("skfleet.metrics.get_scorer_names", "Names; `get_scorer` takes one."),
        "accuracy_score": Row("skfleet.metrics.accuracy_score"),
        "check_scoring": Row("skfleet.metrics.check_scoring"),
        "euclidean_distances": Row("", _DISTANCES),
        "get_scorer": Row("skfleet.metrics.get_scorer"),
        "log_loss": Row(
            "skfleet.metrics.log_loss", "", {"eps": "not needed, scikit-learn has given it up"}
        ),
        "mean_absolute_error": Row("skfleet.metrics.mean_absolute_error"),
        "mean_absolute_percentage_error": Row("skfleet.metrics.mean_absolute_percentage_error"),
        "mean_squared_error": Row(
            "skfleet.metrics.mean_squared_error", "", {"squared": "`root_mean_squared_error`"}
        ),
        "mean_squared_log_error": Row("skfleet.metrics.mean_squared_log_error"),
        "pairwise_distances": Row("", _DISTANCES),
        "pairwise_distances_argmin_min": Row(
            "skfleet.estimators.NearestNeighbors",
            "`NearestNeighbors(n_neighbors=1).fit(Y).kneighbors(X)` returns distances and row"
            " numbers.",
            dict.fromkeys(["X", "Y", "axis", "batch_size"], "")
            | {"metric_kwargs": "`metric_params`"},
        ),
        "r2_score": Row("skfleet.metrics.r2_score"),
    },
    "dask_ml.metrics.pairwise": {
        "check_pairwise_arrays": Row("", "Not here; a check of the functions below."),
        "linear_kernel": Row("", _KERNELS),
        "pairwise_kernels": Row("", _KERNELS),
        "polynomial_kernel": Row("", _KERNELS),
        "rbf_kernel": Row("", _KERNELS),
        "sigmoid_kernel": Row("", _KERNELS),
    },
    "dask_ml.model_selection": {
        "GridSearchCV": Row("skfleet.model_selection.GridSearchCV", _SEARCH),
        "HyperbandSearchCV": Row(
            "skfleet.model_selection.HyperbandSearchCV",
            "All brackets share one holdout, and the best model may be fitted on it at the end"
            " (`refit_on_test`). " + _HISTORY + _CONTINUE,
        ),
        "IncrementalSearchCV": Row(
            "skfleet.model_selection.IncrementalSearchCV",
            _HISTORY + _CONTINUE,
            {"decay_rate": "`InverseDecaySearchCV`", "scores_per_fit": "`fits_per_score`"},
        ),
        "InverseDecaySearchCV": Row(
            "skfleet.model_selection.InverseDecaySearchCV",
            _HISTORY + _CONTINUE,
            {"fits_per_score": "not here, scores are those that the schedule needs"},
        ),
        "KFold": Row(
            "skfleet.model_selection.KFold",
            "Shuffles across all blocks. `split` yields row numbers, and `split_rows` the parts.",
        ),
        "RandomizedSearchCV": Row("skfleet.model_selection.RandomizedSearchCV", _SEARCH),
        "ShuffleSplit": Row(
            "skfleet.model_selection.ShuffleSplit",
            "",
            {"blockwise": "not needed, rows are drawn from all blocks"},
        ),
        "SuccessiveHalvingSearchCV": Row(
            "skfleet.model_selection.SuccessiveHalvingSearchCV",
            "`n_initial_iter` is 1 by default. " + _HISTORY + _CONTINUE,
        ),
        "check_cv": Row(
            "",
            "scikit-learn's `check_cv` for labels of this process. Searches take `cv=` for Dask"
            " labels.",
        ),
        "compute_n_splits": Row("", "`cv.get_n_splits(...)`."),
        "train_test_split": Row(
            "skfleet.model_selection.train_test_split",
            "`test_size` is 0.25 by default (there 0.1). `stratify` is taken, and the rows are"
            " scikit-learn's for the same seed.",
            {
                "blockwise": "not needed, rows are drawn from all blocks",
                "convert_mixed_types": "not needed, each array or frame keeps its container",
            },
        ),
    },
    "dask_ml.naive_bayes": {
        "GaussianNB": Row(
            "skfleet.estimators.GaussianNB",
            "`sigma_` is `var_`. Attributes are NumPy arrays after `fit`.",
            {"classes": "not needed, `fit` finds them in the same pass"},
        ),
        "logsumexp": Row("", "SciPy's `logsumexp` on each block."),
    },
    "dask_ml.preprocessing": {
        "BlockTransformer": Row(
            "skfleet.estimators.FunctionTransformer",
            "Calls the function with each block. Its keyword arguments are one dictionary,"
            " `kw_args`.",
        ),
        "Categorizer": Row(
            "",
            "Not needed: the encoders take text and categories. Dask's `frame.categorize()` makes"
            " categories.",
        ),
        "DummyEncoder": Row(
            "skfleet.estimators.OneHotEncoder",
            'With `sparse_output=False` and `set_output(transform="pandas")`. Names are in'
            " `feature_names_in_` and `get_feature_names_out()`, categories in `categories_`: there"
            " are no `columns_`, `transformed_columns_`, `categorical_columns_`,"
            " `categorical_blocks_`, `non_categorical_columns_` and `dtypes_`.",
            {"columns": "`ColumnTransformer`", "drop_first": '`drop="first"`'},
        ),
        "LabelEncoder": Row(
            "skfleet.estimators.LabelEncoder",
            "`classes_` are the distinct labels in order, also of categories. There is no"
            " `dtype_`.",
            {"use_categorical": "not here"},
        ),
        "MinMaxScaler": Row("skfleet.estimators.MinMaxScaler"),
        "OneHotEncoder": Row(
            "skfleet.estimators.OneHotEncoder",
            "`handle_unknown`, `drop`, gaps and rare categories as in scikit-learn. Categories are"
            " the values that occur, in order, also of a categorical column. There is no"
            " `dtypes_`.",
            {
                "n_values": "not needed, scikit-learn has given it up",
                "categorical_features": "`ColumnTransformer`",
            },
        ),
        "OrdinalEncoder": Row(
            "skfleet.estimators.OrdinalEncoder",
            "Encodes all columns that it is given, of text or categories. `categories_` replaces"
            " `dtypes_`; there are no `columns_`, `categorical_columns_` and"
            " `non_categorical_columns_`.",
            {"columns": "`ColumnTransformer`"},
        ),
        "PolynomialFeatures": Row("skfleet.estimators.PolynomialFeatures"),
        "QuantileTransformer": Row(
            "skfleet.estimators.QuantileTransformer",
            "Quantiles of as many rows as in scikit-learn; exact with `subsample=None`.",
        ),
        "RobustScaler": Row("skfleet.estimators.RobustScaler", "Quantiles are exact."),
        "StandardScaler": Row("skfleet.estimators.StandardScaler"),
    },
    "dask_ml.utils": {
        "ConstantFunction": Row("", "Not here."),
        "assert_estimator_equal": Row("", "Not here; compare the attributes with `numpy.testing`."),
        "check_array": Row(
            "",
            "scikit-learn's `check_array` for arrays of this process. Estimators check Dask rows in"
            " their first pass.",
        ),
        "check_chunks": Row("", "Dask's `normalize_chunks`."),
        "check_random_state": Row("", "scikit-learn's `check_random_state`."),
    },
    "dask_ml.wrappers": {
        "Incremental": Row(
            "skfleet.estimators.Incremental",
            "Several `epochs`, `early_stopping`, and a failure that keeps the model of the blocks"
            " before it.",
            {
                "shuffle_blocks": '`shuffle="blocks"`, `"rows"` or `False`',
                "assume_equal_chunks": "not needed, values are cut along the rows",
            },
        ),
        "ParallelPostFit": Row(
            "skfleet.estimators.ParallelPostFit",
            "A model of a megabyte or more goes to each worker once. There is no `partial_fit`:"
            " take `Incremental`.",
        ),
    },
    "dask_ml.xgboost": {
        "*": Row(
            "skfleet.estimators.XGBClassifier skfleet.estimators.XGBRegressor",
            "`dask_ml.xgboost` passes on the names of dask-xgboost, which XGBoost has replaced."
            " There is no `train` and `predict`; take the estimators.",
        ),
    },
}

# Modules that have no table, and why.
NO_TABLE = {
    "dask_ml.base": "base classes",
    "dask_ml.feature_extraction": "has `text` alone",
    "dask_ml.neural_network": "empty",
}


# -- dask-ml's files -------------------------------------------------------------------------------


@cache
def folder():
    """Return the folder of the installed dask-ml, or None."""
    spec = find_spec("dask_ml")
    return Path(spec.submodule_search_locations[0]) if spec else None


def modules():
    """Return the public modules of dask-ml, one level down."""
    paths = [path for path in folder().iterdir() if not path.name.startswith("_")]
    files = [f"dask_ml.{path.stem}" for path in paths if path.suffix == ".py"]
    packages = [f"dask_ml.{path.name}" for path in paths if (path / "__init__.py").exists()]
    return sorted(files + packages)


@cache
def _parsed(module):
    """Return the tree of a module, and whether it is a package."""
    path = folder().joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")), path.name == "__init__.py"


def public_names(module):
    """Return the names that a module of dask-ml exports."""
    tree, is_package = _parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imported for alias in node.names]
    if is_package or "*" in {alias.name for alias in aliases}:
        names = [alias.asname or alias.name for alias in aliases]
    else:
        kinds = ast.ClassDef, ast.FunctionDef
        names = [node.name for node in tree.body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def _imports(module):
    """Return the modules and names that the names in a module stand for."""
    tree, is_package = _parsed(module)
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = (alias.name if alias.asname else first, None)
    return found


def _find(module, name):
    """Return the module and the node of a name, or the object of another library."""
    for node in _parsed(module)[0].body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
    source, original = _imports(module).get(name, (None, None))
    if source is None or original == "*":
        return None
    if source.startswith("dask_ml"):
        return _find(source, original)
    return getattr(importlib.import_module(source), original)


def _bases(module, node):
    """Yield what `_find` returns, for the bases of a class."""
    for base in node.bases:
        first, _, rest = ast.unparse(base).partition(".")
        if not rest:
            yield _find(module, first)
        elif first in _imports(module):
            source, original = _imports(module)[first]
            owner, _, name = ".".join(filter(None, [source, original, rest])).rpartition(".")
            yield getattr(importlib.import_module(owner), name)


def keywords(module, name):
    """Return the parameters of a class or a function of dask-ml."""
    return _keywords(_find(module, name))


def _keywords(found):
    if not isinstance(found, tuple):
        return list(inspect.signature(found).parameters) if callable(found) else []
    module, node = found
    if isinstance(node, ast.FunctionDef):
        given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        return [argument.arg for argument in given if argument.arg != "self"]
    for method in node.body:
        if getattr(method, "name", "") == "__init__":
            return _keywords((module, method))
    inherited = map(_keywords, _bases(module, node))
    return next((names for names in inherited if set(names) - {"args", "kwargs"}), [])


def attributes(module, name):
    """Return the fitted attributes and properties of a class of dask-ml."""
    return _attributes(_find(module, name))


def _attributes(found):
    names = set()
    if isinstance(found, tuple) and isinstance(found[1], ast.ClassDef):
        for node in ast.walk(found[1]):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if node.attr.endswith("_") else set()
            elif isinstance(node, ast.FunctionDef):
                decorators = {getattr(mark, "id", "") for mark in node.decorator_list}
                names |= {node.name} if "property" in decorators else set()
        for base in _bases(*found):
            names |= _attributes(base)
    return {name for name in names if not name.startswith("_")}


# -- what is here ----------------------------------------------------------------------------------


def resolve(dotted):
    """Return the object with a dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def missing_keywords(module, name):
    """Return the parameters of a name of dask-ml that what replaces it has not."""
    ours, theirs = ROWS[module][name].ours, keywords(module, name)
    if not ours or not theirs:
        return []
    known = inspect.signature(resolve(ours.split()[0])).parameters
    return [keyword for keyword in theirs if keyword not in known]


def missing_attributes(module, name):
    """Return the attributes of a class of dask-ml that what replaces it has not."""
    ours, theirs = ROWS[module][name].ours, attributes(module, name)
    if not ours or not theirs or not inspect.isclass(resolve(ours.split()[0])):
        return []
    bases = resolve(ours.split()[0]).__mro__
    ready = (b for b in bases if b.__module__.startswith(("skfleet", "sklearn")))
    # the docstring as it is composed has the attributes that another module sets
    texts = [text for base in ready for text in (inspect.getsource(base), base.__doc__ or "")]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return sorted(theirs - words)


def told(row, keyword):
    """Return what a row says of a keyword, or None."""
    return row.keywords.get(keyword, KEYWORDS.get(keyword))


# -- the table -------------------------------------------------------------------------------------


def table_lines(module):
    """Return the lines of the table of a module, in Markdown."""
    lines = ["| dask-ml | here | what differs |", "| --- | --- | --- |"]
    is_installed = folder() is not None
    names = public_names(module) if is_installed else ROWS[module]
    done = set(ROWS["dask_ml.metrics"]) if module == "dask_ml.metrics.pairwise" else set()
    for name in sorted(set(names) - done, key=str.lower):
        row = ROWS[module].get(name, Row("", "Not looked into."))
        known = missing_keywords(module, name) if is_installed else row.keywords
        texts = [row.remark] if row.remark else []
        if pairs := [(keyword, told(row, keyword)) for keyword in known]:
            parts = [f"`{keyword}`: {text}" for keyword, text in pairs if text]
            texts += ["; ".join(parts) + "."] if parts else []
        links = ", ".join(map(_link, row.ours.split())) or "–"
        lines.append(f"| `{name}` | {links} | {' '.join(texts)} |")
    return lines


def _link(dotted):
    try:
        role = "class" if inspect.isclass(resolve(dotted)) else "func"
    except (ImportError, AttributeError):  # a library that is not installed
        return f"`{dotted}`"
    shown = "" if dotted.startswith("skfleet") else dotted
    return f"{{py:{role}}}`{shown} <{dotted}>`" if shown else f"{{py:{role}}}`~{dotted}`"


def setup(app):
    """Register the directive, whose argument is a module of dask-ml."""
    from docutils import nodes
    from docutils.statemachine import StringList
    from sphinx.util.docutils import SphinxDirective

    class DaskMLNames(SphinxDirective):
        required_arguments = 1

        def run(self):
            container = nodes.container()
            lines = StringList(
                table_lines(self.arguments[0]), source=self.env.doc2path(self.env.docname)
            )
            self.state.nested_parse(lines, self.content_offset, container)
            self.env.note_dependency(__file__)
            return container.children

    app.add_directive("dask-ml-names", DaskMLNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
