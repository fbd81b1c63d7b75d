// Products of the columns of rows with one another, Z.T @ Z: rows are centred, weighted and
// multiplied in one read, and no copy of them is written.
//
// _cuda_gram.py compiles this file, and defines the constants:
//   REAL      float or double, the type of rows
//   TILES     tiles along each side of the result
//   THREADS   of a block: one for each tile on and below the diagonal, and some to spare
//   ROWS      in shared memory at once
//   ITEMS     numbers that a thread has on their way
//   FLUSH     rows that are summed in REAL before the sums are added in double
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

struct __align__(16) Vector {
    REAL at[VECTOR];
};

// Sum up the products of the columns of [(X - shift) * factor, V] in each block of threads: for each
// place in a tile, the numbers of the tiles on and below the diagonal.
extern "C" __global__ void __launch_bounds__(THREADS)
    gram(const REAL *__restrict__ X, const REAL *__restrict__ shift,
         const REAL *__restrict__ factor, const REAL *__restrict__ V, double *__restrict__ sums,
         Index n, int d, int m)
{
    extern __shared__ __align__(16) double shared[];
    REAL *rows = (REAL *)shared;

    const int n_pairs = TILES * (TILES + 1) / 2;
    const bool works = threadIdx.x < n_pairs;
    int i = 0;
    while ((i + 1) * (i + 2) / 2 <= (int)threadIdx.x)
        ++i;
    if (!works)
        i = 0;
    const int j = works ? (int)threadIdx.x - i * (i + 1) / 2 : 0;
    const REAL *left = rows + i * VECTOR, *right = rows + j * VECTOR;
    double *out = sums + (Index)blockIdx.x * SIDE * SIDE * n_pairs + threadIdx.x;

    // columns that no matrix has stay 0
    for (int e = threadIdx.x; e < ROWS * STRIDE; e += THREADS)
        rows[e] = 0;

    // Numbers of neighbouring threads are neighbours in memory: those of X come before those of V.
    const int n_X = ROWS * d, down = THREADS / d, across = THREADS % d;
    const int first_row = threadIdx.x / d, first_column = threadIdx.x % d;
    REAL next[ITEMS];
    Index coming = (Index)blockIdx.x * ROWS;

    REAL product[SIDE][SIDE];
    bool is_first = true;
    int n_summed = 0;
#pragma unroll
    for (int a = 0; a < SIDE; ++a)
#pragma unroll
        for (int b = 0; b < SIDE; ++b)
            product[a][b] = 0;

    for (Index low = -1; coming < n || low >= 0;) {
        // the rows that were on their way come to shared memory, centred and weighted
        __syncthreads();
        if (low >= 0) {
            int row = first_row, column = first_column;
#pragma unroll
            for (int u = 0; u < ITEMS; ++u) {
                const int e = threadIdx.x + u * THREADS;
                if (e < n_X) {
                    REAL value = next[u];
                    if (shift)
                        value -= shift[column];
                    if (factor)
                        value *= low + row < n ? factor[low + row] : 0;
                    else if (low + row >= n)
                        value = 0;
                    rows[row * STRIDE + column] = value;
                    row += down;
                    column += across;
                    if (column >= d) {
                        column -= d;
                        ++row;
                    }
                } else if (e - n_X < ROWS * m)
                    rows[(e - n_X) / m * STRIDE + d + (e - n_X) % m] = next[u];
            }
        }
        __syncthreads();
        // the next ones set out while these are multiplied
        if (coming < n) {
            const int n_there = n - coming < ROWS ? (int)(n - coming) : ROWS;
            const REAL *of_X = X + coming * d, *of_V = V + coming * m;
#pragma unroll
            for (int u = 0; u < ITEMS; ++u) {
                const int e = threadIdx.x + u * THREADS;
                next[u] = 0;
                if (e < n_there * d)
                    next[u] = of_X[e];
                else if (e >= n_X && e - n_X < n_there * m)
                    next[u] = of_V[e - n_X];
            }
        }
        if (works && low >= 0) {
#pragma unroll 2
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
            if (n_summed >= FLUSH || coming >= n) {
#pragma unroll
                for (int a = 0; a < SIDE; ++a)
#pragma unroll
                    for (int b = 0; b < SIDE; ++b) {
                        const int place = (a * SIDE + b) * n_pairs;
                        const double before = is_first ? 0 : out[place];
                        out[place] = before + product[a][b];
                        product[a][b] = 0;
                    }
                is_first = false;
                n_summed = 0;
            }
        }
        low = coming < n ? coming : -1;
        coming += (Index)gridDim.x * ROWS;
    }
}

// Add up the sums of all blocks, and put them where they belong in a symmetric matrix of c columns.
// The threads of a warp have neighbouring numbers; warps of a block part the blocks among them.
extern "C" __global__ void __launch_bounds__(256)
    collect(const double *__restrict__ sums, double *__restrict__ matrix, int n_blocks, int c)
{
    extern __shared__ __align__(16) double shared[];
    const int n_pairs = TILES * (TILES + 1) / 2, n_numbers = SIDE * SIDE * n_pairs;
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
        const int within = place / n_pairs, pair = place % n_pairs;
        const int a = within / SIDE, b = within % SIDE;
        int i = 0;
        while ((i + 1) * (i + 2) / 2 <= pair)
            ++i;
        const int j = pair - i * (i + 1) / 2;
        const int p = a / VECTOR * HALF + i * VECTOR + a % VECTOR;
        const int q = b / VECTOR * HALF + j * VECTOR + b % VECTOR;
        if (p < c && q < c)
            matrix[p * c + q] = matrix[q * c + p] = total;
    }
}
