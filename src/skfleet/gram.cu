// Products of the columns of rows with one another, Z.T @ Z: rows are centred, weighted and
// multiplied in one read, and no copy of them is written.
//
// _cuda_gram.py compiles this file, and defines the constants:
//   REAL        float or double, the type of rows
//   D, M        columns of the rows, and of what comes beside them
//   CENTERED    whether a shift is subtracted from rows
//   WEIGHTED    whether each row has a factor
//   TILES       tiles along each side of the result
//   THREADS     of a block: one for each tile on and below the diagonal, and some to spare
//   MIN_BLOCKS  of a multiprocessor, which limits the registers of a thread
//   ROWS        in shared memory at once
//   UNROLL      rows whose numbers are loaded from shared memory together
//   FLUSH       rows that are summed in REAL before the sums are added in double
//
// A tile is SIDE columns by SIDE columns, which a thread has in registers: for each row it loads
// 2 * SIDE numbers from shared memory for SIDE * SIDE multiplications and additions. The columns of
// a tile are VECTOR neighbours of the first half and as many of the second, so that threads of a
// warp read neighbouring vectors.
//
// The floor: n * c * (c + 1) / 2 multiplications and additions of c columns, half of what a product
// of matrices takes, and n * c numbers read once.

typedef long long Index;

#define VECTOR (16 / (int)sizeof(REAL))
#define SIDE (2 * VECTOR)
#define HALF (VECTOR * TILES)
#define STRIDE (2 * HALF)
#define PAIRS (TILES * (TILES + 1) / 2)
// A number, because directives know no macros.
constexpr int AT_ONCE = UNROLL;
// Numbers of a thread among those of X and of V.
#define ITEMS(width) ((ROWS * (width) + THREADS - 1) / THREADS)

struct __align__(16) Vector {
    REAL at[VECTOR];
};

// Load a thread's numbers of rows of a matrix, 0 for rows that there are not. Those of neighbouring
// threads are neighbours in memory.
template <int WIDTH>
__device__ __forceinline__ void load(REAL *numbers, const REAL *__restrict__ from, int n_rows)
{
    from += threadIdx.x;
    if (n_rows == ROWS) {
#pragma unroll
        for (int u = 0; u < ITEMS(WIDTH); ++u)
            if ((u + 1) * THREADS <= ROWS * WIDTH || threadIdx.x + u * THREADS < ROWS * WIDTH)
                numbers[u] = from[u * THREADS];
        return;
    }
#pragma unroll
    for (int u = 0; u < ITEMS(WIDTH); ++u)
        numbers[u] = (int)threadIdx.x + u * THREADS < n_rows * WIDTH ? from[u * THREADS] : (REAL)0;
}

// Put a thread's numbers into shared memory, less a shift and times a factor.
template <int WIDTH, bool SHIFTED, bool SCALED, bool FULL>
__device__ __forceinline__ void store(REAL *to, const REAL *numbers, int n_rows,
                                      const REAL *__restrict__ shift,
                                      const REAL *__restrict__ factor)
{
    int row = threadIdx.x / WIDTH, column = threadIdx.x % WIDTH;
    to += row * STRIDE + column;
#pragma unroll
    for (int u = 0; u < ITEMS(WIDTH); ++u) {
        if ((u + 1) * THREADS <= ROWS * WIDTH || threadIdx.x + u * THREADS < ROWS * WIDTH) {
            REAL value = numbers[u];
            if (SHIFTED && (FULL || row < n_rows))
                value -= shift[column];
            if (SCALED)
                value *= FULL || row < n_rows ? factor[row] : (REAL)0;
            *to = value;
        }
        to += THREADS / WIDTH * STRIDE + THREADS % WIDTH;
        column += THREADS % WIDTH;
        row += THREADS / WIDTH;
        if (column >= WIDTH) {
            column -= WIDTH;
            to += STRIDE - WIDTH;
            ++row;
        }
    }
}

// Sum up the products of the columns of [(X - shift) * factor, V] in each block of threads: for each
// place in a tile, the numbers of the tiles on and below the diagonal.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    gram(const REAL *__restrict__ X, const REAL *__restrict__ shift,
         const REAL *__restrict__ factor, const REAL *__restrict__ V, double *__restrict__ sums,
         Index n)
{
    extern __shared__ __align__(16) double shared[];
    REAL *rows = (REAL *)shared, *means = rows + ROWS * STRIDE;

    const bool works = threadIdx.x < PAIRS;
    int i = 0;
    while (works && (i + 1) * (i + 2) / 2 <= (int)threadIdx.x)
        ++i;
    const int j = works ? (int)threadIdx.x - i * (i + 1) / 2 : 0;
    const REAL *left = rows + i * VECTOR, *right = rows + j * VECTOR;
    double *out = sums + (Index)blockIdx.x * SIDE * SIDE * PAIRS + threadIdx.x;

    // columns that no matrix has stay 0
    for (int e = threadIdx.x; e < ROWS * STRIDE; e += THREADS)
        rows[e] = 0;
    if (CENTERED)
        for (int e = threadIdx.x; e < D; e += THREADS)
            means[e] = shift[e];

    REAL product[SIDE][SIDE], next[ITEMS(D)], beside[ITEMS(M) + 1];
    bool is_first = true;
    int n_summed = 0;
#pragma unroll
    for (int a = 0; a < SIDE; ++a)
#pragma unroll
        for (int b = 0; b < SIDE; ++b)
            product[a][b] = 0;

    Index low = (Index)blockIdx.x * ROWS;
    int n_rows = n - low < ROWS ? (int)(n - low) : ROWS;
    load<D>(next, X + low * D, n_rows);
    if (M)
        load<M + !M>(beside, V + low * M, n_rows);
    while (low < n) {
        __syncthreads();
        if (n_rows == ROWS)
            store<D, CENTERED, WEIGHTED, true>(rows, next, n_rows, means, factor + low);
        else
            store<D, CENTERED, WEIGHTED, false>(rows, next, n_rows, means, factor + low);
        if (M)
            store<M + !M, false, false, true>(rows + D, beside, n_rows, 0, 0);
        __syncthreads();
        // the next rows set out while these are multiplied
        low += (Index)gridDim.x * ROWS;
        if (low < n) {
            n_rows = n - low < ROWS ? (int)(n - low) : ROWS;
            load<D>(next, X + low * D, n_rows);
            if (M)
                load<M + !M>(beside, V + low * M, n_rows);
        }
        if (!works)
            continue;
#pragma unroll AT_ONCE
        for (int row = 0; row < ROWS; ++row) {
            Vector x[2], y[2];
            x[0] = *(const Vector *)(left + row * STRIDE);
            x[1] = *(const Vector *)(left + row * STRIDE + HALF);
            y[0] = *(const Vector *)(right + row * STRIDE);
            y[1] = *(const Vector *)(right + row * STRIDE + HALF);
#pragma unroll
            for (int a = 0; a < SIDE; ++a)
#pragma unroll
                for (int b = 0; b < SIDE; ++b)
                    product[a][b] += x[a / VECTOR].at[a % VECTOR] * y[b / VECTOR].at[b % VECTOR];
        }
        n_summed += ROWS;
        if (n_summed >= FLUSH || low >= n) {
#pragma unroll
            for (int a = 0; a < SIDE; ++a)
#pragma unroll
                for (int b = 0; b < SIDE; ++b) {
                    const int place = (a * SIDE + b) * PAIRS;
                    const double before = is_first ? 0 : out[place];
                    out[place] = before + product[a][b];
                    product[a][b] = 0;
                }
            is_first = false;
            n_summed = 0;
        }
    }
}

// Add up the sums of all blocks, and put them where they belong in a symmetric matrix.
// The threads of a warp have neighbouring numbers; warps of a block part the blocks among them.
extern "C" __global__ void __launch_bounds__(256)
    collect(const double *__restrict__ sums, double *__restrict__ matrix, int n_blocks)
{
    extern __shared__ __align__(16) double shared[];
    const int n_numbers = SIDE * SIDE * PAIRS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int place = blockIdx.x * 32 + lane;
    double total = 0;
    if (place < n_numbers) {
#pragma unroll 8
        for (int block = warp; block < n_blocks; block += 8)
            total += sums[(Index)block * n_numbers + place];
    }
    shared[threadIdx.x] = total;
    __syncthreads();
    if (warp == 0 && place < n_numbers) {
        for (int other = 1; other < 8; ++other)
            total += shared[other * 32 + lane];
        const int within = place / PAIRS, pair = place % PAIRS;
        const int a = within / SIDE, b = within % SIDE;
        int i = 0;
        while ((i + 1) * (i + 2) / 2 <= pair)
            ++i;
        const int j = pair - i * (i + 1) / 2;
        const int p = a / VECTOR * HALF + i * VECTOR + a % VECTOR;
        const int q = b / VECTOR * HALF + j * VECTOR + b % VECTOR;
        if (p < D + M && q < D + M)
            matrix[p * (D + M) + q] = matrix[q * (D + M) + p] = total;
    }
}
