// Which bundle of a layer is in which slot, and which bundles give way to others: the least
// valuable, where the value of a bundle is a weighted sum of a few numbers, its terms.
//
// Goals: one pass over the ids and one over the slots for each decision of a token; the same slots
// for the same calls, ties included; wrong ids change nothing. Not goals: what terms mean, bytes.
// Threads: one caller at a time. Slots are numbered from the table's first one on, which is where
// the layer begins among those of all layers; in the table itself they are counted from 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "view.h"

namespace flash_core {

constexpr size_t kMaxTerms = 2;

// What bundles are worth at a token, and what using them changes.
struct Worth {
  std::vector<double> scales;  // a value is the sum of scales[t] * terms[t]
  std::vector<double> added;   // by a use to each term, once it was carried
  double expired;              // bundles worth this or less are evicted though nothing needs slots
};

// Where a acquisition found a bundle.
constexpr uint8_t kHere = 0;
constexpr uint8_t kMissing = 1;        // it has to be read into its slot
constexpr uint8_t kAmongInFlight = 2;  // it was given among those in flight

// What a acquisition tells of each id.
struct Claimed {
  View<int32_t> slots;
  View<uint8_t> states;
};

struct Counts {
  size_t missing;
  size_t in_flight;
  size_t evicted_early;  // evicted although they had not expired
};

// The first `count` of what is prefetched, of which `taken` slots were evicted.
struct Prefetched {
  size_t count;
  size_t taken;
};

class SlotTable {
 public:
  // A use gives term t what term carried[t] was, or 0 where that is -1, plus what is added. The
  // terms [n_bundles, n_terms] stay the caller's, who may change them between calls.
  SlotTable(int64_t n_bundles, int64_t n_slots, const std::vector<int>& carried, View<double> terms,
            int64_t first_slot);

  View<const int32_t> slot_of() const { return {slot_of_.data(), slot_of_.size()}; }
  View<const int32_t> bundle_in() const { return {bundle_in_.data(), bundle_in_.size()}; }
  size_t free_slots() const { return n_free_; }
  // Room for as many as there are slots, of which the last prefetch wrote the first ones.
  View<const int32_t> prefetched_ids() const {
    return {prefetched_ids_.data(), prefetched_ids_.size()};
  }
  View<const int32_t> prefetched_slots() const {
    return {prefetched_slots_.data(), prefetched_slots_.size()};
  }

  // Uses distinct ids: those in no slot get one. Bundles in flight, which are in slots, keep them.
  // out_of_range for ids of no bundle, invalid_argument for ids twice and for more of all together
  // than there are slots.
  Counts acquire(View<const int32_t> ids, View<const int32_t> in_flight, const Worth& worth,
                 const Claimed& out);

  // Slots for as many of the distinct ids in none as fit beside those that are in one, the first
  // ones; nothing is used. Which they are `prefetched_ids` and `prefetched_slots` tell.
  Prefetched prefetch(View<const int32_t> ids, const std::vector<double>& scales);

  // Bundles that are in no slot into free slots; invalid_argument at the first that is or is not.
  void put(View<const int32_t> ids, View<const int32_t> slots);
  // Free slots stay so.
  void evict(View<const int32_t> slots);
  void clear();
  // From now on only the first `count` slots get bundles. What is in the others is evicted, and
  // they are not free either, until a call allows them again. invalid_argument where there are not
  // so many.
  void limit(int64_t count);

 private:
  struct Scratch;
  static Scratch& scratch();

  void check_ids(View<const int32_t> ids, const char* name) const;
  size_t index_of(int32_t slot) const { return static_cast<size_t>(slot - first_slot_); }
  void find(View<const int32_t> ids, Scratch* work);
  void forget_pending(size_t first, const Scratch& work);
  template <size_t n_terms>
  void use(size_t count, const Worth& worth, const Scratch& work) const;
  void evict_expired(const Worth& worth, const Scratch& work);
  size_t find_candidates(Scratch* work) const;
  size_t take(size_t count, const std::vector<double>& scales, Scratch* work);
  void fill(size_t count, const Scratch& work);
  void evict_slot(size_t slot);

  std::vector<int32_t> slot_of_;    // of each bundle
  std::vector<int32_t> bundle_in_;  // of each slot
  std::vector<int32_t> prefetched_ids_;
  std::vector<int32_t> prefetched_slots_;
  int32_t first_slot_;
  size_t n_usable_;  // the first ones; the others are lent
  size_t n_free_;    // of these
  size_t n_terms_;
  double* terms_;
  std::array<size_t, kMaxTerms> carried_ = {};  // n_terms_ stands for none
};

}  // namespace flash_core
