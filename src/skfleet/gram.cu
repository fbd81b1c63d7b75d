// Products of the columns of rows with one another, Z.T @ Z: rows are centred, weighted and
// multiplied in one read, and no copy of them is written.
//
// _cuda_gram.py compiles this file, and defines the constants:
//   REAL      float or double, the type of rows
//   TILES     tiles along each side of the result
//   THREADS   of a block: one for each tile on and below the diagonal, and some to spare
//   ROWS      in shared memory at once
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

// Bring a matrix's part of rows low, low + 1, ... to shared memory, from a column on. Numbers of
// neighbouring threads are neighbours in memory. Rows beyond the last one are 0.
__device__ __forceinline__ void fetch(REAL *to, const REAL *__restrict__ from, Index low, Index n,
                                      int width, const REAL *__restrict__ shift,
                                      const REAL *__restrict__ factor)
{
    const int down = THREADS / width, right = THREADS % width;
    const int n_there = n - low < ROWS ? (int)(n - low) : ROWS;
    int row = threadIdx.x / width, column = threadIdx.x % width;
    const REAL *at = from + low * width + threadIdx.x;
#pragma unroll 4
    for (; row < ROWS; at += THREADS) {
        REAL value = 0;
        if (row < n_there) {
            value = *at;
            if (shift)
                value -= shift[column];
            if (factor)
                value *= factor[low + row];
        }
        to[row * STRIDE + column] = value;
        row += down;
        column += right;
        if (column >= width) {
            column -= width;
            ++row;
        }
    }
}

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

    REAL product[SIDE][SIDE];
    bool is_first = true;
    int n_summed = 0;
#pragma unroll
    for (int a = 0; a < SIDE; ++a)
#pragma unroll
        for (int b = 0; b < SIDE; ++b)
            product[a][b] = 0;

    for (Index low = (Index)blockIdx.x * ROWS; low < n; low += (Index)gridDim.x * ROWS) {
        __syncthreads();
        fetch(rows, X, low, n, d, shift, factor);
        if (m)
            fetch(rows + d, V, low, n, m, 0, 0);
        __syncthreads();
        if (works)
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
        const bool is_last = low + (Index)gridDim.x * ROWS >= n;
        if (works && (n_summed >= FLUSH || is_last)) {
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
}
