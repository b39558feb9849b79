// Attention of several tokens that follow one another, each with the bits that it has alone.
//
// A part is a head of keys and some of the tokens, whose queries are multiplied together
// (attention_together.h).
#include <stdexcept>
#include <string>

#include "attention.h"
#include "attention_tiles.h"
#include "attention_together.h"
#include "checked.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"

namespace flash_core {

namespace {

// Of a part: so many queries share each key, as far as their scores fit into the second cache. All
// threads together have kScoreBytes, which the plan knows (planning/prefill_shape.py).
constexpr size_t kMostVectors = 64;
constexpr size_t kScoreBytes = 2 << 20;

struct ManySizes {
  AttendSizes layer;
  size_t tokens;
  size_t before;  // positions before the first token
  size_t window;  // 0 for all

  size_t sharing() const { return layer.sharing(); }
  size_t end() const { return before + tokens; }
};

// What each token has of `values`.
size_t check_tokens(size_t values, size_t out, int64_t tokens, int64_t window) {
  if (tokens < 1) throw std::invalid_argument("tokens is " + std::to_string(tokens));
  if (window < 0) throw std::invalid_argument("window is " + std::to_string(window));
  if (values % static_cast<size_t>(tokens) != 0 || out != values) {
    throw std::invalid_argument("query has " + std::to_string(values) + " values and out " +
                                std::to_string(out) + ", for " + std::to_string(tokens) +
                                " tokens");
  }
  return values / static_cast<size_t>(tokens);
}

ManySizes many_sizes(const AttendSizes& layer, size_t end, int64_t tokens, int64_t window) {
  const auto count = static_cast<size_t>(tokens);
  if (count > end) {
    throw std::out_of_range(std::to_string(count) + " tokens of " + std::to_string(end) +
                            " positions");
  }
  return {layer, count, end - count, static_cast<size_t>(window)};
}

ManySizes check_attend_many(const AttendMany& task, HeadRuns* runs) {
  const size_t one = check_tokens(task.query.size, task.out.size, task.tokens, task.window);
  const Attend last = {{task.query.data, one}, task.keys,  task.values,          task.rows,
                       {0, task.end},          task.scale, {task.out.data, one}, task.sinks};
  const AttendSizes layer = check_attend(last, runs);
  return many_sizes(layer, static_cast<size_t>(task.end), task.tokens, task.window);
}

ManySizes check_attend_many_runs(const AttendManyRuns& task, HeadRuns* runs) {
  AttendRuns last = task.rows;
  last.query.size = last.out.size =
      check_tokens(last.query.size, last.out.size, task.tokens, task.window);
  const AttendSizes layer = check_attend_runs(last, runs);
  for (size_t head = 0; head < runs->kv_heads(); ++head) {
    if (runs->rows(head) == runs->rows(0)) continue;
    throw std::invalid_argument("head " + std::to_string(head) + " of keys has " +
                                std::to_string(runs->rows(head)) + " rows, and head 0 has " +
                                std::to_string(runs->rows(0)));
  }
  return many_sizes(layer, runs->rows(0), task.tokens, task.window);
}

// What the parts multiply, once it was checked.
struct ManyTask {
  DType dtype;
  const HeadRuns& runs;
  const float* query;
  float scale;
  float* out;
  View<const float> sinks;
};

// Memory of a thread, kept until it ends.
struct PartScratch {
  std::vector<float> scores;
  std::vector<float> sums;
  AttendScratch alone;
};

// Some tokens' queries of one head of keys: vector v is token v / sharing, and of it the head
// v % sharing of those that share the keys.
class Part {
 public:
  Part(const KernelTable& table, const ManyTask& task, const ManySizes& sizes, size_t kv_head,
       size_t first, size_t end)
      : table_(table), task_(task), sizes_(sizes), kv_head_(kv_head), first_(first), end_(end) {}

  void run(PartScratch* scratch) const {
    // Where a token does not see the first position, its tiles begin elsewhere.
    const bool sees_all = sizes_.window == 0 || sizes_.before + end_ <= sizes_.window;
    if (!sees_all || !Together::can(table_, task_.dtype)) return run_alone(scratch);
    const size_t columns = sizes_.layer.columns;
    TogetherScratch* const own = together_scratch();
    own->queries.clear();
    own->seen.clear();
    for (size_t v = 0; v < vectors(); ++v) {
      own->queries.push_back(task_.query + place(v));
      own->seen.push_back(seen_by(v));
    }
    const Together together(table_, task_.dtype, sizes_.layer, task_.runs.of(kv_head_), 0, own);
    scratch->scores.resize(std::max(scratch->scores.size(), vectors() * seen()));
    together.score(scratch->scores.data(), seen());
    for (size_t v = 0; v < vectors(); ++v) {
      float* const scores = scratch->scores.data() + v * seen();
      for (size_t i = 0; i < seen_by(v); ++i) scores[i] *= task_.scale;
      softmax(scores, seen_by(v), sink_of(task_.sinks, head(v)));
    }
    scratch->sums.assign(vectors() * columns, 0.0F);
    together.mix(scratch->scores.data(), seen(), {scratch->sums.data(), vectors(), columns});
    for (size_t v = 0; v < vectors(); ++v) {
      std::copy_n(scratch->sums.data() + v * columns, columns, task_.out + place(v));
    }
  }

 private:
  size_t vectors() const { return (end_ - first_) * sizes_.sharing(); }
  // Positions that the last token sees, and that a vector's does.
  size_t seen() const { return sizes_.before + end_; }
  size_t seen_by(size_t v) const { return sizes_.before + first_ + v / sizes_.sharing() + 1; }
  size_t head(size_t v) const { return kv_head_ * sizes_.sharing() + v % sizes_.sharing(); }
  // Where a vector lies in query and out.
  size_t place(size_t v) const {
    return ((first_ + v / sizes_.sharing()) * sizes_.layer.heads + head(v)) * sizes_.layer.columns;
  }

  void run_alone(PartScratch* scratch) const {
    const size_t width = sizes_.layer.heads * sizes_.layer.columns;
    scratch->alone.make_room(sizes_.sharing(), sizes_.layer);
    for (size_t t = first_; t < end_; ++t) {
      const size_t end = sizes_.before + t + 1;
      const SeenRows seen = {sizes_.window != 0 && end > sizes_.window ? end - sizes_.window : 0,
                             end};
      const Attention one = {
          task_.dtype, sizes_.layer,          task_.runs, seen, task_.query + t * width,
          task_.scale, task_.out + t * width, task_.sinks};
      attend_heads(table_, one, kv_head_ * sizes_.sharing(), (kv_head_ + 1) * sizes_.sharing(),
                   scratch->alone.from(0, sizes_.layer));
    }
  }

  const KernelTable& table_;
  const ManyTask& task_;
  const ManySizes& sizes_;
  size_t kv_head_;
  size_t first_;
  size_t end_;
};

PartScratch* part_scratch() {
  static thread_local PartScratch scratch;
  return &scratch;
}

// Each part is one head of keys and as many tokens as have room for their scores.
void attend_in_parts(const KernelTable& table, ComputePool* pool, size_t threads,
                     const ManyTask& task, const ManySizes& sizes) {
  const size_t fitting =
      std::min(kMostVectors, kScoreBytes / threads / sizeof(float) / sizes.end());
  const size_t at_once = std::max(fitting / sizes.sharing(), size_t{1});
  const size_t blocks = ceil_div(sizes.tokens, at_once);
  const size_t kv_heads = sizes.layer.kv_heads;
  pool->run(static_cast<int>((Checked(blocks) * Checked(kv_heads)).get()), [&](int part) {
    // The last tokens, which see the most, come first.
    const size_t block = blocks - 1 - static_cast<size_t>(part) / kv_heads;
    const size_t first = block * at_once;
    const size_t end = std::min(first + at_once, sizes.tokens);
    Part(table, task, sizes, static_cast<size_t>(part) % kv_heads, first, end).run(part_scratch());
  });
}

}  // namespace

void Kernels::attend_many(const AttendMany& task) {
  const auto lock = enter();
  HeadRuns* const runs = &attend_scratch_.runs;
  const ManySizes sizes = check_attend_many(task, runs);
  attend_in_parts(table_, pool_.get(), static_cast<size_t>(threads_),
                  {task.rows.dtype, *runs, task.query.data, task.scale, task.out.data, task.sinks},
                  sizes);
}

void Kernels::attend_many_runs(const AttendManyRuns& task) {
  const auto lock = enter();
  HeadRuns* const runs = &attend_scratch_.runs;
  const ManySizes sizes = check_attend_many_runs(task, runs);
  const AttendRuns& rows = task.rows;
  attend_in_parts(table_, pool_.get(), static_cast<size_t>(threads_),
                  {rows.dtype, *runs, rows.query.data, rows.scale, rows.out.data, rows.sinks},
                  sizes);
}

}  // namespace flash_core
