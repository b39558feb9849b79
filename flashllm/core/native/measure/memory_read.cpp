#include "memory_read.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "checked.h"
#include "compute_pool.h"
#include "rows.h"

namespace flash_core {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kPasses = 5;
constexpr size_t kPageBytes = 4096;
constexpr size_t kLineBytes = 64;

// How many places a thread reads from by turns, and how far ahead it asks. One place alone leaves
// the memory idle between pages: 15 GB/s where four give 17, and 28 where two threads get 33.
constexpr size_t kStreams = 4;
constexpr size_t kAheadBytes = 512;
constexpr size_t kLineWords = kLineBytes / sizeof(uint64_t);

// The sum of the words [first, last), which are whole lines of 64 bytes.
uint64_t sum_plain(const uint64_t* first, const uint64_t* last) {
  const size_t stream = static_cast<size_t>(last - first) / kLineWords / kStreams * kLineWords;
  uint64_t sums[kLineWords] = {};
  for (size_t at = 0; at < stream; at += kLineWords) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = first + s * stream + at;
      __builtin_prefetch(line + kAheadBytes / sizeof(uint64_t));
      for (size_t i = 0; i < kLineWords; ++i) sums[i] += line[i];
    }
  }
  uint64_t total = 0;
  for (const uint64_t* rest = first + kStreams * stream; rest < last; ++rest) total += *rest;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) uint64_t sum_words(__m256i words) {
  alignas(32) uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), words);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

__attribute__((target("avx2"))) uint64_t sum_avx2(const uint64_t* first, const uint64_t* last) {
  const size_t stream = static_cast<size_t>(last - first) / kLineWords / kStreams * kLineWords;
  __m256i even[kStreams];
  __m256i odd[kStreams];
  for (size_t s = 0; s < kStreams; ++s) even[s] = odd[s] = _mm256_setzero_si256();
  for (size_t at = 0; at < stream; at += kLineWords) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = first + s * stream + at;
      __builtin_prefetch(line + kAheadBytes / sizeof(uint64_t));
      even[s] =
          _mm256_add_epi64(even[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(line)));
      odd[s] =
          _mm256_add_epi64(odd[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(line + 4)));
    }
  }
  uint64_t total = 0;
  for (const uint64_t* rest = first + kStreams * stream; rest < last; ++rest) total += *rest;
  for (size_t s = 0; s < kStreams; ++s) total += sum_words(_mm256_add_epi64(even[s], odd[s]));
  return total;
}

#endif

using Sum = uint64_t (*)(const uint64_t*, const uint64_t*);

Sum widest_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return sum_avx2;
#endif
  return sum_plain;
}

// Rows are read four by turns, while as many that come eight later are fetched: nothing that was
// tried gives clearly more for rows of every size (docs/log/, 23 November 2026).
constexpr size_t kRowsAhead = 8;

// Rows number `first` to `last` of those that lie anywhere.
struct RowRun {
  View<const uint8_t> bytes;
  View<const int32_t> ids;
  size_t row_bytes;
  size_t first;
  size_t last;

  const uint8_t* row(size_t i) const {
    return bytes.data + static_cast<size_t>(ids.data[std::min(i, last - 1)]) * row_bytes;
  }
};

// The sum of the words of the rows, as far as they fill lines.
uint64_t rows_plain(const RowRun& run) {
  uint64_t total = 0;
  for (size_t i = run.first; i < run.last; i += kStreams) {
    for (size_t at = 0; at + kLineBytes <= run.row_bytes; at += kLineBytes) {
      for (size_t s = 0; s < kStreams; ++s) {
        __builtin_prefetch(run.row(i + s + kRowsAhead) + at, 0, 2);
        uint64_t words[kLineWords];
        std::memcpy(words, run.row(i + s) + at, kLineBytes);
        for (const uint64_t word : words) total += word;
      }
    }
  }
  return total;
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) uint64_t rows_avx2(const RowRun& run) {
  __m256i even[kStreams];
  __m256i odd[kStreams];
  for (size_t s = 0; s < kStreams; ++s) even[s] = odd[s] = _mm256_setzero_si256();
  for (size_t i = run.first; i < run.last; i += kStreams) {
    const uint8_t* now[kStreams];
    const uint8_t* next[kStreams];
    for (size_t s = 0; s < kStreams; ++s) {
      now[s] = run.row(i + s);
      next[s] = run.row(i + s + kRowsAhead);
    }
    for (size_t at = 0; at + kLineBytes <= run.row_bytes; at += kLineBytes) {
      for (size_t s = 0; s < kStreams; ++s) {
        __builtin_prefetch(next[s] + at, 0, 2);
        const auto* line = reinterpret_cast<const __m256i*>(now[s] + at);
        even[s] = _mm256_add_epi64(even[s], _mm256_loadu_si256(line));
        odd[s] = _mm256_add_epi64(odd[s], _mm256_loadu_si256(line + 1));
      }
    }
  }
  uint64_t total = 0;
  for (size_t s = 0; s < kStreams; ++s) total += sum_words(_mm256_add_epi64(even[s], odd[s]));
  return total;
}

#endif

using RowSum = uint64_t (*)(const RowRun&);

RowSum widest_row_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return rows_avx2;
#endif
  return rows_plain;
}

// The lines of one of `parts` parts, as near to equal as can be; the last takes a rest that fills
// no line, which the buffer's last page has room for.
struct Part {
  uint8_t* first;
  uint8_t* last;
};

Part part_of(const Buffer& buffer, int index, int parts) {
  const uint64_t lines = Checked(buffer.size()).round_up(kLineBytes).get() / kLineBytes;
  const auto begin = [&](int part) {
    const uint64_t shared = lines / static_cast<uint64_t>(parts) * static_cast<uint64_t>(part);
    const uint64_t rest = lines % static_cast<uint64_t>(parts);
    const uint64_t line = shared + std::min<uint64_t>(rest, static_cast<uint64_t>(part));
    return buffer.data() + std::min<uint64_t>(line * kLineBytes, buffer.size());
  };
  return {begin(index), begin(index + 1)};
}

// Until it is written to, anonymous memory is one page of zeros, over and over, in the cache.
void make_real(const Part& part) {
  for (uint8_t* byte = part.first; byte < part.last; byte += kPageBytes) {
    volatile uint8_t* const place = byte;
    *place = *place;
  }
}

// The best of a few passes of sum(index) by each of the threads, whose results are looked at so
// that nothing is optimised away.
template <class SumOf>
int64_t best_pass_ns(ComputePool* pool, int threads, const SumOf& sum) {
  std::atomic<uint64_t> total{0};
  int64_t best_ns = std::numeric_limits<int64_t>::max();
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool->run(threads, [&](int index) { total.fetch_add(sum(index), std::memory_order_relaxed); });
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    best_ns = std::min<int64_t>(
        best_ns, std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
  }
  volatile uint64_t seen = total.load();
  static_cast<void>(seen);
  return std::max<int64_t>(best_ns, 1);
}

void check_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
}

}  // namespace

int64_t stream_read_ns(Buffer* buffer, int threads) {
  check_threads(threads);
  ComputePool pool(threads);
  const Sum sum = widest_sum();
  pool.run(threads, [&](int index) { make_real(part_of(*buffer, index, threads)); });
  return best_pass_ns(&pool, threads, [&](int index) {
    const Part part = part_of(*buffer, index, threads);
    const auto* words = reinterpret_cast<const uint64_t*>(part.first);
    // Whole words only: what lies behind the end of a buffer is not its own.
    return sum(words, words + static_cast<size_t>(part.last - part.first) / sizeof(uint64_t));
  });
}

int64_t row_read_ns(View<const uint8_t> bytes, int64_t row_bytes, View<const int32_t> ids,
                    int threads) {
  check_threads(threads);
  if (row_bytes < 1) throw std::invalid_argument("row_bytes is " + std::to_string(row_bytes));
  const auto row = static_cast<size_t>(row_bytes);
  check_ends(ids, row_bytes, Checked(row), bytes.size);
  ComputePool pool(threads);
  const auto begin = [&](int part) {
    return ids.size * static_cast<size_t>(part) / static_cast<size_t>(threads);
  };
  const RowSum sum = widest_row_sum();
  return best_pass_ns(&pool, threads, [&](int index) {
    return sum({bytes, ids, row, begin(index), begin(index + 1)});
  });
}

}  // namespace flash_core
