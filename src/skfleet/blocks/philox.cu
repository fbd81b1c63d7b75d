// Uniform draws from [0, 1) by Philox4x64-10 (Salmon et al., 2011), as NumPy's generator has them.
// Each count has four draws, of which a thread computes one.

typedef unsigned long long Word;

extern "C" __global__ void uniform(Word start, Word key, Word other_key, long long n, double *draws)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const Word number = start + i;
    Word a = number / 4 + 1, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; ++round) {
        const Word a_high = __umul64hi(0xD2E7470EE14C6C93ull, a), a_low = 0xD2E7470EE14C6C93ull * a;
        const Word c_high = __umul64hi(0xCA5A826395121157ull, c), c_low = 0xCA5A826395121157ull * c;
        a = c_high ^ b ^ key;
        b = c_low;
        c = a_high ^ d ^ other_key;
        d = a_low;
        key += 0x9E3779B97F4A7C15ull;
        other_key += 0xBB67AE8584CAA73Bull;
    }
    const int place = number % 4;
    const Word bits = place < 2 ? (place ? b : a) : (place == 2 ? c : d);
    draws[i] = (bits >> 11) / 9007199254740992.0;  // 2^53
}
