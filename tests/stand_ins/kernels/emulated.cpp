// A stand-in for CUDA on the host: the threads of a block take turns, each on a stack of its own.
// No warp is further than it must be when another one goes on, so that a barrier that is left out
// shows. KERNELS is the file with the kernels, EACH_KERNEL applies KERNEL to their names.

#include <cmath>
#include <cstddef>
#include <cstring>
#include <math.h>
#include <string>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct Three {
    int x, y, z;
};
static Three threadIdx, blockIdx, gridDim, blockDim;

const size_t MOST_SHARED = 1 << 18, MOST_THREADS = 1024, STACK = 1 << 16;
alignas(16) double shared[MOST_SHARED / sizeof(double)];

enum Waits { FOR_WARP, FOR_BLOCK, ENDED };
static ucontext_t scheduler, threads[MOST_THREADS];
static Waits waits[MOST_THREADS];
static char stacks[MOST_THREADS][STACK];
static double slots[2][MOST_THREADS];
static int turn[MOST_THREADS];

static void wait(Waits what)
{
    const int me = threadIdx.x;
    waits[me] = what;
    swapcontext(&threads[me], &scheduler);
}

static void __syncthreads() { wait(FOR_BLOCK); }

template <class T> static const T *exchanged(T mine)
{
    const int me = threadIdx.x, now = turn[me]++ % 2;
    memcpy(&slots[now][me], &mine, sizeof(T));
    wait(FOR_WARP);
    return (const T *)slots[now];  // of 8 bytes each
}

template <class T> static T __shfl_xor_sync(unsigned, T mine, int apart)
{
    const int other = threadIdx.x ^ apart;
    T theirs;
    memcpy(&theirs, (const double *)exchanged(mine) + other, sizeof(T));
    return theirs;
}

template <class T> static T __shfl_sync(unsigned, T mine, int lane, int width)
{
    const int other = threadIdx.x / width * width + lane % width;
    T theirs;
    memcpy(&theirs, (const double *)exchanged(mine) + other, sizeof(T));
    return theirs;
}

static unsigned __ballot_sync(unsigned, bool mine)
{
    const double *all = (const double *)exchanged((int)mine);
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) {
        int vote;
        memcpy(&vote, all + threadIdx.x / 32 * 32 + i, sizeof vote);
        votes |= (unsigned)vote << i;
    }
    return votes;
}

static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned __int128)a * b >> 64;
}

static int __ffs(unsigned bits) { return __builtin_ffs(bits); }

static int __popc(unsigned bits) { return __builtin_popcount(bits); }

static double __longlong_as_double(long long bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#include KERNELS

static void (*body)(void **);
static void **arguments;

static void start()
{
    body(arguments);
    wait(ENDED);
}

// Run a warp, in order or in reverse, as far as it gets without the others.
static bool run_warp(int warp, bool reversed)
{
    for (;;) {
        for (int j = 0; j < 32; ++j) {
            const int i = warp * 32 + (reversed ? 31 - j : j);
            threadIdx.x = i;
            swapcontext(&scheduler, &threads[i]);
        }
        for (int i = warp * 32; i < warp * 32 + 32; ++i)
            if (waits[i] != waits[warp * 32])
                return false;
        if (waits[warp * 32] != FOR_WARP)
            return true;
    }
}

// Run a block: each warp up to the next __syncthreads, then all of them from there.
static const char *run_block(bool reversed)
{
    const int n = blockDim.x;
    for (int i = 0; i < n; ++i) {
        getcontext(&threads[i]);
        threads[i].uc_stack.ss_sp = stacks[i];
        threads[i].uc_stack.ss_size = STACK;
        threads[i].uc_link = 0;
        makecontext(&threads[i], start, 0);
        turn[i] = 0;
    }
    for (;;) {
        for (int w = 0; w < n / 32; ++w)
            if (!run_warp(reversed ? n / 32 - 1 - w : w, reversed))
                return "the threads of a warp part";
        int n_ended = 0;
        for (int i = 0; i < n; ++i)
            n_ended += waits[i] == ENDED;
        if (n_ended == n)
            return 0;
        if (n_ended)
            return "some threads wait for others that have ended";
    }
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void **args, std::index_sequence<I...>)
{
    kernel(*(A *)args[I]...);
}

template <class... A> static void call(void (*kernel)(A...), void **args)
{
    call(kernel, args, std::index_sequence_for<A...>());
}

template <class T> struct Name;
template <> struct Name<int> { static std::string text() { return "int32"; } };
template <> struct Name<long long> { static std::string text() { return "int64"; } };
template <> struct Name<unsigned long long> { static std::string text() { return "uint64"; } };
template <> struct Name<float> { static std::string text() { return "float32"; } };
template <> struct Name<double> { static std::string text() { return "float64"; } };
template <class T> struct Name<const T> : Name<T> {};
template <class T> struct Name<T *> { static std::string text() { return Name<T>::text() + "*"; } };
template <class T> struct Name<T *__restrict__> : Name<T *> {};

template <class... A> static std::string names_of(void (*)(A...))
{
    std::string all;
    for (const std::string &name : {Name<A>::text()...})
        all += name + " ";
    return all;
}

// The types of a kernel's parameters, as NumPy calls them.
extern "C" const char *types(const char *name)
{
    static std::string all;
#define KERNEL(kernel) if (!strcmp(name, #kernel)) all = names_of(kernel);
    EACH_KERNEL
#undef KERNEL
    return all.c_str();
}

// Run a kernel; return what is wrong, if anything.
extern "C" const char *launch(const char *name, int x, int y, int z, int n_threads, long n_shared,
                              bool reversed, void **args)
{
    const unsigned char BLANK = 0x7f;  // a number that is not there
    unsigned char *bytes = (unsigned char *)shared;
    if (n_shared > (long)MOST_SHARED)
        return "too much shared memory";
#define KERNEL(kernel) if (!strcmp(name, #kernel)) body = [](void **a) { call(kernel, a); };
    EACH_KERNEL
#undef KERNEL
    arguments = args;
    gridDim = {x, y, z};
    blockDim = {n_threads, 1, 1};
    for (blockIdx.z = 0; blockIdx.z < z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) {
                memset(bytes, BLANK, MOST_SHARED);
                for (long i = 0; i < n_shared; ++i)
                    bytes[i] = 0xff;  // NaN
                if (const char *problem = run_block(reversed))
                    return problem;
                for (size_t i = n_shared; i < MOST_SHARED; ++i)
                    if (bytes[i] != BLANK)
                        return "a write beyond the shared memory";
            }
    return 0;
}
