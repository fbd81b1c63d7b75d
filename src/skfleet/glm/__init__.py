"""Generalised linear models: losses, penalties, objectives and solvers."""

from skfleet.glm._coordinate_descent import (
    PathPoint,
    Quadratic,
    coordinate_descent,
    elastic_net_path,
)
from skfleet.glm._cv_normal_equations import (
    SplitProducts,
    combine_residuals,
    residuals_by_split,
    split_cross_products,
    split_products,
)
from skfleet.glm._dense_solvers import (
    equilibrate,
    rows_with_gram,
    solve_positive,
    solve_ridge,
)
from skfleet.glm._losses import BinaryLogistic, Loss, Multinomial, SquaredError, Tweedie
from skfleet.glm._normal_equations import (
    CrossProducts,
    block_cross_products,
    combine_products,
    max_gram_columns,
    product_reduction,
    products_take_whole,
    score_from_errors,
    targets_of,
    weights_of,
)
from skfleet.glm._objective import ClassEncoding, Objective, ObjectiveValue, Scaling, encode_labels
from skfleet.glm._penalties import Penalty
from skfleet.glm._product_sums import (
    MAX_CONDITIONS,
    MAX_FACTOR_COLUMNS,
    MAX_KNOWN_CONDITION,
    ProductKind,
    Products,
    accurate_products,
    compute_products,
)
from skfleet.glm._proximal_solvers import proximal_gradient, proximal_newton
from skfleet.glm._rounding import round_coef
from skfleet.glm._row_factor import (
    block_row_factor,
    combine_row_factors,
    compute_row_factor,
)
from skfleet.glm._sgd import descend
from skfleet.glm._sgd_config import SGDConfig, SGDTargets, SGDWeights
from skfleet.glm._sgd_losses import REGRESSION_LOSSES, SGD_LOSSES
from skfleet.glm._smooth_solvers import NullModel, Solution, WarmNewton, lbfgs, newton

__all__ = [
    "MAX_CONDITIONS",
    "MAX_FACTOR_COLUMNS",
    "MAX_KNOWN_CONDITION",
    "REGRESSION_LOSSES",
    "SGD_LOSSES",
    "BinaryLogistic",
    "ClassEncoding",
    "CrossProducts",
    "Loss",
    "Multinomial",
    "NullModel",
    "Objective",
    "ObjectiveValue",
    "PathPoint",
    "Penalty",
    "ProductKind",
    "Products",
    "Quadratic",
    "SGDConfig",
    "SGDTargets",
    "SGDWeights",
    "Scaling",
    "Solution",
    "SplitProducts",
    "SquaredError",
    "Tweedie",
    "WarmNewton",
    "accurate_products",
    "block_cross_products",
    "block_row_factor",
    "combine_products",
    "combine_residuals",
    "combine_row_factors",
    "compute_products",
    "compute_row_factor",
    "coordinate_descent",
    "descend",
    "elastic_net_path",
    "encode_labels",
    "equilibrate",
    "lbfgs",
    "max_gram_columns",
    "newton",
    "product_reduction",
    "products_take_whole",
    "proximal_gradient",
    "proximal_newton",
    "residuals_by_split",
    "round_coef",
    "rows_with_gram",
    "score_from_errors",
    "solve_positive",
    "solve_ridge",
    "split_cross_products",
    "split_products",
    "targets_of",
    "weights_of",
]
