// Moments of columns and sums of rows by label, in one read of the rows.
//
// _moments_kernel.py compiles this file, and defines the constants:
//   REAL      float or double, the type of rows
//   THREADS   of a block, at most
//   RUN       rows of a thread at once, which are on their way together
//
// A thread has a column to itself, and threads next to one another have columns next to one another.
// It takes a run of rows at a time: their mean and the squares about it are computed from registers
// and merged with those of all its rows before (Chan, Golub and LeVeque, 1983), all in double. So
// neither outliers nor large means cost digits (with weights, means of 1e9 deviations cost seven), and
// columns of one value have squares of exactly 0.
// For each label a thread has a sum of its own in shared memory: nothing has to be atomic.
//
// The floor is one read of the rows: 1.2 ms for 10,000,000 rows of 100 float32 columns at the 3.35
// TB/s of an H100. That is 3.6 numbers a cycle of a multiprocessor, for each of which there are five
// operations in double (of the 64 that it has a cycle), one or two conversions (of 16), and with
// labels 16 bytes of shared memory (of 128). It has not been measured.

typedef long long Index;

// Weight and number of values, their mean, and the squares about it.
struct Part {
    double weight, number, mean, squares;
};

__device__ __forceinline__ void merge(Part &a, const Part &b)
{
    a.number += b.number;
    if (!(b.weight > 0))
        return;
    if (a.weight > 0) {
        const double fraction = b.weight / (a.weight + b.weight), shift = b.mean - a.mean;
        a.mean += fraction * shift;
        a.squares += b.squares + a.weight * fraction * shift * shift;
        a.weight += b.weight;
    } else {
        a.weight = b.weight;
        a.mean = b.mean;
        a.squares = b.squares;
    }
}

// Return what means of a column are kept about: its first value, so that large means cost no digits.
__device__ __forceinline__ double origin_of(const REAL *__restrict__ first_row, int column)
{
    const REAL value = first_row ? first_row[column] : 0;
    return value == value ? value : 0;
}

// Return the moments of the values of a run that a mask marks, with the weights of their rows. PLAIN
// if it marks all, which have the weight 1.
template <bool PLAIN, bool WEIGHTED>
__device__ __forceinline__ Part moments_of_run(const REAL (&x)[RUN], unsigned mask,
                                               const double *__restrict__ weights, int step,
                                               double column_origin)
{
    // About a value of the run, the one of the largest weight: equal values have deviations of 0.
    REAL value = x[0];
    double largest = 0, weight = PLAIN ? RUN : 0, sum = 0, squares = 0;
#pragma unroll
    for (int i = RUN - 1; i >= 0 && !PLAIN; --i)
        if (mask >> i & 1) {
            const double mine = WEIGHTED ? weights[i * step] : 1;
            value = mine >= largest ? x[i] : value;
            largest = mine >= largest ? mine : largest;
            weight += mine;
        }
    const double about = value;
#pragma unroll
    for (int i = 0; i < RUN; ++i)
        if (PLAIN || mask >> i & 1)
            sum += (WEIGHTED ? weights[i * step] : 1) * (x[i] - about);
    const double shift = PLAIN ? sum * (1.0 / RUN) : weight > 0 ? sum / weight : 0;
#pragma unroll
    for (int i = 0; i < RUN; ++i)
        if (PLAIN || mask >> i & 1) {
            const double deviation = x[i] - about - shift;
            squares += (WEIGHTED ? weights[i * step] : 1) * deviation * deviation;
        }
    const double number = PLAIN ? RUN : __popc(mask), mean = about - column_origin + shift;
    const Part run = {weight, number, mean, squares};
    return run;
}

// Add the rows of a run, which are `step` rows apart, to the sums of a thread by their codes.
template <bool WHOLE>
__device__ __forceinline__ void add_run(double *sums, int n_threads, const REAL (&x)[RUN], int n,
                                        const Index *__restrict__ codes,
                                        const double *__restrict__ weights, int step)
{
#pragma unroll
    for (int i = 0; i < RUN; ++i)
        if (WHOLE || i < n) {
            const int code = codes ? (int)codes[i * step] : 0;
            sums[code * n_threads] += weights ? weights[i * step] * x[i] : x[i];
        }
}

// Compute the moments of columns (where asked, of their values that are not NaN), and sums by code
// (0 without codes) with weights of their own. The sums have two more columns: the weight and the
// number of rows.
// Blocks part rows by blockIdx.x and columns by blockIdx.y; each writes four numbers a column, and
// d + 2 for each of k codes. The n_slots columns of a block are a power of two or whole warps, and
// the groups of threads that part its rows a power of two.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    summarize(const REAL *__restrict__ X, const double *__restrict__ weights,
              const Index *__restrict__ codes, const double *__restrict__ code_weights,
              double *__restrict__ moments, double *__restrict__ sums, Index n, int d, int k,
              int n_slots, int skips_nan)
{
    extern __shared__ __align__(16) double shared[];
    const int n_threads = blockDim.x, n_groups = n_threads / n_slots;
    const int slot = threadIdx.x % n_slots, group = threadIdx.x / n_slots;
    const int column = blockIdx.y * n_slots + slot, n_sums = d + 2;
    const bool has_moments = moments && column < d, has_sums = sums && column < n_sums;
    double *own_sums = shared + threadIdx.x;
    // A value without a weight may be anything.
    const double origin = origin_of(has_moments && !weights ? X : 0, column);
    Part all = {0, 0, 0, 0};

    if (sums)
        for (int code = 0; code < k; ++code)
            own_sums[code * n_threads] = 0;
    const Index tile = (Index)RUN * n_groups;
    for (Index low = blockIdx.x * tile; low < n && (has_moments || has_sums);
         low += gridDim.x * tile) {
        const Index first = low + group;  // groups have every so manieth row: they read together
        const int n_there = n - first < tile ? (int)((n - first + n_groups - 1) / n_groups) : RUN;
        REAL x[RUN];
#pragma unroll
        for (int i = 0; i < RUN; ++i)
            x[i] = column < d && i < n_there ? X[(first + i * n_groups) * d + column] : (REAL)1;
        if (has_moments) {
            unsigned mask = 0;
#pragma unroll
            for (int i = 0; i < RUN; ++i)
                mask |= (unsigned)(i < n_there && !(skips_nan && x[i] != x[i])) << i;
            const double *own = weights + first;
            if (weights)
                merge(all, moments_of_run<false, true>(x, mask, own, n_groups, origin));
            else if (mask == (1u << RUN) - 1)
                merge(all, moments_of_run<true, false>(x, mask, own, n_groups, origin));
            else
                merge(all, moments_of_run<false, false>(x, mask, own, n_groups, origin));
        }
        if (has_sums) {
            const Index *own = codes ? codes + first : codes;
            const double *factors = code_weights && column <= d ? code_weights + first : 0;
            if (n_there >= RUN)
                add_run<true>(own_sums, n_threads, x, n_there, own, factors, n_groups);
            else
                add_run<false>(own_sums, n_threads, x, n_there, own, factors, n_groups);
        }
    }

    if (sums) {
        __syncthreads();
        for (int i = threadIdx.x; i < k * n_slots; i += n_threads) {
            const int code = i / n_slots, out = blockIdx.y * n_slots + i % n_slots;
            double total = 0;
            for (int other = i % n_slots; other < n_threads; other += n_slots)
                total += shared[code * n_threads + other];
            if (out < n_sums)
                sums[((Index)blockIdx.x * k + code) * n_sums + out] = total;
        }
        __syncthreads();
    }
    if (moments) {
        Part *parts = (Part *)shared;
        parts[threadIdx.x] = all;
        for (int half = n_groups / 2; half > 0; half /= 2) {
            __syncthreads();
            if (group < half)
                merge(parts[threadIdx.x], parts[threadIdx.x + half * n_slots]);
        }
        if (group == 0 && has_moments) {
            double *out = moments + (Index)blockIdx.x * 4 * d + column;
            const Part whole = parts[threadIdx.x];
            out[0] = whole.weight;
            out[d] = whole.number;
            out[2 * (Index)d] = whole.mean;
            out[3 * (Index)d] = whole.squares;
        }
    }
}

// Merge what n_parts blocks have written: weights, means (NaN of no values; about the first row, if
// there is one) and squares of d columns, and n_sums sums. The first blocks have columns, a number of them each, the others sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    merge_parts(const double *__restrict__ moments, const double *__restrict__ sums,
                const REAL *__restrict__ first_row, double *__restrict__ out, int n_parts, int d, int n_sums, int n_slots)
{
    extern __shared__ __align__(16) double shared[];
    const int slot = threadIdx.x % n_slots, group = threadIdx.x / n_slots;
    const int n_groups = blockDim.x / n_slots, n_of_moments = moments ? (d + n_slots - 1) / n_slots : 0;
    if ((int)blockIdx.x < n_of_moments) {
        const int column = blockIdx.x * n_slots + slot;
        Part *parts = (Part *)shared, all = {0, 0, 0, 0};
        for (int i = group; i < n_parts && column < d; i += n_groups) {
            const double *from = moments + (Index)i * 4 * d + column;
            const Part part = {from[0], from[d], from[2 * (Index)d], from[3 * (Index)d]};
            merge(all, part);
        }
        parts[threadIdx.x] = all;
        for (int half = n_groups / 2; half > 0; half /= 2) {
            __syncthreads();
            if (group < half)
                merge(parts[threadIdx.x], parts[threadIdx.x + half * n_slots]);
        }
        if (group == 0 && column < d) {
            const Part whole = parts[threadIdx.x];
            const double nan = __longlong_as_double(0x7ff8000000000000LL);
            out[column] = whole.weight;
            out[d + column] = whole.number > 0 ? origin_of(first_row, column) + whole.mean : nan;
            out[2 * (Index)d + column] = whole.squares;
        }
    } else {
        const Index column = (Index)(blockIdx.x - n_of_moments) * n_slots + slot;
        double total = 0;
        for (int i = group; i < n_parts && column < n_sums; i += n_groups)
            total += sums[(Index)i * n_sums + column];
        shared[threadIdx.x] = total;
        for (int half = n_groups / 2; half > 0; half /= 2) {
            __syncthreads();
            if (group < half)
                shared[threadIdx.x] += shared[threadIdx.x + half * n_slots];
        }
        if (group == 0 && column < n_sums)
            out[(moments ? 3 * (Index)d : 0) + column] = shared[threadIdx.x];
    }
}
