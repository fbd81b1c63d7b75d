"""Fits on ranks by either library, and their models as bytes."""

import dask.array as da
from kills import LightGBMCallback, XGBoostCallback

from skfleet.estimators.boosting import LGBMRegressor, XGBRegressor

N_ROUNDS, SNAPSHOT_ROUNDS = 40, 5
OPTIONS = {"n_estimators": N_ROUNDS, "checkpoint_interval": SNAPSHOT_ROUNDS}
LIBRARIES = ["xgboost", "lightgbm"]


def fit(library, rows, function=None, **options):
    """Return a fitted regressor; ranks call the function with the number of each round."""
    X, y = (da.from_array(rows[name], chunks=250) for name in ("X", "y"))
    evals = {"eval_set": [(rows["X"][:80], rows["noise"][:80])]}
    options = OPTIONS | options
    if library == "xgboost":
        callbacks = [XGBoostCallback(function)] if function else None
        model = XGBRegressor(eval_metric="mae", callbacks=callbacks, **options)
        return model.fit(X, y, **evals, verbose=False)
    callbacks = [LightGBMCallback(function)] if function else None
    model = LGBMRegressor(verbosity=-1, **options)
    return model.fit(X, y, **evals, eval_metric="l1", callbacks=callbacks)


def bytes_of(model):
    """Return the booster of a fitted model as the library saves it."""
    if hasattr(model, "get_booster"):
        return bytes(model.get_booster().save_raw("ubj"))
    return model.booster_.model_to_string(num_iteration=-1).encode()


def n_rounds_of(model):
    """Return the rounds of a fitted model's booster."""
    if hasattr(model, "get_booster"):
        return model.get_booster().num_boosted_rounds()
    return model.booster_.current_iteration()
