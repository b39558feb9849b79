#include "slot_table.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "nth_least.h"

namespace flash_core {

namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kPending = -2;  // in no slot, and named by the running call
constexpr double kEndless = std::numeric_limits<double>::infinity();

// What the running call says of a slot.
constexpr uint8_t kNamed = 1;
constexpr uint8_t kInFlight = kAmongInFlight;  // so that a mark tells the state

size_t positive(int64_t value, const char* name) {
  if (value < 1 || value > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value));
  }
  return static_cast<size_t>(value);
}

void check_size(const char* name, size_t size, size_t expected) {
  if (size != expected) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " values; " +
                                std::to_string(expected) + " were expected");
  }
}

// The numbers are `count` from `first` on.
void check_among(View<const int32_t> numbers, int32_t first, size_t count, const char* name) {
  const int32_t end = first + static_cast<int32_t>(count);
  bool outside = false;
  for (size_t i = 0; i < numbers.size; ++i) {
    outside |= (numbers.data[i] < first) | (numbers.data[i] >= end);
  }
  if (!outside) return;
  const int32_t wrong =
      *std::find_if(numbers.data, numbers.data + numbers.size,
                    [first, end](int32_t number) { return number < first || number >= end; });
  const std::string from = " from " + std::to_string(first) + " on";
  throw std::out_of_range(std::string(name) + " " + std::to_string(wrong) + " is not one of " +
                          std::to_string(count) + (first == 0 ? "" : from.c_str()));
}

double value_of(const double* terms, size_t n_terms, const double* scales) {
  double value = terms[0] * scales[0];
  if (n_terms == 2) value += terms[1] * scales[1];
  // What is no number has no place in an order.
  return value < kEndless ? value : kEndless;
}

}  // namespace

// Memory that is kept from call to call, one for all layers: they take turns, and what one leaves
// in the caches the next one finds there.
struct SlotTable::Scratch {
  std::vector<int32_t> ids;         // a copy: no array of a caller's is read after a check of it
  std::vector<int32_t> slots;       // of each of `ids`, before others get theirs
  std::vector<uint32_t> absent;     // positions in `ids` of those in no slot, the first n_absent
  std::vector<uint8_t> marks;       // one that stays 0, then those of the slots
  std::vector<int32_t> found;       // slots for those that are absent
  std::vector<int32_t> candidates;  // slots that may be evicted
  std::vector<double> values;       // of what is in them
  std::vector<double> order;        // the same, moved about
  size_t n_absent;
  size_t n_kept;  // slots with a mark

  void begin(size_t n_ids, size_t n_slots) {
    const auto room = [](auto* vector, size_t size) {
      if (vector->size() < size) vector->resize(size);
    };
    room(&ids, n_ids);
    room(&slots, n_ids);
    room(&absent, n_ids + 1);
    room(&found, n_slots + 1);
    room(&candidates, n_slots + 1);
    room(&values, n_slots);
    room(&order, n_slots);
    marks.assign(n_slots + 1, 0);
    n_absent = n_kept = 0;
  }

  uint8_t& mark(int32_t slot) { return marks[static_cast<size_t>(slot + 1)]; }
};

SlotTable::Scratch& SlotTable::scratch() {
  thread_local Scratch work;
  return work;
}

SlotTable::SlotTable(int64_t n_bundles, int64_t n_slots, const std::vector<int>& carried,
                     View<double> terms, int64_t first_slot)
    : first_slot_(static_cast<int32_t>(first_slot)),
      n_usable_(positive(n_slots, "n_slots")),
      n_free_(n_usable_),
      n_terms_(carried.size()),
      terms_(terms.data) {
  if (n_slots > static_cast<int64_t>(positive(n_bundles, "n_bundles"))) {
    throw std::invalid_argument("n_slots is " + std::to_string(n_slots) + " for " +
                                std::to_string(n_bundles) + " bundles");
  }
  if (n_terms_ < 1 || n_terms_ > kMaxTerms) {
    throw std::invalid_argument(std::to_string(n_terms_) + " terms; expected 1 to " +
                                std::to_string(kMaxTerms));
  }
  for (size_t t = 0; t < n_terms_; ++t) {
    if (carried[t] < -1 || carried[t] >= static_cast<int>(n_terms_)) {
      throw std::invalid_argument("carried is " + std::to_string(carried[t]));
    }
    carried_[t] = carried[t] < 0 ? n_terms_ : static_cast<size_t>(carried[t]);
  }
  if (first_slot < 0 || first_slot > std::numeric_limits<int32_t>::max() - n_slots) {
    throw std::invalid_argument("first_slot is " + std::to_string(first_slot));
  }
  check_size("terms", terms.size, static_cast<size_t>(n_bundles) * n_terms_);
  slot_of_.assign(static_cast<size_t>(n_bundles), kNone);
  bundle_in_.assign(n_free_, kNone);
  prefetched_ids_.assign(n_free_, 0);
  prefetched_slots_.assign(n_free_, 0);
}

void SlotTable::clear() {
  std::fill(slot_of_.begin(), slot_of_.end(), kNone);
  std::fill(bundle_in_.begin(), bundle_in_.end(), kNone);
  n_free_ = n_usable_;
}

void SlotTable::limit(int64_t count) {
  if (count < 1 || static_cast<uint64_t>(count) > bundle_in_.size()) {
    throw std::invalid_argument("limit is " + std::to_string(count) + " of " +
                                std::to_string(bundle_in_.size()) + " slots");
  }
  n_usable_ = static_cast<size_t>(count);
  for (size_t slot = n_usable_; slot < bundle_in_.size(); ++slot) {
    if (bundle_in_[slot] >= 0) evict_slot(slot);
  }
  const auto usable_end = bundle_in_.begin() + count;
  n_free_ = static_cast<size_t>(std::count(bundle_in_.begin(), usable_end, kNone));
}

void SlotTable::check_ids(View<const int32_t> ids, const char* name) const {
  check_among(ids, 0, slot_of_.size(), name);
}

// Marks the slots of ids, and as pending those that are in none; nothing where an id comes twice.
// Whether an id is in a slot can not be predicted, so the long loops do not branch on it; the first
// one stores nothing that it loads, so that many loads are under way at once.
void SlotTable::find(View<const int32_t> ids, Scratch* work) {
  const int32_t* slot_of = slot_of_.data();
  int32_t* copies = work->ids.data();
  int32_t* slots = work->slots.data();
  uint32_t* absent = work->absent.data();
  uint8_t* marks = work->marks.data() + 1;  // the one in front is of all that are in no slot
  size_t n_absent = 0;
  for (size_t i = 0; i < ids.size; ++i) {
    const int32_t id = ids.data[i];
    const int32_t slot = slot_of[id];
    copies[i] = id;
    slots[i] = slot;
    absent[n_absent] = static_cast<uint32_t>(i);
    n_absent += static_cast<size_t>(slot < 0);
  }
  size_t n_kept = work->n_kept;
  uint8_t twice = 0;
  for (size_t i = 0; i < ids.size; ++i) {
    const int32_t slot = slots[i];
    const uint8_t mark = marks[slot];
    const auto in_slot = static_cast<uint8_t>(slot >= 0);
    marks[slot] = mark | (in_slot * kNamed);
    twice |= mark & kNamed;
    n_kept += in_slot & static_cast<uint8_t>(mark == 0);
  }
  work->n_kept = n_kept;
  for (size_t j = 0; j < n_absent && twice == 0; ++j) {
    int32_t& slot = slot_of_[static_cast<size_t>(copies[absent[j]])];
    twice = static_cast<uint8_t>(slot == kPending);
    slot = kPending;
    work->n_absent = j + 1;
  }
  if (twice == 0) return;
  forget_pending(0, *work);
  throw std::invalid_argument("an id comes twice");
}

void SlotTable::forget_pending(size_t first, const Scratch& work) {
  for (size_t j = first; j < work.n_absent; ++j) {
    slot_of_[static_cast<size_t>(work.ids[work.absent[j]])] = kNone;
  }
}

template <size_t n_terms>
void SlotTable::use(size_t count, const Worth& worth, const Scratch& work) const {
  const std::array<size_t, kMaxTerms> carried = carried_;
  std::array<double, kMaxTerms> added = {};
  std::copy_n(worth.added.begin(), n_terms, added.begin());
  for (size_t i = 0; i < count; ++i) {
    double* terms = terms_ + static_cast<size_t>(work.ids[i]) * n_terms;
    std::array<double, n_terms + 1> old = {};  // the last one is what comes of none
    std::copy_n(terms, n_terms, old.begin());
    for (size_t t = 0; t < n_terms; ++t) terms[t] = old[carried[t]] + added[t];
  }
}

void SlotTable::evict_slot(size_t slot) {
  slot_of_[static_cast<size_t>(bundle_in_[slot])] = kNone;
  bundle_in_[slot] = kNone;
  ++n_free_;
}

void SlotTable::evict_expired(const Worth& worth, const Scratch& work) {
  for (size_t slot = 0; slot < bundle_in_.size(); ++slot) {
    if (bundle_in_[slot] < 0 || work.marks[slot + 1] != 0) continue;
    const auto bundle = static_cast<size_t>(bundle_in_[slot]);
    const double value = value_of(terms_ + bundle * n_terms_, n_terms_, worth.scales.data());
    if (value <= worth.expired) evict_slot(slot);
  }
}

// The slots that hold what may be evicted: nothing the running call named.
size_t SlotTable::find_candidates(Scratch* work) const {
  const int32_t* bundle_in = bundle_in_.data();
  const uint8_t* marks = work->marks.data() + 1;
  int32_t* candidates = work->candidates.data();
  size_t n = 0;
  for (size_t slot = 0; slot < n_usable_; ++slot) {
    candidates[n] = static_cast<int32_t>(slot);
    n += static_cast<size_t>(bundle_in[slot] >= 0) & static_cast<size_t>(marks[slot] == 0);
  }
  return n;
}

// Finds slots for the first `count` of what is absent: free ones, then those of the bundles without
// a mark that are worth least, which are evicted. Both in order of the slots, those worth the same
// as the most valuable of them last. Returns how many were evicted.
size_t SlotTable::take(size_t count, const std::vector<double>& scales, Scratch* work) {
  const size_t n_free = std::min(count, n_free_);
  size_t found = 0;
  for (size_t slot = 0; found < n_free; ++slot) {
    if (bundle_in_[slot] < 0) work->found[found++] = static_cast<int32_t>(slot);
  }
  const size_t taken = count - n_free;
  if (taken == 0) return 0;
  const size_t n = find_candidates(work);
  double* values = work->values.data();
  for (size_t i = 0; i < n; ++i) {
    const auto bundle = static_cast<size_t>(bundle_in_[static_cast<size_t>(work->candidates[i])]);
    values[i] = value_of(terms_ + bundle * n_terms_, n_terms_, scales.data());
  }
  std::copy_n(values, n, work->order.data());
  const double last = nth_least(work->order.data(), n, taken - 1);
  int32_t* into = work->found.data();
  for (size_t i = 0; i < n; ++i) {
    into[found] = work->candidates[i];
    found += static_cast<size_t>(values[i] < last);
  }
  for (size_t i = 0; found < count; ++i) {
    if (values[i] == last) into[found++] = work->candidates[i];
  }
  for (size_t j = n_free; j < count; ++j) evict_slot(static_cast<size_t>(work->found[j]));
  return taken;
}

// The first `count` of what is absent into the slots that were found for them.
void SlotTable::fill(size_t count, const Scratch& work) {
  for (size_t j = 0; j < count; ++j) {
    const int32_t id = work.ids[work.absent[j]];
    slot_of_[static_cast<size_t>(id)] = work.found[j];
    bundle_in_[static_cast<size_t>(work.found[j])] = id;
  }
  n_free_ -= count;
}

Counts SlotTable::acquire(View<const int32_t> ids, View<const int32_t> in_flight,
                          const Worth& worth, const Claimed& out) {
  check_size("scales", worth.scales.size(), n_terms_);
  check_size("added", worth.added.size(), n_terms_);
  check_size("slots", out.slots.size, ids.size);
  check_size("states", out.states.size, ids.size);
  check_ids(ids, "id");
  check_ids(in_flight, "id in flight");
  Scratch& work = scratch();
  work.begin(ids.size, bundle_in_.size());
  for (size_t i = 0; i < in_flight.size; ++i) {
    const int32_t slot = slot_of_[static_cast<size_t>(in_flight.data[i])];
    if (slot < 0) {
      throw std::invalid_argument("id in flight " + std::to_string(in_flight.data[i]) +
                                  " is in no slot");
    }
    work.n_kept += static_cast<size_t>(work.mark(slot) == 0);
    work.mark(slot) = kInFlight;
  }
  find(ids, &work);
  if (work.n_kept + work.n_absent > n_usable_) {
    forget_pending(0, work);
    throw std::invalid_argument(std::to_string(work.n_kept + work.n_absent) +
                                " bundles are needed at once in " + std::to_string(n_usable_) +
                                " slots");
  }
  if (n_terms_ == 1) {
    use<1>(ids.size, worth, work);
  } else {
    use<kMaxTerms>(ids.size, worth, work);
  }
  if (worth.expired > -kEndless) evict_expired(worth, work);
  const size_t evicted_early = take(work.n_absent, worth.scales, &work);
  size_t n_in_flight = 0;
  for (size_t i = 0; i < ids.size; ++i) {
    const int32_t slot = work.slots[i];
    const auto in_flight_too = static_cast<uint8_t>(work.mark(slot) & kInFlight);
    out.slots.data[i] = slot + first_slot_;
    out.states.data[i] = static_cast<uint8_t>(in_flight_too | (slot < 0 ? kMissing : kHere));
    n_in_flight += static_cast<size_t>(in_flight_too != 0);
  }
  for (size_t j = 0; j < work.n_absent; ++j) {
    out.slots.data[work.absent[j]] = work.found[j] + first_slot_;
  }
  fill(work.n_absent, work);
  return {work.n_absent, n_in_flight, evicted_early};
}

Prefetched SlotTable::prefetch(View<const int32_t> ids, const std::vector<double>& scales) {
  check_size("scales", scales.size(), n_terms_);
  check_ids(ids, "id");
  Scratch& work = scratch();
  work.begin(ids.size, bundle_in_.size());
  find(ids, &work);
  const size_t count = std::min(work.n_absent, n_usable_ - work.n_kept);
  forget_pending(count, work);
  const size_t taken = take(count, scales, &work);
  fill(count, work);
  for (size_t j = 0; j < count; ++j) {
    prefetched_ids_[j] = work.ids[work.absent[j]];
    prefetched_slots_[j] = work.found[j] + first_slot_;
  }
  return {count, taken};
}

void SlotTable::put(View<const int32_t> ids, View<const int32_t> slots) {
  check_size("slots", slots.size, ids.size);
  check_ids(ids, "id");
  check_among(slots, first_slot_, bundle_in_.size(), "slot");
  for (size_t i = 0; i < ids.size; ++i) {
    int32_t& slot = slot_of_[static_cast<size_t>(ids.data[i])];
    int32_t& bundle = bundle_in_[index_of(slots.data[i])];
    if (slot != kNone || bundle != kNone || index_of(slots.data[i]) >= n_usable_) {
      throw std::invalid_argument("id " + std::to_string(ids.data[i]) + " is in a slot, or slot " +
                                  std::to_string(slots.data[i]) + " is taken");
    }
    slot = slots.data[i] - first_slot_;
    bundle = ids.data[i];
    --n_free_;
  }
}

void SlotTable::evict(View<const int32_t> slots) {
  check_among(slots, first_slot_, bundle_in_.size(), "slot");
  for (size_t i = 0; i < slots.size; ++i) {
    const size_t slot = index_of(slots.data[i]);
    if (bundle_in_[slot] >= 0) evict_slot(slot);
  }
}

}  // namespace flash_core
