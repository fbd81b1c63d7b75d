// The nearest centre of every row, and sums of rows by centre: no matrix of distances is written.
//
// _cuda_kernel.py compiles this file, and defines the constants:
//   REAL      float or double, the type of rows and centres
//   THREADS   of a block
//   LANES     neighbouring threads that share rows, and part the centres among them
//   ROWS      of a thread at once
//   CENTERS   of a thread at once
//   WIDTH     columns in shared memory at once
//
// A block keeps TILE rows and CHUNK centres in shared memory. A thread has the products of ROWS rows
// with CENTERS centres in registers: 16 bytes of each row and of each centre are loaded for
// ROWS * CENTERS * 16 / sizeof(REAL) multiplications and additions.
//
// The floor: n * k * d multiplications and additions, and n * d numbers read once. 10,000,000 rows
// of 50 float32 columns and 100 centres are 1.0e11 operations, 1.5 ms at the 67e12 a second of an
// H100 SXM. The rows are 2 GB, 0.6 ms at 3.35 TB/s, while the other block of a multiprocessor
// multiplies. For sm_90, 416 of the 444 instructions of the inner loop are FFMA. With padding (104
// centres, 52 columns), loading, comparing and summing up a tile takes some 7,800 instructions of a
// warp, 5,000 of which are the floor's: 2.4 ms are to be expected. An H200 took 7.0 ms when each load of
// a thread waited for the one before; with those that do not, it has not been measured.

typedef long long Index;

#define TILE (THREADS / LANES * ROWS)
#define CHUNK (LANES * CENTERS)
#define VECTOR (16 / (int)sizeof(REAL))
// Numbers of a thread that are on their way to shared memory.
#define AT_ONCE 16
// An odd number of vectors: rows that are read at a time lie in different banks.
#define STRIDE (WIDTH + VECTOR)

struct __align__(16) Vector {
    REAL at[VECTOR];
};

struct __align__(2 * sizeof(REAL)) Pair {
    REAL at[2];
};

struct __align__(16) Sums {
    double at[2];
};

// Bring rows of a matrix, less the mean and times a factor, to shared memory, with zeros around.
// A thread has one column to itself. The column after the last one is 1 in rows, where asked.
__device__ __forceinline__ void fetch(REAL *to, int n_to, const REAL *__restrict__ from, Index low,
                                      Index n, int d, int first, int width,
                                      const REAL *__restrict__ mean, REAL factor, bool with_one)
{
    const int n_there = n - low < n_to ? (int)(n - low) : n_to;
    int n_slots = VECTOR;
    while (n_slots < width + with_one)
        n_slots *= 2;
    const int column = threadIdx.x & (n_slots - 1), down = THREADS / n_slots;
    if (column >= STRIDE)
        return;
    const bool known = column < width;
    const REAL shift = known && mean ? mean[first + column] : 0;
    const REAL otherwise = with_one && column == width;
    const REAL *at = from + (low + threadIdx.x / n_slots) * d + first + column;
    const Index jump = (Index)down * d;
    to += threadIdx.x / n_slots * STRIDE + column;
#pragma unroll 1
    for (int row = threadIdx.x / n_slots; row < n_to; row += AT_ONCE * down) {
        REAL values[AT_ONCE];
        // All of them are on their way before one is waited for.
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            values[i] = known && row + i * down < n_there ? at[i * jump] : 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            REAL value = known ? (values[i] - shift) * factor : otherwise;
            if (row + i * down >= n_there)
                value = 0;
            if (row + i * down < n_to)
                to[i * down * STRIDE] = value;
        }
        at += AT_ONCE * jump;
        to += AT_ONCE * down * STRIDE;
    }
}

// Label rows (about the mean); where asked, also find their squared distances, the inertia of each
// block of threads, and its sums of rows and weights by cluster, d + 1 numbers each.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    assign(const REAL *__restrict__ X, const REAL *__restrict__ mean,
           const REAL *__restrict__ centers, const REAL *__restrict__ norms,
           const double *__restrict__ weights, int *__restrict__ labels,
           double *__restrict__ squared, double *__restrict__ inertia, double *__restrict__ sums,
           Index n, int d, int k, double rounding)
{
    extern __shared__ __align__(16) double shared[];
    double *tile_weights = shared;
    REAL *rows = (REAL *)(tile_weights + TILE);
    REAL *near = rows + TILE * STRIDE;
    REAL *near_norms = near + CHUNK * STRIDE;
    int *tile_labels = (int *)(near_norms + CHUNK);
    double *own_sums = (double *)(tile_labels + TILE);

    const int lane = threadIdx.x % LANES, across = threadIdx.x / LANES;
    const REAL infinity = (REAL)__longlong_as_double(0x7ff0000000000000LL);
    const bool whole = d <= WIDTH;  // a row fits
    const int columns = d + 1, pitch = (columns + 1) / 2 * 2;
    const bool with_distances = squared || inertia;
    double kept = 0;

    if (sums)
        for (int i = threadIdx.x; i < k * pitch; i += THREADS)
            own_sums[i] = 0;

    const Index first_row = (Index)blockIdx.x * TILE;
    for (Index low = first_row; low < n; low += (Index)gridDim.x * TILE) {
        REAL best[ROWS];
        int label[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            best[i] = infinity;
            label[i] = k;
        }
        for (int c = 0; c < k; c += CHUNK) {
            REAL product[ROWS][CENTERS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < CENTERS; ++j)
                    product[i][j] = 0;
            for (int f = 0; f < d; f += WIDTH) {
                const int width = d - f < WIDTH ? d - f : WIDTH;
                __syncthreads();
                if (!whole || c == 0)
                    fetch(rows, TILE, X, low, n, d, f, width, mean, 1, whole);
                if (!whole || k > CHUNK || low == first_row)
                    fetch(near, CHUNK, centers, c, k, d, f, width, 0, -2, false);
                if (f == 0)
                    for (int i = threadIdx.x; i < CHUNK; i += THREADS)
                        near_norms[i] = c + i < k ? norms[c + i] : infinity;
                __syncthreads();
                const REAL *my_rows = rows + across * STRIDE, *my_centers = near + lane * STRIDE;
#pragma unroll 1
                for (int e = 0; e < width; e += VECTOR) {
                    Vector x[ROWS];
#pragma unroll
                    for (int i = 0; i < ROWS; ++i)
                        x[i] = *(const Vector *)(my_rows + i * (THREADS / LANES) * STRIDE + e);
#pragma unroll
                    for (int j = 0; j < CENTERS; ++j) {
                        const Vector y = *(const Vector *)(my_centers + j * LANES * STRIDE + e);
#pragma unroll
                        for (int v = 0; v < VECTOR; ++v)
#pragma unroll
                            for (int i = 0; i < ROWS; ++i)
                                product[i][j] += x[i].at[v] * y.at[v];
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < CENTERS; ++j) {
                const REAL norm = near_norms[j * LANES + lane];
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    const REAL score = product[i][j] + norm;
                    if (score < best[i]) {
                        best[i] = score;
                        label[i] = c + j * LANES + lane;
                    }
                }
            }
        }

        // the best of the lanes, of equal ones the lower number
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int apart = 1; apart < LANES; apart *= 2) {
                const REAL other = __shfl_xor_sync(0xffffffffu, best[i], apart);
                const int number = __shfl_xor_sync(0xffffffffu, label[i], apart);
                if (other < best[i] || (other == best[i] && number < label[i])) {
                    best[i] = other;
                    label[i] = number;
                }
            }
            const int row = across + i * (THREADS / LANES);
            const bool there = low + row < n;
            if (lane == i % LANES) {
                const int nearest = label[i] < k ? label[i] : 0;  // all are infinitely far
                tile_labels[row] = there ? nearest : -1;
                tile_weights[row] = there && weights ? weights[low + row] : 1;
                if (there)
                    labels[low + row] = nearest;
            }
        }
        __syncthreads();

        if (with_distances)
            for (int row = across; row < TILE; row += THREADS / LANES) {
                const Index number = low + row;
                const int nearest = tile_labels[row];
                double total = 0;
                if (nearest >= 0)
                    for (int f = lane; f < d; f += LANES) {
                        REAL x = whole ? rows[row * STRIDE + f] : X[number * d + f];
                        if (!whole && mean)
                            x -= mean[f];
                        const REAL difference = x - centers[(Index)nearest * d + f];
                        total += (double)difference * difference;
                    }
#pragma unroll
                for (int apart = 1; apart < LANES; apart *= 2)
                    total += __shfl_xor_sync(0xffffffffu, total, apart);
                if (nearest >= 0 && lane == 0) {
                    if (total <= rounding * norms[nearest])
                        total = 0;  // nothing but rounding
                    if (squared)
                        squared[number] = total;
                    kept += tile_weights[row] * total;
                }
            }

        // A warp has every so manieth cluster to itself, and a lane two columns: nothing has to be
        // atomic, and rows are added in their order.
        if (sums)
            for (int first = 0; first < TILE; first += 32) {
                const int labels_there = tile_labels[first + threadIdx.x % 32];
                const bool own = labels_there >= 0 &&
                                 labels_there % (THREADS / 32) == (int)(threadIdx.x / 32);
                unsigned left = __ballot_sync(0xffffffffu, own);
                while (left) {
                    const int row = first + __ffs(left) - 1;
                    left &= left - 1;
                    const int cluster = tile_labels[row];
                    for (int column = threadIdx.x % 32 * 2; column < pitch; column += 64) {
                        const Pair x = *(const Pair *)(rows + row * STRIDE + column);
                        const double weight = weights ? tile_weights[row] : 1;
                        Sums *sum = (Sums *)(own_sums + cluster * pitch + column);
                        Sums now = *sum;
                        now.at[0] += weight * x.at[0];
                        now.at[1] += weight * x.at[1];
                        *sum = now;
                    }
                }
            }
    }

    __syncthreads();
    if (sums)
        for (int i = threadIdx.x; i < k * columns; i += THREADS)
            sums[(Index)blockIdx.x * k * columns + i] = own_sums[i / columns * pitch + i % columns];
    if (inertia) {
        if (lane == 0)
            tile_weights[across] = kept;
        __syncthreads();
        if (threadIdx.x == 0) {
            double total = 0;
            for (int i = 0; i < THREADS / LANES; ++i)
                total += tile_weights[i];
            inertia[blockIdx.x] = total;
        }
    }
}

// Sum up rows (about the mean) and weights by label, d + 1 numbers a cluster for each blockIdx.x.
// Blocks part rows by blockIdx.x, columns by blockIdx.y and clusters by blockIdx.z, so that the
// sums of a block fit into its shared memory; n_columns is a power of two. A thread has a column,
// and every so manieth cluster, to itself.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    add_up(const REAL *__restrict__ X, const REAL *__restrict__ mean,
           const double *__restrict__ weights, const int *__restrict__ labels,
           double *__restrict__ sums, Index n, int d, int k, int n_columns, int n_clusters)
{
    extern __shared__ __align__(16) double shared[];
    double *tile_weights = shared;
    int *tile_labels = (int *)(tile_weights + TILE);
    double *own_sums = (double *)(tile_labels + TILE);

    const int ROWS_AT_ONCE = 8;
    const int columns = d + 1;
    const int first = blockIdx.z * n_clusters;
    const int slot = threadIdx.x % n_columns, column = blockIdx.y * n_columns + slot;
    const int group = threadIdx.x / n_columns, n_groups = THREADS / n_columns;
    const REAL shift = column < d && mean ? mean[column] : 0;

    for (int i = threadIdx.x; i < n_clusters * n_columns; i += THREADS)
        own_sums[i] = 0;
    for (Index low = (Index)blockIdx.x * TILE; low < n; low += (Index)gridDim.x * TILE) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            tile_labels[i] = low + i < n ? labels[low + i] - first : -1;
            tile_weights[i] = low + i < n && weights ? weights[low + i] : 1;
        }
        __syncthreads();
        for (int row = 0; row < TILE && column < columns; row += ROWS_AT_ONCE) {
            int place[ROWS_AT_ONCE];
            double value[ROWS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const int label = tile_labels[row + i];
                const bool own = label >= 0 && label < n_clusters && (label & (n_groups - 1)) == group;
                place[i] = own ? label * n_columns + slot : -1;
                value[i] = own && column < d ? X[(low + row + i) * d + column] - shift : (REAL)1;
            }
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i)
                if (place[i] >= 0)
                    own_sums[place[i]] += tile_weights[row + i] * value[i];
        }
    }
    // what a thread writes is what it has summed up
    for (int i = threadIdx.x; i < n_clusters * n_columns; i += THREADS) {
        const int cluster = first + i / n_columns, out = blockIdx.y * n_columns + i % n_columns;
        if (cluster < k && out < columns)
            sums[((Index)blockIdx.x * k + cluster) * columns + out] = own_sums[i];
    }
}
