"""Names and signatures of CuPy 14, as far as the project uses them."""

SIGNATURES = """
all(a, axis=None, out=None, keepdims=False)
any(a, axis=None, out=None, keepdims=False)
arange(start, stop=None, step=1, dtype=None)
argmax(a, axis=None, dtype=None, out=None, keepdims=False)
argmin(a, axis=None, dtype=None, out=None, keepdims=False)
argsort(a, axis=-1, kind=None)
broadcast_shapes(*args)
broadcast_to(array, shape)
clip(a, a_min, a_max, out=None)
concatenate(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
copyto(dst, src, casting='same_kind', where=None)
diagonal(a, offset=0, axis1=0, axis2=1)
empty(shape, dtype=float, order='C')
empty_like(prototype, dtype=None, order='K', subok=None, shape=None)
full(shape, fill_value, dtype=None, order='C')
full_like(a, fill_value, dtype=None, order='K', subok=None, shape=None)
max(a, axis=None, out=None, keepdims=False)
mean(a, axis=None, dtype=None, out=None, keepdims=False)
min(a, axis=None, out=None, keepdims=False)
nonzero(a)
ones(shape, dtype=float, order='C')
ones_like(a, dtype=None, order='K', subok=None, shape=None)
repeat(a, repeats, axis=None)
reshape(a, newshape, order='C', *, copy=None)
searchsorted(a, v, side='left', sorter=None)
sort(a, axis=-1, kind=None)
stack(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
sum(a, axis=None, dtype=None, out=None, keepdims=False)
swapaxes(a, axis1, axis2)
take(a, indices, axis=None, out=None)
take_along_axis(a, indices, axis)
unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=1)
var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False)
where(condition, x=None, y=None)
zeros(shape, dtype=float, order='C')
zeros_like(a, dtype=None, order='K', subok=None, shape=None)
linalg.inv(a)
linalg.qr(a, mode='reduced')
linalg.slogdet(a)
linalg.svd(a, full_matrices=True, compute_uv=True)
"""
_words = str.split
UFUNCS = _words("""
abs add bitwise_and bitwise_or bitwise_xor divide equal exp expm1 floor floor_divide greater
greater_equal invert isfinite isinf isnan left_shift less less_equal log log1p logical_and
logical_not logical_or matmul maximum minimum multiply negative not_equal power remainder
right_shift sign sqrt square subtract tanh
""")
METHODS = _words("""
T all any argmax argmin argsort astype clip copy data device dot dtype fill flags flatten get item
itemsize max mean min nbytes ndim nonzero ravel repeat reshape set shape size sort squeeze std
strides sum take tolist transpose var view
""")
OPERATORS = _words("""
add sub mul truediv floordiv mod pow and or xor lshift rshift matmul lt le gt ge eq ne
radd rsub rmul rtruediv rfloordiv rmod rpow rand ror rxor rmatmul
""")
