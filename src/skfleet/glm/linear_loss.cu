// Sums over rows of a loss of linear predictors, its derivatives, and rows scaled for its Hessian:
// one read of the rows.
//
// _loss_kernel.py compiles this file, and defines the constants:
//   REAL      float or double, the type of rows, coefficients, targets and weights
//   THREADS   of a block
//   LANES     neighbouring threads that share a row: a power of two, up to a warp
//   COLUMNS   of a thread: lane, lane + LANES, ...
//   ROWS      of LANES threads at once: a power of two
//   TOTALS    of a block of add_up
//   CENTERED  whether means are taken off the rows
//   LOSS      LOGISTIC, SQUARED or TWEEDIE, the latter with
//   POWER     of the variance, and
//   LOG_LINK  whether predictors are logarithms of means
//
// Lanes exchange their products such that each has the predictors of some of the ROWS rows, so that
// a loss is computed once for several rows. What a thread adds up in REAL are ROWS rows; all else
// is in double.
//
// The floor: n * d numbers read once. 10,000,000 rows of 100 float32 columns are 4 GB, 1.3 ms at
// the 3.0 TB/s of an H100 SXM. A warp takes some 280 instructions for 4 of these rows, 16 of them
// loads: 0.8 ms at four a cycle on 132 multiprocessors, while others wait for memory. So reading
// decides; neither has been measured. Where a Hessian needs scaled rows, these are twice the bytes.

typedef long long Index;

#define LOGISTIC 0
#define SQUARED 1
#define TWEEDIE 2

#define GROUPS (32 / LANES)                   // of lanes, in a warp
#define TILE (GROUPS * ROWS)                  // rows of a warp at once
#define WIDTH (LANES * COLUMNS)               // of a row, with zeros
#define SPREAD (ROWS < LANES ? ROWS : LANES)  // lanes that the ROWS rows are dealt out to
#define OWN_ROWS (ROWS / SPREAD)              // rows of each of them
#define TWINS (LANES / SPREAD)                // lanes with the same rows
#define ALL 0xffffffffu

struct Pointwise {
    REAL value, slope, curve;  // curve is positive: the second derivative or a substitute
};

// Powers of a constant exponent.
__device__ __forceinline__ REAL power(REAL base, double exponent)
{
    if (exponent == 0)
        return 1;
    if (exponent == 1)
        return base;
    if (exponent == 2)
        return base * base;
    if (exponent == -1)
        return 1 / base;
    if (exponent == 0.5)
        return sqrt(base);
    if (exponent == -0.5)
        return 1 / sqrt(base);
    return pow(base, (REAL)exponent);
}

// The losses of _losses.py, in the same forms.
__device__ __forceinline__ Pointwise loss(REAL y, REAL eta)
{
    Pointwise at;
#if LOSS == LOGISTIC
    const REAL small = exp(-fabs(eta));
    const REAL mean = (eta >= 0 ? 1 : small) / (1 + small);
    at.value = (eta > 0 ? eta : 0) + log1p(small) - y * eta;
    at.slope = mean - y;
    at.curve = mean * (1 - mean);
#elif LOSS == SQUARED
    at.value = eta * (eta / 2 - y);
    at.slope = eta - y;
    at.curve = 1;
#else
    const double p = POWER;
    const bool bounded = !LOG_LINK && p != 0, possible = !bounded || eta > 0;
    const REAL mu = LOG_LINK ? exp(eta) : possible ? eta : 1;
    const REAL log_mu = p != 1 && p != 2 ? 0 : LOG_LINK ? eta : log(mu);
    const REAL own = p == 2 ? log_mu : power(mu, 2 - p) / (REAL)(2 - p);
    const REAL other = p == 1 ? log_mu : power(mu, 1 - p) / (REAL)(1 - p);
    // no mean is possible that is not positive: line searches turn back
    at.value = possible ? own - y * other : (REAL)__longlong_as_double(0x7ff0000000000000LL);
    at.slope = (mu - y) * power(mu, LOG_LINK - p);
    if (LOG_LINK && p >= 1 && p <= 2)
        at.curve = power(mu, 1 - p) * ((REAL)(2 - p) * mu + (REAL)(p - 1) * y);
    else
        at.curve = power(mu, 2 * LOG_LINK - p);
#endif
    return at;
}

// Sum up a number of each thread over those of a block with the same lane, for the first LANES.
__device__ __forceinline__ double block_sum(double mine, double *shared)
{
#pragma unroll
    for (int apart = LANES; apart < 32; apart *= 2)
        mine += __shfl_xor_sync(ALL, mine, apart);
    __syncthreads();
    shared[threadIdx.x] = mine;
    __syncthreads();
    double total = 0;
    if (threadIdx.x < LANES)
        for (int i = threadIdx.x; i < THREADS; i += 32)
            total += shared[i];
    return total;
}

// The same over all threads.
__device__ __forceinline__ double block_sum_of_lanes(double mine, double *shared)
{
#pragma unroll
    for (int apart = 1; apart < LANES; apart *= 2)
        mine += __shfl_xor_sync(ALL, mine, apart);
    return block_sum(mine, shared);
}

template <bool WITH_HESSIAN>
__device__ __forceinline__ void
sum_up(const REAL *__restrict__ X, const REAL *__restrict__ predictor, const REAL *__restrict__ y,
       const REAL *__restrict__ weights, double *__restrict__ sums, REAL *__restrict__ roots,
       REAL *__restrict__ scaled, const int *__restrict__ places, Index n, int d, int n_places,
       double *shared)
{
    REAL *coef = (REAL *)(shared + THREADS), *center = coef + WIDTH;
    const REAL constant = predictor[d];
    const int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
    const Index warp = ((Index)blockIdx.x * THREADS + threadIdx.x) / 32;
    const Index jump = (Index)gridDim.x * (THREADS / 32) * TILE;
    const int last = lane + (COLUMNS - 1) * LANES;  // the only column that may not be there
    double value = 0, slopes = 0, curves = 0, gradient[COLUMNS], columns[COLUMNS];

#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        gradient[c] = columns[c] = 0;
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) {
        coef[i] = i < d ? predictor[i] : 0;
        if (CENTERED)
            center[i] = i < d ? predictor[d + 1 + i] : 0;
    }
    __syncthreads();

    for (Index low = warp * TILE; low < n; low += jump) {
        REAL x[ROWS][COLUMNS], eta[ROWS], slope[OWN_ROWS], curve[OWN_ROWS], root[OWN_ROWS];
        REAL target[OWN_ROWS], weight[OWN_ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const Index row = low + r * GROUPS + group;
            const REAL *at = X + (row < n ? row : n - 1) * d + lane;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                x[r][c] = c < COLUMNS - 1 || last < d ? at[c * LANES] : 0;
        }
        const Index first_own = low + lane / TWINS * OWN_ROWS * GROUPS + group;
#pragma unroll
        for (int s = 0; s < OWN_ROWS; ++s) {
            const Index row = first_own + s * GROUPS;
            target[s] = row < n ? y[row] : 1;
            weight[s] = row < n && weights ? weights[row] : 1;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            eta[r] = 0;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const REAL factor = coef[lane + c * LANES];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (CENTERED)
                    x[r][c] -= center[lane + c * LANES];
                eta[r] += x[r][c] * factor;
            }
        }

        // The upper half of lanes goes on with the upper half of rows, and so forth.
        int left = ROWS;
#pragma unroll
        for (int apart = LANES / 2; apart >= 1; apart /= 2) {
            const bool upper = lane & apart;
            if (left > 1) {
                left /= 2;
#pragma unroll
                for (int r = 0; r < left; ++r) {
                    const REAL own = upper ? eta[r + left] : eta[r];
                    const REAL other = upper ? eta[r] : eta[r + left];
                    eta[r] = own + __shfl_xor_sync(ALL, other, apart);
                }
            } else {
                eta[0] += __shfl_xor_sync(ALL, eta[0], apart);
            }
        }

#pragma unroll
        for (int s = 0; s < OWN_ROWS; ++s) {
            const bool there = first_own + s * GROUPS < n;
            const Pointwise at = loss(target[s], eta[s] + constant);
            slope[s] = there ? at.slope * weight[s] : 0;
            curve[s] = there ? at.curve * weight[s] : 0;
            if (there && lane % TWINS == 0) {
                value += at.value * weight[s];
                slopes += slope[s];
                if (WITH_HESSIAN)
                    curves += curve[s];
            }
            if (WITH_HESSIAN) {
                root[s] = sqrt(curve[s]);
                if (roots && there && lane % TWINS == 0)
                    roots[first_own + s * GROUPS] = root[s];
            }
        }

        REAL by_column[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            by_column[c] = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int own = r % OWN_ROWS, holder = r / OWN_ROWS * TWINS;
            const REAL factor = __shfl_sync(ALL, slope[own], holder, LANES);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                by_column[c] += factor * x[r][c];
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            gradient[c] += by_column[c];
        if (WITH_HESSIAN) {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                by_column[c] = 0;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const Index row = low + r * GROUPS + group;
                const int own = r % OWN_ROWS, holder = r / OWN_ROWS * TWINS;
                const REAL factor = __shfl_sync(ALL, curve[own], holder, LANES);
                const REAL scale = __shfl_sync(ALL, root[own], holder, LANES);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    const int column = lane + c * LANES;
                    by_column[c] += factor * x[r][c];
                    if (scaled && row < n && (c < COLUMNS - 1 || last < d)) {
                        const int place = places ? places[column] : column;
                        if (place >= 0)
                            scaled[row * n_places + place] = scale * x[r][c];
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                columns[c] += by_column[c];
        }
    }

    sums += (Index)blockIdx.x * (WITH_HESSIAN ? d + n_places + 3 : d + 2);
    value = block_sum_of_lanes(value, shared);
    slopes = block_sum_of_lanes(slopes, shared);
    if (WITH_HESSIAN)
        curves = block_sum_of_lanes(curves, shared);
    if (threadIdx.x == 0) {
        sums[0] = value;
        sums[1] = slopes;
        if (WITH_HESSIAN)
            sums[2 + d] = curves;
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        const int column = lane + c * LANES;
        const bool is_first = threadIdx.x < LANES && column < d;
        double total = block_sum(gradient[c], shared);
        if (is_first)
            sums[2 + column] = total;
        if (WITH_HESSIAN) {
            total = block_sum(columns[c], shared);
            const int place = !is_first ? -1 : places ? places[column] : column;
            if (place >= 0)
                sums[3 + d + place] = total;
        }
    }
}

// A row of sums for each block: the loss, its derivatives by the predictor, and by the d
// coefficients. The predictor is d coefficients, the constant, and d means where CENTERED.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gradient(const REAL *__restrict__ X, const REAL *__restrict__ predictor,
             const REAL *__restrict__ y, const REAL *__restrict__ weights,
             double *__restrict__ sums, Index n, int d)
{
    extern __shared__ __align__(16) double shared[];
    sum_up<false>(X, predictor, y, weights, sums, 0, 0, 0, n, d, 0, shared);
}

// The same, with the sum of curves and of curves times columns; and the roots of curves, or each row
// times that. Columns have places in these, or -1; without `places` all have their own.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hessian(const REAL *__restrict__ X, const REAL *__restrict__ predictor,
            const REAL *__restrict__ y, const REAL *__restrict__ weights,
            double *__restrict__ sums, REAL *__restrict__ roots, REAL *__restrict__ scaled,
            const int *__restrict__ places, Index n, int d, int n_places)
{
    extern __shared__ __align__(16) double shared[];
    sum_up<true>(X, predictor, y, weights, sums, roots, scaled, places, n, d, n_places, shared);
}

// Sum up the rows of the blocks. A block has few columns, so that many loads are on their way.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    add_up(const double *__restrict__ sums, double *__restrict__ total, int n, int width)
{
    extern __shared__ __align__(16) double shared[];
    const int column = blockIdx.x * TOTALS + threadIdx.x % TOTALS;
    double sum = 0;
    if (column < width) {
#pragma unroll 8
        for (int row = threadIdx.x / TOTALS; row < n; row += THREADS / TOTALS)
            sum += sums[(Index)row * width + column];
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < TOTALS && column < width) {
        for (int i = threadIdx.x + TOTALS; i < THREADS; i += TOTALS)
            sum += shared[i];
        total[column] = sum;
    }
}
