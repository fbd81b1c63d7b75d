// Mini-batch stochastic gradient descent on dense rows: all batches in one launch.
//
// _sgd_kernel.py compiles this file, and defines the constants:
//   REAL     float or double, the type of rows, and of what is computed of a batch
//   THREADS  of a block, at least as many as a batch has rows
//   LOSS     one of the losses below
//   PASSIVE  1 or 2 for passive-aggressive steps of that kind, else 0
//   LIMITED  whether the sum of the steps of a batch may overshoot
//   STAGED   whether two batches fit into shared memory
//
// Batches come one after the other, so that an output has one block of threads, which keeps the
// weights in shared memory. A row of a batch has `lanes` neighbouring threads for its product with
// the weights and its loss; then a thread has a column, of every so manieth row, for the sums.
// While a batch is computed with, the next one is copied to shared memory, or to the L2 cache.
//
// The floor: a multiprocessor reads each number of a batch once from memory and twice from shared
// memory. 256 rows of 50 float32 columns are 51 KB: 0.6 us at some 50 bytes a clock, beside the
// computation. Of that, 800 wavefronts of shared memory are the products (rows and weights), 820
// the sums; with three barriers, the loss and the weights' step some 2,700 clocks, 1.6 us of an
// H100 SXM. That is by count, and has not been measured.

typedef long long Index;

enum {
    HINGE,
    PERCEPTRON,
    LOG_LOSS,
    MODIFIED_HUBER,
    SQUARED_HINGE,
    SQUARED_ERROR,
    HUBER,
    EPSILON_INSENSITIVE,
    SQUARED_EPSILON_INSENSITIVE
};

enum { CONSTANT, INVSCALING, OPTIMAL };

#define WARPS (THREADS / 32)
#define EVERYONE 0xffffffffu
#define MAX_SLOPE 1e12
// Threads that share a column: more would wait for one that adds up what they have.
#define MAX_GROUPS 32
// Rows that a warp reads at once where they come from memory.
#define AT_ONCE (32 / (int)sizeof(REAL))

// NaN stays NaN, unlike with fmin and fmax.
__device__ __forceinline__ REAL at_least(REAL x, REAL bound) { return x < bound ? bound : x; }

__device__ __forceinline__ REAL at_most(REAL x, REAL bound) { return x > bound ? bound : x; }

__device__ __forceinline__ REAL within(REAL x, REAL bound)
{
    return at_most(at_least(x, -bound), bound);
}

__device__ __forceinline__ REAL magnitude(REAL x) { return x < 0 ? -x : x; }

__device__ __forceinline__ REAL sign(REAL x) { return x > 0 ? (REAL)1 : x < 0 ? (REAL)-1 : x; }

// The losses of _sgd_losses.py.
__device__ __forceinline__ REAL loss_value(REAL y, REAL p, REAL epsilon)
{
    const REAL z = y * p, residual = p - y, miss = at_least(1 - z, 0);
    REAL near = at_most(miss, 2);
    switch (LOSS) {
    case HINGE:
        return miss;
    case PERCEPTRON:
        return at_least(-z, 0);
    case LOG_LOSS:
        return log1p(exp(-magnitude(z))) + at_least(-z, 0);
    case MODIFIED_HUBER:
        return near * near + 4 * (miss - near);
    case SQUARED_HINGE:
        return miss * miss;
    case SQUARED_ERROR:
        return residual * residual / 2;
    case HUBER:
        near = within(residual, epsilon);
        return near * (residual - near / 2);
    }
    const REAL excess = at_least(magnitude(residual) - epsilon, 0);
    return LOSS == EPSILON_INSENSITIVE ? excess : excess * excess;
}

__device__ __forceinline__ REAL loss_gradient(REAL y, REAL p, REAL epsilon)
{
    const REAL z = y * p, residual = p - y, miss = at_least(1 - z, 0);
    switch (LOSS) {
    case HINGE:
        return -y * (REAL)(z <= 1);
    case PERCEPTRON:
        return -y * (REAL)(z <= 0);
    case LOG_LOSS:
        return -y / (1 + exp(z));
    case MODIFIED_HUBER:
        return -2 * y * at_most(miss, 2);
    case SQUARED_HINGE:
        return -2 * y * miss;
    case SQUARED_ERROR:
        return residual;
    case HUBER:
        return within(residual, epsilon);
    case EPSILON_INSENSITIVE:
        return sign(residual) * (REAL)(magnitude(residual) > epsilon);
    }
    return 2 * sign(residual) * at_least(magnitude(residual) - epsilon, 0);
}

// Copy `bytes` (16, 8 or 4, to which both addresses are aligned) to shared memory, in the
// background where the device can.
__device__ __forceinline__ void copy_async(REAL *to, const REAL *from, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned at;
    asm("{ .reg .u64 whole; cvta.to.shared.u64 whole, %1; cvt.u32.u64 %0, whole; }"
        : "=r"(at)
        : "l"(to));
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else if (bytes == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
    for (int i = 0; i < bytes / (int)sizeof(REAL); ++i)
        to[i] = from[i];
#endif
}

__device__ __forceinline__ void wait_for_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Bring the rows of a batch to shared memory, or into the L2 cache, where they are read twice.
__device__ __forceinline__ void fetch(REAL *tile, const REAL *X, const int *index, int n_rows,
                                      int d, int stride, int copy)
{
    const int bytes = STAGED ? copy : 128, width = STAGED ? bytes / (int)sizeof(REAL) : 1;
    const int n_pieces = STAGED ? d / width : (d * (int)sizeof(REAL) + bytes - 1) / bytes;
    int across = 1;
    while (across < n_pieces && across < 32)
        across *= 2;
    const int first = threadIdx.x & (across - 1);
#pragma unroll 4
    for (int i = threadIdx.x / across; i < n_rows; i += THREADS / across) {
        const REAL *row = X + (Index)index[i] * d;
        for (int piece = first; piece < n_pieces; piece += across) {
#if STAGED
            copy_async(tile + i * stride + piece * width, row + piece * width, bytes);
#elif defined(__CUDA_ARCH__)
            const char *line = (const char *)row + piece * bytes;
            asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
        }
    }
}

// Return the product of the thread's row with coefficients; where asked, also its squared norm.
__device__ __forceinline__ REAL product(const REAL *X, const REAL *tile, const int *index,
                                        const REAL *coef, REAL *products, int n_rows, int d,
                                        int stride, int lanes, int capacity, REAL *norm)
{
    const int row = threadIdx.x / lanes;
#if STAGED
    REAL sum = 0, squares = 0;
    if (row < n_rows) {
        const REAL *x = tile + row * stride;
#pragma unroll 8
        for (int j = threadIdx.x & (lanes - 1); j < d; j += lanes) {
            sum += x[j] * coef[j];
            if (norm)
                squares += x[j] * x[j];
        }
    }
    for (int apart = 1; apart < lanes; apart *= 2) {
        sum += __shfl_xor_sync(EVERYONE, sum, apart);
        if (norm)
            squares += __shfl_xor_sync(EVERYONE, squares, apart);
    }
    if (norm)
        *norm = squares;
    return sum;
#else
    // A warp reads whole rows.
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x / 32 * AT_ONCE; first < n_rows; first += WARPS * AT_ONCE) {
        const REAL *x[AT_ONCE];
        REAL sum[AT_ONCE], squares[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            x[i] = X + (Index)index[first + i < n_rows ? first + i : first] * d;
            sum[i] = squares[i] = 0;
        }
#pragma unroll 2
        for (int j = lane; j < d; j += 32) {
            const REAL by = coef[j];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const REAL value = x[i][j];
                sum[i] += value * by;
                if (norm)
                    squares[i] += value * value;
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
            for (int apart = 1; apart < 32; apart *= 2) {
                sum[i] += __shfl_xor_sync(EVERYONE, sum[i], apart);
                if (norm)
                    squares[i] += __shfl_xor_sync(EVERYONE, squares[i], apart);
            }
            if (lane == 0 && first + i < n_rows) {
                products[first + i] = sum[i];
                if (norm)
                    products[capacity + first + i] = squares[i];
            }
        }
    }
    __syncthreads();
    if (norm)
        *norm = row < n_rows ? products[capacity + row] : (REAL)0;
    return row < n_rows ? products[row] : (REAL)0;
#endif
}

// Add up two values of each thread over the block; all threads get the sums.
__device__ __forceinline__ void add_up(double &first, double &second, double *parts)
{
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        first += __shfl_xor_sync(EVERYONE, first, apart);
        second += __shfl_xor_sync(EVERYONE, second, apart);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = first;
        parts[WARPS + threadIdx.x / 32] = second;
    }
    __syncthreads();
    first = second = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        first += parts[i];
        second += parts[WARPS + i];
    }
}

// Find the steps of the rows, shrunk by the decay of the later rows of their batch, and the decay
// and the sum of the rates of each batch. A thread has a batch, and one of the columns of rates.
extern "C" __global__ void __launch_bounds__(THREADS)
    schedule(const double *__restrict__ factors, REAL *__restrict__ steps,
             double *__restrict__ decays, double *__restrict__ rate_sums, Index n, int size,
             int n_rates, int kind, double t, double eta0, double power, double alpha,
             double offset, double l2)
{
    const Index number = (Index)blockIdx.x * THREADS + threadIdx.x;
    const Index batch = number / n_rates, low = batch * size;
    if (low >= n)
        return;
    const int which = (int)(number % n_rates), n_rows = n - low < size ? (int)(n - low) : size;
    double shrinkage = 1, sum = 0;
    for (int i = n_rows - 1; i >= 0; --i) {
        const double rows_before = (double)(low + i);
        double rate = eta0;
        if (kind == INVSCALING)
            rate = eta0 / pow(t + rows_before, power);
        if (kind == OPTIMAL)
            rate = 1 / (alpha * (offset + rows_before));
        rate *= factors[which];
        steps[(low + i) * n_rates + which] = (REAL)(PASSIVE ? shrinkage : rate * shrinkage);
        // A decay that would change the sign of weights sets them to zero.
        const double decay = 1 - l2 * rate;
        shrinkage *= decay < 0 ? 0 : decay;
        sum += rate;
    }
    decays[number] = shrinkage;
    rate_sums[number] = sum;
}

// Descend on all rows, in an order where there is one. Blocks are outputs. The state of an output
// has d + 1 weights, the last of them the intercept, their means, the penalties that they have
// received; then the sums of losses and of penalties, and the penalty that is due.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    descend(const REAL *__restrict__ X, const REAL *__restrict__ targets,
            const REAL *__restrict__ weights, const Index *__restrict__ order,
            const REAL *__restrict__ steps, const double *__restrict__ decays,
            const double *__restrict__ rate_sums, const REAL *__restrict__ positive,
            const REAL *__restrict__ sides, double *__restrict__ state, Index n, int d, int size,
            int n_rates, int lanes, int stride, int copy, int fit_intercept, int track, double t,
            double l1, double l2, double epsilon, double eta0, double average)
{
    extern __shared__ __align__(16) double shared[];
    const int me = threadIdx.x, columns = d + 1, capacity = THREADS / lanes;
    double *coef = shared, *mean = coef + columns, *applied = mean + columns;
    double *parts = applied + columns;
    REAL *tiles = (REAL *)(shared + (3 * columns + 2 * WARPS + 1) / 2 * 2);
    REAL *rounded = tiles + (STAGED ? 2 * capacity * stride : 0);
    REAL *moves = rounded + columns;
    REAL *changes = moves + (columns < THREADS ? THREADS : columns);
    REAL *products = changes + capacity;
    int *indices = (int *)(products + (STAGED ? 0 : 2 * capacity));

    const int output = blockIdx.x, which = n_rates > 1 ? output : 0;
    const int row = me / lanes, lane = me & (lanes - 1);
    const int n_slots = columns < THREADS ? columns : THREADS;
    const int n_groups = THREADS / n_slots < MAX_GROUPS ? THREADS / n_slots : MAX_GROUPS;
    const int group = me / n_slots, slot = me % n_slots;
    const REAL own_class = positive ? positive[output] : (REAL)0;
    const REAL own_side = sides ? sides[output] : (REAL)1;
    const REAL other_side = sides ? sides[gridDim.x + output] : (REAL)1;
    double *own = state + (Index)output * (3 * columns + 3);
    double value = 0, penalty = 0, due = own[3 * columns + 2];

    for (int j = me; j < columns; j += THREADS) {
        coef[j] = own[j];
        mean[j] = own[columns + j];
        applied[j] = own[2 * columns + j];
        rounded[j] = (REAL)coef[j];
    }
    for (int i = 0; i < 2; ++i) {
        const Index number = (Index)i * size + row;
        if (lane == 0 && row < size && number < n)
            indices[i * capacity + row] = (int)(order ? order[number] : number);
    }
    __syncthreads();
    REAL y = 0, weight = 1, step = 0;
    if (row < size && row < n) {
        y = targets[indices[row]];
        weight = weights ? weights[indices[row]] : (REAL)1;
        step = steps[(Index)row * n_rates + which];
    }
    fetch(tiles, X, indices, n < size ? (int)n : size, d, stride, copy);

    int turn = 0;
    Index batch = 0;
    for (Index low = 0; low < n; low += size, ++batch, turn ^= 1) {
        const int n_rows = n - low < size ? (int)(n - low) : size;
        const Index left = n - low - n_rows;
        const int n_next = left < size ? (int)left : size;
        const int *index = indices + turn * capacity, *next = indices + (turn ^ 1) * capacity;
        const REAL *tile = tiles + turn * capacity * stride;
        const bool there = row < n_rows;

        wait_for_copies();
        __syncthreads();
        // What the next batch needs is on its way while this one is computed with, and so are the
        // numbers of the rows of the batch after it.
        fetch(tiles + (turn ^ 1) * capacity * stride, X, next, n_next, d, stride, copy);
        REAL next_y = 0, next_weight = 1, next_step = 0;
        if (row < n_next) {
            next_y = targets[next[row]];
            if (weights)
                next_weight = weights[next[row]];
            next_step = steps[(low + size + row) * n_rates + which];
        }
        const Index second = low + 2 * (Index)size + row;
        const bool has_second = lane == 0 && row < size && second < n;
        Index second_row = second;
        if (has_second && order)
            second_row = order[second];
        const double decay = decays[batch * n_rates + which];
        const double rate_sum = l1 ? rate_sums[batch * n_rates + which] : 0;

        // Products and losses of the rows, in their precision.
        REAL norm = 0;
        REAL *norm_or_none = PASSIVE ? &norm : (REAL *)0;
        const REAL p = rounded[d] + product(X, tile, index, rounded, products, n_rows, d, stride,
                                            lanes, capacity, norm_or_none);
        if (positive)
            y = y == own_class ? 1 : -1;
        weight *= y > 0 ? own_side : other_side;
        const REAL gradient = within(loss_gradient(y, p, (REAL)epsilon), (REAL)MAX_SLOPE) * weight;
        REAL change = -gradient * step;
        if (PASSIVE || track) {
            const REAL miss = loss_value(y, p, (REAL)epsilon);
            if (PASSIVE) {
                REAL length = miss / (norm + (REAL)(0.5 / eta0));
                if (PASSIVE == 1)  // a row of zeros teaches nothing
                    length = norm > 0 ? at_most(miss / norm, (REAL)eta0) : (REAL)0;
                change = -sign(gradient) * length * weight * step;
            }
            if (track && there && lane == 0)
                value += miss;
        }
        if (there && lane == 0)
            changes[row] = change;
        __syncthreads();

        // Their sum, which is the step of the batch; a last column of ones is the intercept's.
        if (group < n_groups)
            for (int j = slot; j < columns; j += n_slots) {
                REAL sum = 0;
#pragma unroll 8
                for (int i = group; i < n_rows; i += n_groups) {
                    const REAL *x = STAGED ? tile + i * stride : X + (Index)index[i] * d;
                    sum += changes[i] * (j < d ? x[j] : (REAL)1);
                }
                moves[group * columns + j] = sum;
            }
        __syncthreads();
        for (int j = me; j < columns; j += THREADS) {
            REAL sum = 0;
#pragma unroll 4
            for (int i = 0; i < n_groups; ++i)
                sum += moves[i * columns + j];
            moves[j] = j < d || fit_intercept ? sum : (REAL)0;
        }

        double fraction = 1;
#if LIMITED
        // The fraction of the sum that steps one by one would add up to, by the change of the
        // loss's slope along it.
        if (n_rows > 1) {
            __syncthreads();
            const REAL ahead = moves[d] + product(X, tile, index, moves, products, n_rows, d,
                                                  stride, lanes, capacity, (REAL *)0);
            const REAL slope = loss_gradient(y, p + ahead, (REAL)epsilon);
            const REAL gradient_ahead = within(slope, (REAL)MAX_SLOPE) * weight;
            const bool counts = there && lane == 0;
            double before = counts ? gradient * ahead : (REAL)0;
            double after = counts ? gradient_ahead * ahead : (REAL)0;
            add_up(before, after, parts);
            double bend = 1 - after / (before < 0 ? before : -1);
            bend = bend < 1e-9 ? 1e-9 : bend;
            double each = bend / n_rows;
            each = each > 1 ? 1 : each;
            fraction = -expm1(n_rows * log1p(-each)) / bend;
            fraction = fraction < 1.0 / n_rows ? 1.0 / n_rows : fraction;
        }
#endif

        const double n_averaged = average ? t + (double)(low + n_rows) - average : 0;
        const double share = n_averaged > n_rows ? n_rows / n_averaged : 1;
        due += l1 * rate_sum;
        for (int j = me; j < columns; j += THREADS) {
            double now = coef[j];
            if (track && j < d) {
                penalty += n_rows * (l2 / 2) * (now * now);
                penalty += n_rows * l1 * (now < 0 ? -now : now);
            }
            now = (j < d ? now * decay : now) + moves[j] * fraction;
            // Averages see the weights before the L1 penalty of the batch.
            if (n_averaged > 0)
                mean[j] += share * (now - mean[j]);
            if (l1 && j < d) {
                const double received = applied[j];
                double clipped = now;
                if (now > 0) {
                    clipped = now - (due + received);
                    clipped = clipped < 0 ? 0 : clipped;
                } else if (now < 0) {
                    clipped = now + (due - received);
                    clipped = clipped > 0 ? 0 : clipped;
                }
                applied[j] = received + (clipped - now);
                now = clipped;
            }
            coef[j] = now;
            rounded[j] = (REAL)now;
        }

        if (has_second)
            indices[turn * capacity + row] = (int)second_row;
        y = next_y;
        weight = next_weight;
        step = next_step;
    }

    for (int j = me; j < columns; j += THREADS) {
        own[j] = coef[j];
        own[columns + j] = mean[j];
        own[2 * columns + j] = applied[j];
    }
    __syncthreads();
    add_up(value, penalty, parts);
    if (me == 0) {
        own[3 * columns] += value;
        own[3 * columns + 1] += penalty;
        own[3 * columns + 2] = due;
    }
}
