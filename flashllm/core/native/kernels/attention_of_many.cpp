// Attention of several tokens that follow one another, each with the bits that it has alone.
//
// A part is a head of keys and some of the tokens. Its scores are products of tiles (tiles.h), and
// its values sums of decoded rows (tile_sums.h): both have the order of a vector by itself.
#include <stdexcept>
#include <string>

#include "attention.h"
#include "attention_tiles.h"
#include "checked.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"

namespace flash_core {

namespace {

// Of a part: so many queries share each key, as far as their scores fit into the second cache. All
// threads together have kScoreBytes, which the plan knows (planning/plan.py).
constexpr size_t kMostVectors = 64;
constexpr size_t kScoreBytes = 2 << 20;

struct ManySizes {
  AttendSizes layer;
  size_t tokens;
  size_t before;  // positions before the first token
  size_t window;  // 0 for all

  size_t sharing() const { return layer.heads / layer.kv_heads; }
};

ManySizes check_attend_many(const AttendMany& task) {
  if (task.tokens < 1) throw std::invalid_argument("tokens is " + std::to_string(task.tokens));
  if (task.window < 0) throw std::invalid_argument("window is " + std::to_string(task.window));
  const auto tokens = static_cast<size_t>(task.tokens);
  if (task.query.size % tokens != 0 || task.out.size != task.query.size) {
    throw std::invalid_argument("query has " + std::to_string(task.query.size) +
                                " values and out " + std::to_string(task.out.size) + ", for " +
                                std::to_string(tokens) + " tokens");
  }
  const size_t one = task.query.size / tokens;
  const Attend last = {{task.query.data, one}, task.keys,  task.values,          task.rows,
                       {0, task.end},          task.scale, {task.out.data, one}, task.sinks};
  const AttendSizes sizes = check_attend(last);
  if (tokens > sizes.end) {
    throw std::out_of_range(std::to_string(tokens) + " tokens of " + std::to_string(sizes.end) +
                            " positions");
  }
  return {sizes, tokens, sizes.end - tokens, static_cast<size_t>(task.window)};
}

// Memory of a thread, kept until it ends.
struct PartScratch {
  LineScratch queries;
  LineScratch panel;
  LineScratch decoded;
  std::vector<float> scores;
  std::vector<float> sums;
  std::vector<float> partial;
  QuantisedInput rounded;
  AttendScratch alone;
};

// Some tokens' queries of one head of keys: vector v is token v / sharing, and of it the head
// v % sharing of those that share the keys.
class Part {
 public:
  Part(const KernelTable& table, const AttendMany& task, const ManySizes& sizes, size_t kv_head,
       size_t first, size_t end)
      : table_(table), task_(task), sizes_(sizes), kv_head_(kv_head), first_(first), end_(end) {}

  void run(PartScratch* scratch) const {
    const ProductKernel& kernel = table_.product[static_cast<size_t>(task_.rows.dtype)];
    // Where a token does not see the first position, its tiles begin elsewhere.
    const bool sees_all = sizes_.window == 0 || sizes_.before + end_ <= sizes_.window;
    if (!sees_all || kernel.rows == 0) return run_alone(scratch);
    scratch->scores.resize(std::max(scratch->scores.size(), vectors() * seen()));
    score(kernel, scratch);
    for (size_t v = 0; v < vectors(); ++v) {
      float* const scores = scratch->scores.data() + v * seen();
      for (size_t i = 0; i < seen_by(v); ++i) scores[i] *= task_.scale;
      softmax(scores, seen_by(v), sink_of(task_.sinks, head(v)));
    }
    scratch->sums.assign(vectors() * sizes_.layer.columns, 0.0F);
    // Sets that have products in tiles have sums of decoded rows.
    is_grouped(task_.rows.dtype) ? mix_each(scratch) : mix_decoded(scratch);
    for (size_t v = 0; v < vectors(); ++v) {
      std::copy_n(scratch->sums.data() + v * sizes_.layer.columns, sizes_.layer.columns,
                  task_.out.data + place(v));
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
  const uint8_t* row(View<const uint8_t> rows, size_t position) const {
    return rows.data + (kv_head_ * sizes_.layer.capacity + position) * sizes_.layer.row_bytes;
  }

  void score(const ProductKernel& kernel, PartScratch* scratch) const {
    const size_t columns = sizes_.layer.columns;
    const size_t step_bytes = kernel.steps(columns) * kernel.piece_bytes;
    const size_t vector_tile = kernel.vectors * step_bytes;
    const size_t tiles = ceil_div(vectors(), kernel.vectors);
    uint8_t* const queries = scratch->queries.room(tiles * vector_tile);
    for (size_t v = 0; v < vectors(); ++v) {
      const float* query = task_.query.data + place(v);
      const DotInput input = scratch->rounded.prepare(task_.rows.dtype, query, columns);
      kernel.pack_vector(input, v % kernel.vectors, queries + v / kernel.vectors * vector_tile);
    }
    const size_t at_once = panel_rows(kernel, kernel.rows * step_bytes);
    uint8_t* const panel =
        scratch->panel.room(ceil_div(at_once, kernel.rows) * kernel.rows * step_bytes);
    for (size_t at = 0; at < seen(); at += at_once) {
      PanelRows keys = {};
      keys.count = std::min(at_once, seen() - at);
      for (size_t r = 0; r < keys.count; ++r) keys.rows[r] = row(task_.keys, at + r);
      kernel.pack_rows(keys, columns, panel);
      for (size_t t = 0; t < tiles; ++t) {
        const size_t v = t * kernel.vectors;
        const TileVectors tile = {queries + t * vector_tile,
                                  std::min(kernel.vectors, vectors() - v), columns};
        kernel.multiply({panel, keys.count}, tile, scratch->scores.data() + v * seen() + at,
                        seen());
      }
    }
  }

  void mix_decoded(PartScratch* scratch) const {
    const size_t columns = sizes_.layer.columns;
    auto* const decoded = reinterpret_cast<float*>(
        scratch->decoded.room(kAttendTile * kDecodedColumns * sizeof(float)));
    BlockLists lists(vectors());
    for (size_t at = 0; at < seen(); at += kAttendTile) {
      const size_t count = std::min(kAttendTile, seen() - at);
      std::array<const uint8_t*, kBlockRows> values;
      for (size_t r = 0; r < count; ++r) values[r] = row(task_.values, at + r);
      for (size_t v = 0; v < vectors(); ++v) {
        const size_t here = seen_by(v) > at ? std::min(seen_by(v) - at, count) : 0;
        lists.fill_one(v, scratch->scores.data() + v * seen() + at, here);
      }
      sum_decoded(table_, task_.rows.dtype, values, count, lists, {0, columns, columns}, decoded,
                  {scratch->sums.data(), vectors(), columns});
    }
  }

  void mix_each(PartScratch* scratch) const {
    const size_t columns = sizes_.layer.columns;
    const AddFunction add = table_.add[static_cast<size_t>(task_.rows.dtype)];
    scratch->partial.resize(
        std::max(scratch->partial.size(), ceil_div(columns, kColumnUnit) * kColumnUnit));
    const auto value = [&](size_t at) { return row(task_.values, at); };
    const auto later = [&](size_t at) { return value(std::min(at + kRowsPerAdd, seen() - 1)); };
    for (size_t at = 0; at < seen(); at += kAttendTile) {
      for (size_t v = 0; v < vectors(); ++v) {
        const size_t end = std::min(at + kAttendTile, seen_by(v));
        const float* weights = scratch->scores.data() + v * seen();
        if (end <= at) continue;
        add_tile(
            add, value, later, [&](size_t i) { return weights[i]; }, at, end, columns,
            scratch->partial.data(), scratch->sums.data() + v * columns);
      }
    }
  }

  void run_alone(PartScratch* scratch) const {
    const size_t width = sizes_.layer.heads * sizes_.layer.columns;
    for (size_t t = first_; t < end_; ++t) {
      const size_t seen_end = sizes_.before + t + 1;
      const size_t hidden =
          sizes_.window != 0 && seen_end > sizes_.window ? seen_end - sizes_.window : 0;
      const Attend one = {{task_.query.data + t * width, width},
                          task_.keys,
                          task_.values,
                          task_.rows,
                          {static_cast<int64_t>(hidden), static_cast<int64_t>(seen_end)},
                          task_.scale,
                          {task_.out.data + t * width, width},
                          task_.sinks};
      const AttendSizes sizes = check_attend(one);
      scratch->alone.make_room(sizes);
      attend_heads(table_, one, sizes, kv_head_ * sizes_.sharing(),
                   (kv_head_ + 1) * sizes_.sharing(), &scratch->alone);
    }
  }

  const KernelTable& table_;
  const AttendMany& task_;
  const ManySizes& sizes_;
  size_t kv_head_;
  size_t first_;
  size_t end_;
};

PartScratch* part_scratch() {
  static thread_local PartScratch scratch;
  return &scratch;
}

}  // namespace

void Kernels::attend_many(const AttendMany& task) {
  const auto lock = enter();
  const ManySizes sizes = check_attend_many(task);
  const size_t score_bytes = kScoreBytes / static_cast<size_t>(threads_);
  const size_t fitting = std::min(kMostVectors, score_bytes / sizeof(float) / sizes.layer.end);
  const size_t at_once = std::max(fitting / sizes.sharing(), size_t{1});
  const size_t blocks = ceil_div(sizes.tokens, at_once);
  const size_t kv_heads = sizes.layer.kv_heads;
  pool_->run(static_cast<int>((Checked(blocks) * Checked(kv_heads)).get()), [&](int part) {
    // The last tokens, which see the most, come first.
    const size_t block = blocks - 1 - static_cast<size_t>(part) / kv_heads;
    const size_t first = block * at_once;
    const size_t end = std::min(first + at_once, sizes.tokens);
    Part(table_, task, sizes, static_cast<size_t>(part) % kv_heads, first, end).run(part_scratch());
  });
}

}  // namespace flash_core
