// Which bundle of a layer is in which slot, and which bundles give way to others: the least
// valuable, where the value of a bundle is a weighted sum of a few numbers, its terms.
//
// Goals: one pass over the ids and one over the slots for each decision of a token; the same slots
// for the same calls, ties included; wrong ids change nothing. Not goals: what terms mean, bytes.
// Threads: one caller at a time.
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
  View<double> terms;          // [n_bundles, n_terms]
  std::vector<double> scales;  // a value is the sum of scales[t] * terms[t]
  std::vector<double> added;   // by a use to each term, once it was carried
  double expired;              // bundles worth this or less are given up though nothing needs slots
};

// What a claim tells of each id.
struct Claimed {
  View<int32_t> slots;
  View<bool> missing;    // it has to be read into its slot
  View<bool> in_flight;  // it was given among those in flight
};

struct Counts {
  size_t missing;
  size_t in_flight;
  size_t spilled;  // given up although they had not expired
};

// The first `count` of what a prefetch wrote, of which `taken` slots were given up by others.
struct Prefetched {
  size_t count;
  size_t taken;
};

class SlotTable {
 public:
  // A use gives term t what term carried[t] was, or 0 where that is -1, plus what is added.
  SlotTable(int64_t n_bundles, int64_t n_slots, const std::vector<int>& carried);

  View<const int32_t> slot_of() const { return {slot_of_.data(), slot_of_.size()}; }
  View<const int32_t> bundle_in() const { return {bundle_in_.data(), bundle_in_.size()}; }
  size_t free_slots() const { return n_free_; }

  // Uses distinct ids: those in no slot get one. Bundles in flight, which are in slots, keep them.
  // out_of_range for ids of no bundle, invalid_argument for ids twice and for more of all together
  // than there are slots.
  Counts claim(View<const int32_t> ids, View<const int32_t> in_flight, const Worth& worth,
               const Claimed& out);

  // Slots for as many of the distinct ids in none as fit beside those that are in one, the first
  // ones; nothing is used. Writes the ids that got one, and their slots, both with room for all.
  Prefetched prefetch(View<const int32_t> ids, View<const double> terms,
                      const std::vector<double>& scales, View<int32_t> out_ids,
                      View<int32_t> out_slots);

  // Bundles that are in no slot into free slots; invalid_argument at the first that is or is not.
  void put(View<const int32_t> ids, View<const int32_t> slots);
  // Free slots stay so.
  void give_up(View<const int32_t> slots);
  void clear();

 private:
  struct Scratch;
  static Scratch& scratch();

  void check_ids(View<const int32_t> ids, const char* name) const;
  void check_worth(size_t terms, size_t scales) const;
  void find(View<const int32_t> ids, Scratch* work);
  void forget_pending(size_t first, const Scratch& work);
  template <size_t n_terms>
  void use(size_t count, const Worth& worth, const Scratch& work) const;
  void give_up_expired(const Worth& worth, const Scratch& work);
  size_t find_candidates(Scratch* work) const;
  size_t take(size_t count, const double* terms, const std::vector<double>& scales, Scratch* work);
  void fill(size_t count, const Scratch& work);
  void give_up_slot(size_t slot);

  std::vector<int32_t> slot_of_;    // of each bundle
  std::vector<int32_t> bundle_in_;  // of each slot
  size_t n_free_;
  size_t n_terms_;
  std::array<size_t, kMaxTerms> carried_ = {};  // n_terms_ stands for none
};

}  // namespace flash_core
