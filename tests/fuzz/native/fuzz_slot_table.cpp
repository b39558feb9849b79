// Calls of a table of slots in any order, with right and wrong ids: what is refused changes
// nothing, a bundle is in one slot, and nothing more valuable gives way to something less so.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>

#include "fuzz_input.h"
#include "slot_table.h"

using namespace flash_core;

namespace {

constexpr int64_t kBundlesMax = 60;
constexpr size_t kIdsMax = 40;
constexpr int kCallsMax = 40;
constexpr int32_t kNone = -1;

template <class T>
View<const T> view_of(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

std::vector<int32_t> copied(View<const int32_t> view) { return {view.data, view.data + view.size}; }

// The table, and what is known of it from outside.
class Machine {
 public:
  explicit Machine(FuzzInput* input) : input_(input) {
    n_bundles_ = input->within(1, kBundlesMax);
    n_slots_ = input->within(1, n_bundles_);
    first_slot_ = input->byte() % 4 == 0 ? input->within(0, 100000) : 0;
    n_terms_ = input->size_within(1, kMaxTerms);
    for (size_t t = 0; t < n_terms_; ++t) {
      carried_.push_back(static_cast<int>(input->within(-1, static_cast<int64_t>(n_terms_) - 1)));
    }
    terms_.assign(static_cast<size_t>(n_bundles_) * n_terms_, 0.0);
    for (double& term : terms_) term = static_cast<double>(input->byte() % 8);
    usable_ = static_cast<size_t>(n_slots_);
    table_ = std::make_unique<SlotTable>(n_bundles_, n_slots_, carried_,
                                         View<double>{terms_.data(), terms_.size()}, first_slot_);
  }

  void run() {
    const int calls = static_cast<int>(input_->within(0, kCallsMax));
    for (int i = 0; i < calls; ++i) {
      const std::vector<int32_t> before = copied(table_->slot_of());
      const std::vector<double> terms = terms_;
      bool is_refused = false;
      const uint8_t kind = input_->byte() % 8;
      try {
        call(kind);
      } catch (const std::invalid_argument&) {
        is_refused = true;
      } catch (const std::out_of_range&) {
        is_refused = true;
      }
      check_consistent();
      // Putting stops at the first that is wrong, so what came before it is there.
      if (is_refused && kind != kPut) REQUIRE(copied(table_->slot_of()) == before);
      if (is_refused) REQUIRE(std::memcmp(terms_.data(), terms.data(), terms.size() * 8) == 0);
    }
  }

 private:
  static constexpr uint8_t kPut = 4;

  void call(uint8_t kind) {
    switch (kind) {
      case 0:
      case 1:
        acquire();
        break;
      case 2:
      case 3:
        prefetch();
        break;
      case kPut:
        put();
        break;
      case 5: {
        const std::vector<int32_t> slots = some_slots();
        table_->evict(view_of(slots));
        break;
      }
      case 6: {
        const int64_t count = input_->byte() % 8 == 0 ? input_->any() : input_->within(1, n_slots_);
        table_->limit(count);
        usable_ = static_cast<size_t>(count);
        break;
      }
      default:
        if (input_->byte() % 4 == 0) table_->clear();
    }
  }

  // Distinct and right as a rule.
  std::vector<int32_t> some_ids() {
    const size_t count = input_->size_within(0, std::min<size_t>(kIdsMax, usable_ + 2));
    const bool is_wrong = input_->byte() % 16 == 15;
    std::vector<int32_t> ids;
    std::set<int32_t> seen;
    for (size_t i = 0; i < count; ++i) {
      auto id = static_cast<int32_t>(input_->within(0, n_bundles_ - 1));
      if (is_wrong && input_->byte() % 8 == 7) id = static_cast<int32_t>(input_->any());
      if (seen.insert(id).second || is_wrong) ids.push_back(id);
    }
    return ids;
  }

  std::vector<int32_t> some_slots() {
    const size_t count = input_->size_within(0, 9);
    std::vector<int32_t> slots;
    for (size_t i = 0; i < count; ++i) {
      const int64_t slot = first_slot_ + input_->within(0, n_slots_ - 1);
      slots.push_back(static_cast<int32_t>(input_->byte() % 32 == 31 ? input_->any() : slot));
    }
    return slots;
  }

  std::vector<double> some_scales() {
    std::vector<double> scales;
    for (size_t t = 0; t < n_terms_; ++t) {
      const uint8_t kind = input_->byte();
      const double whole = static_cast<double>(kind % 16) / 4;
      scales.push_back(kind == 255 ? NAN : kind == 254 ? INFINITY : whole);
    }
    return scales;
  }

  // Of the table's order: what is no number is worth most.
  static double value_of(const std::vector<double>& terms, size_t bundle, size_t n_terms,
                         const std::vector<double>& scales) {
    double value = terms[bundle * n_terms] * scales[0];
    if (n_terms == 2) value += terms[bundle * n_terms + 1] * scales[1];
    return value < INFINITY ? value : INFINITY;
  }

  // None of those that gave way is worth more than one that stayed and might have gone.
  void check_order(const std::vector<int32_t>& before, const std::set<int32_t>& named,
                   const std::vector<double>& scales, double expired) {
    double most_gone = -INFINITY;
    double least_kept = INFINITY;
    const std::vector<int32_t> now = copied(table_->slot_of());
    for (size_t bundle = 0; bundle < before.size(); ++bundle) {
      if (before[bundle] < 0 || named.count(static_cast<int32_t>(bundle)) != 0) continue;
      const double value = value_of(terms_, bundle, n_terms_, scales);
      if (now[bundle] >= 0) {
        REQUIRE(now[bundle] == before[bundle]);
        least_kept = std::min(least_kept, value);
      } else if (value > expired) {
        most_gone = std::max(most_gone, value);
      }
    }
    REQUIRE(most_gone <= least_kept);
  }

  void acquire() {
    const std::vector<int32_t> ids = some_ids();
    std::vector<int32_t> in_flight;
    const std::vector<int32_t> before = copied(table_->slot_of());
    for (const int32_t id : some_ids()) {
      const bool is_there = id >= 0 && id < n_bundles_ && before[static_cast<size_t>(id)] >= 0;
      if (is_there || input_->byte() % 16 == 15) in_flight.push_back(id);
    }
    Worth worth = {some_scales(), some_scales(), -INFINITY};
    if (input_->flag()) worth.expired = static_cast<double>(input_->byte() % 8) / 4;
    std::vector<int32_t> slots(ids.size() + (input_->byte() % 64 == 63 ? 1 : 0), 77);
    std::vector<uint8_t> states(ids.size());
    const size_t free_before = table_->free_slots();
    const Counts counts =
        table_->acquire(view_of(ids), view_of(in_flight), worth,
                        {{slots.data(), slots.size()}, {states.data(), states.size()}});
    std::set<int32_t> named(ids.begin(), ids.end());
    REQUIRE(named.size() == ids.size());
    size_t missing = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<size_t>(ids[i]);
      REQUIRE(slots[i] == table_->slot_of().data[id] + first_slot_);
      REQUIRE((states[i] == kMissing) == (before[id] < 0));
      REQUIRE(before[id] < 0 || slots[i] == before[id] + first_slot_);
      missing += static_cast<size_t>(states[i] == kMissing);
    }
    REQUIRE(counts.missing == missing && counts.evicted_early <= missing);
    REQUIRE(counts.missing <= free_before + usable_);
    for (const int32_t id : in_flight) {
      REQUIRE(table_->slot_of().data[id] == before[static_cast<size_t>(id)]);
    }
    named.insert(in_flight.begin(), in_flight.end());
    check_order(before, named, worth.scales, worth.expired);
  }

  void prefetch() {
    const std::vector<int32_t> ids = some_ids();
    const std::vector<double> scales = some_scales();
    const std::vector<int32_t> before = copied(table_->slot_of());
    const Prefetched done = table_->prefetch(view_of(ids), scales);
    REQUIRE(done.taken <= done.count && done.count <= usable_);
    size_t next = 0;
    for (const int32_t id : ids) {
      const auto at = static_cast<size_t>(id);
      if (before[at] >= 0) {
        REQUIRE(table_->slot_of().data[at] == before[at]);
        continue;
      }
      if (next == done.count) continue;
      REQUIRE(table_->prefetched_ids().data[next] == id);
      REQUIRE(table_->prefetched_slots().data[next] == table_->slot_of().data[at] + first_slot_);
      ++next;
    }
    REQUIRE(next == done.count);
    check_order(before, {ids.begin(), ids.end()}, scales, -INFINITY);
  }

  void put() {
    std::vector<int32_t> ids = some_ids();
    const std::vector<int32_t> slots = some_slots();
    if (input_->byte() % 8 != 0) ids.resize(std::min(ids.size(), slots.size()));
    table_->put(view_of(ids), {slots.data(), std::min(ids.size(), slots.size())});
  }

  // Slots and bundles name each other, and free ones are counted.
  void check_consistent() const {
    const std::vector<int32_t> slot_of = copied(table_->slot_of());
    const std::vector<int32_t> bundle_in = copied(table_->bundle_in());
    REQUIRE(slot_of.size() == static_cast<size_t>(n_bundles_));
    REQUIRE(bundle_in.size() == static_cast<size_t>(n_slots_));
    size_t taken = 0;
    for (size_t bundle = 0; bundle < slot_of.size(); ++bundle) {
      const int32_t slot = slot_of[bundle];
      if (slot == kNone) continue;
      REQUIRE(slot >= 0 && static_cast<size_t>(slot) < usable_);
      REQUIRE(bundle_in[static_cast<size_t>(slot)] == static_cast<int32_t>(bundle));
      ++taken;
    }
    REQUIRE(table_->free_slots() == usable_ - taken);
    const auto empty = std::count(bundle_in.begin(), bundle_in.end(), kNone);
    REQUIRE(bundle_in.size() - static_cast<size_t>(empty) == taken);
  }

  FuzzInput* input_;
  int64_t n_bundles_;
  int64_t n_slots_;
  int64_t first_slot_;
  size_t n_terms_;
  std::vector<int> carried_;
  std::vector<double> terms_;
  size_t usable_;
  std::unique_ptr<SlotTable> table_;
};

// A table of sizes that make no sense is refused, and allocates nothing for them.
void check_sizes(FuzzInput* input) {
  std::vector<double> terms(input->size_within(0, 200));
  std::vector<int> carried;
  for (size_t i = input->size_within(0, 3); i > 0; --i) {
    carried.push_back(static_cast<int>(input->within(-3, 3)));
  }
  const int64_t n_bundles = input->flag() ? input->any() : input->within(-1, 100);
  const int64_t n_slots = input->flag() ? input->any() : input->within(-1, 100);
  const int64_t first_slot = input->flag() ? input->any() : 0;
  bool is_valid = n_slots >= 1 && n_slots <= n_bundles && !carried.empty() &&
                  carried.size() <= kMaxTerms && first_slot >= 0 &&
                  first_slot <= INT32_MAX - n_slots &&
                  terms.size() / carried.size() == static_cast<size_t>(n_bundles) &&
                  terms.size() % carried.size() == 0;
  for (const int one : carried) is_valid &= one >= -1 && one < static_cast<int>(carried.size());
  try {
    const SlotTable table(n_bundles, n_slots, carried, {terms.data(), terms.size()}, first_slot);
    REQUIRE(is_valid && table.free_slots() == static_cast<size_t>(n_slots));
  } catch (const std::invalid_argument&) {
    REQUIRE(!is_valid);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.byte() % 8 == 0) {
    check_sizes(&input);
  } else {
    Machine(&input).run();
  }
  return 0;
}
