// The table of slots against plain loops that sort; what is wrong changes nothing.
#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "slot_table.h"
#include "testing.h"

using namespace flash_core;

namespace {

using Ids = std::vector<int32_t>;

constexpr double kNothingExpires = -std::numeric_limits<double>::infinity();

View<const int32_t> view(const Ids& ids) { return {ids.data(), ids.size()}; }

struct Outcome {
  explicit Outcome(size_t n) : slots(n), states(n) {}

  size_t count(uint8_t state) const {
    return static_cast<size_t>(std::count(states.begin(), states.end(), state));
  }

  Ids slots;
  std::vector<uint8_t> states;
  Counts counts = {};
};

// A table with two terms: the token of the last use, and what was there at the start.
struct Layer {
  Layer(int64_t n_bundles, int64_t n_slots, int32_t first_slot = 0)
      : first(first_slot),
        terms(terms_of(n_bundles)),
        table(n_bundles, n_slots, {-1, 1}, {terms.data(), terms.size()}, first_slot) {}

  static std::vector<double> terms_of(int64_t n_bundles) {
    std::vector<double> terms;
    for (int64_t id = 0; id < n_bundles; ++id) {
      terms.push_back(-100);
      terms.push_back(static_cast<double>(id % 3) / 4);
    }
    return terms;
  }

  Outcome acquire(const Ids& ids, double token, const Ids& in_flight = {},
                  double expired = kNothingExpires) {
    Outcome out(ids.size());
    out.counts = table.acquire(view(ids), view(in_flight), {{1, 1}, {token, 0}, expired},
                               {{out.slots.data(), ids.size()}, {out.states.data(), ids.size()}});
    return out;
  }

  Ids prefetch(const Ids& ids) {
    const Prefetched done = table.prefetch(view(ids), {1, 1});
    Ids found(table.prefetched_ids().data, table.prefetched_ids().data + done.count);
    for (size_t i = 0; i < done.count; ++i) {
      CHECK(slot_of(found[i]) + first == table.prefetched_slots().data[i]);
    }
    return found;
  }

  int32_t slot_of(int32_t id) const { return table.slot_of().data[id]; }
  double value(int32_t id) const {
    return terms[static_cast<size_t>(id) * 2] + terms[static_cast<size_t>(id) * 2 + 1];
  }

  std::set<int32_t> resident() const {
    std::set<int32_t> ids;
    for (size_t slot = 0; slot < table.bundle_in().size; ++slot) {
      const int32_t id = table.bundle_in().data[slot];
      if (id < 0) continue;
      CHECK(slot_of(id) == static_cast<int32_t>(slot));
      CHECK(ids.insert(id).second);
    }
    const View<const int32_t> slots = table.slot_of();
    CHECK(std::count_if(slots.data, slots.data + slots.size, [](int32_t s) { return s >= 0; }) ==
          static_cast<std::ptrdiff_t>(ids.size()));
    CHECK(table.free_slots() == table.bundle_in().size - ids.size());
    return ids;
  }

  int32_t first;
  std::vector<double> terms;
  SlotTable table;
};

Ids some(int32_t n_bundles, size_t count, std::mt19937* random) {
  Ids ids;
  for (int32_t id = 0; id < n_bundles; ++id) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), *random);
  ids.resize(count);
  return ids;
}

}  // namespace

TEST(slots_go_to_what_is_needed_and_the_least_valuable_give_way) {
  std::mt19937 random(3);
  for (const int32_t n_bundles : {1, 40, 700}) {
    const auto n_slots = static_cast<size_t>(n_bundles / 2 + 1);
    Layer layer(n_bundles, static_cast<int64_t>(n_slots), n_bundles % 3 * 100);
    for (int token = 0; token < 40; ++token) {
      Ids flying;
      if (random() % 2 == 0) flying = layer.prefetch(some(n_bundles, random() % n_slots, &random));
      const size_t room = n_slots - flying.size();
      const Ids ids = some(n_bundles, random() % (room + 1), &random);
      const std::set<int32_t> before = layer.resident();
      std::set<int32_t> named(ids.begin(), ids.end());
      named.insert(flying.begin(), flying.end());
      std::vector<double> values;
      for (const int32_t id : before) {
        if (named.count(id) == 0) values.push_back(layer.value(id));
      }
      std::sort(values.begin(), values.end());
      const Outcome out = layer.acquire(ids, token, flying);
      const std::set<int32_t> after = layer.resident();
      std::vector<double> lost;
      for (const int32_t id : before) {
        if (after.count(id) == 0) lost.push_back(layer.value(id));
      }
      std::sort(lost.begin(), lost.end());
      CHECK(out.counts.missing == out.count(kMissing));
      CHECK(out.counts.in_flight == out.count(kAmongInFlight));
      CHECK(lost.size() == out.counts.evicted_early);
      CHECK(std::equal(lost.begin(), lost.end(), values.begin()));
      for (const int32_t id : named) CHECK(after.count(id) == 1);
      for (size_t i = 0; i < ids.size(); ++i) {
        CHECK(layer.slot_of(ids[i]) + layer.first == out.slots[i]);
        const uint8_t here =
            std::count(flying.begin(), flying.end(), ids[i]) == 1 ? kAmongInFlight : kHere;
        CHECK(out.states[i] == (before.count(ids[i]) == 0 ? kMissing : here));
        CHECK(layer.terms[static_cast<size_t>(ids[i]) * 2] == token);
      }
    }
  }
}

TEST(slots_of_equals_are_given_up_in_their_order) {
  Layer layer(600, 300);
  Ids ids;
  for (int32_t id = 0; id < 300; ++id) ids.push_back(id);
  layer.acquire(ids, 0);
  for (double& term : layer.terms) term = 5;
  for (size_t id = 0; id < 300; id += 2) layer.terms[id * 2] = 4;
  CHECK(layer.acquire({400, 401, 402}, 8).slots == (Ids{0, 2, 4}));
  layer.acquire({300}, 9);
  CHECK(layer.slot_of(300) == 6);
}

TEST(slots_that_expired_are_free_before_others_are_taken) {
  Layer layer(12, 4);
  layer.acquire({0, 1, 2, 3}, 0);
  layer.acquire({0, 3}, 1);
  const Outcome out = layer.acquire({7}, 2, {2}, 0.75);
  CHECK(out.counts.evicted_early == 0);
  CHECK(out.slots == Ids{1});
  CHECK(layer.resident() == (std::set<int32_t>{0, 2, 3, 7}));
}

TEST(slots_beyond_a_limit_hold_nothing) {
  Layer layer(40, 10, 7);
  Ids ids(10);
  for (int round = 0; round < 40; ++round) {
    const int64_t limit = 1 + round * 7 % 10;
    layer.table.limit(limit);
    for (int64_t slot = limit; slot < 10; ++slot) CHECK(layer.table.bundle_in().data[slot] < 0);
    const Ids guessed = layer.prefetch({round % 40, (round + 3) % 40, (round + 9) % 40});
    CHECK(guessed.size() <= static_cast<size_t>(limit));
    ids.resize(static_cast<size_t>(limit));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = (round * 3 + static_cast<int32_t>(i)) % 40;
    const Outcome out = layer.acquire(ids, round);
    for (const int32_t slot : out.slots) CHECK(slot >= 7 && slot < 7 + limit);
    CHECK(layer.table.free_slots() == 0);
  }
  layer.table.limit(10);
  layer.table.clear();
  CHECK(layer.table.free_slots() == 10);
}

TEST(slots_worth_no_number_are_given_up_last) {
  Layer layer(200, 100);
  Ids ids;
  for (int32_t id = 0; id < 100; ++id) ids.push_back(id);
  layer.acquire(ids, 0);
  for (size_t id = 0; id < 100; id += 2) {
    layer.terms[id * 2] = std::numeric_limits<double>::quiet_NaN();
  }
  ids.clear();
  for (int32_t id = 100; id < 150; ++id) ids.push_back(id);
  layer.acquire(ids, 1);
  CHECK(layer.slot_of(98) == 98);
  layer.acquire({150, 151}, 2);
  CHECK(layer.resident().size() == 100);
}

TEST(slots_are_as_before_where_a_call_is_wrong) {
  Layer layer(10, 4);
  layer.acquire({0, 1, 2}, 0);
  const std::set<int32_t> before = layer.resident();
  const std::vector<double> terms = layer.terms;
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t id : {-1, 10, kMost, -kMost - 1}) {
    CHECK_THROWS(std::out_of_range, "is not one of 10", layer.acquire({0, id}, 1));
    CHECK_THROWS(std::out_of_range, "is not one of 10", layer.acquire({0}, 1, {id}));
    CHECK_THROWS(std::out_of_range, "is not one of 10", layer.prefetch({5, id}));
    CHECK_THROWS(std::out_of_range, "is not one of 10", layer.table.put(view({id}), view({3})));
    CHECK_THROWS(std::out_of_range, "is not one of 4", layer.table.put(view({5}), view({id})));
    CHECK_THROWS(std::out_of_range, "is not one of 4", layer.table.evict(view({id})));
  }
  CHECK_THROWS(std::invalid_argument, "twice", layer.acquire({5, 0, 5}, 1));
  CHECK_THROWS(std::invalid_argument, "twice", layer.acquire({5, 0, 0}, 1, {0}));
  CHECK_THROWS(std::invalid_argument, "twice", layer.prefetch({7, 5, 7}));
  CHECK_THROWS(std::invalid_argument, "twice", layer.prefetch({1, 5, 1}));
  CHECK_THROWS(std::invalid_argument, "7 is in no slot", layer.acquire({5}, 1, {7}));
  CHECK_THROWS(std::invalid_argument, "5 bundles", layer.acquire({0, 4, 5, 6}, 1, {2}));
  CHECK_THROWS(std::invalid_argument, "5 bundles", layer.acquire({3, 4, 5, 6, 7}, 1));
  CHECK_THROWS(std::invalid_argument, "is taken", layer.table.put(view({5}), view({0})));
  CHECK_THROWS(std::invalid_argument, "in a slot", layer.table.put(view({1}), view({3})));
  CHECK(layer.resident() == before);
  CHECK(layer.terms == terms);
  CHECK(layer.prefetch({5, 6, 0, 1}) == (Ids{5, 6}));
}

TEST(slots_outside_are_told_of_as_the_caller_numbers_them) {
  Layer layer(10, 4, 100);
  for (const int32_t slot : {0, 99, 104}) {
    const std::string told = "slot " + std::to_string(slot) + " is not one of 4 from 100 on";
    CHECK_THROWS(std::out_of_range, told, layer.table.evict(view({101, slot})));
    CHECK_THROWS(std::out_of_range, told, layer.table.put(view({5, 6}), view({100, slot})));
  }
  CHECK(layer.resident().empty());
  layer.table.put(view({5}), view({103}));
  CHECK(layer.slot_of(5) == 3);
}

TEST(slots_of_a_table_that_cannot_be) {
  std::vector<double> some(8);
  const View<double> four = {some.data(), 4};
  const View<double> eight = {some.data(), 8};
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  CHECK_THROWS(std::invalid_argument, "n_slots is 0", SlotTable(4, 0, {0}, four, 0));
  CHECK_THROWS(std::invalid_argument, "n_slots is 5", SlotTable(4, 5, {0}, four, 0));
  CHECK_THROWS(std::invalid_argument, "n_bundles is", SlotTable(kMost + 1, 5, {0}, four, 0));
  CHECK_THROWS(std::invalid_argument, "0 terms", SlotTable(4, 4, {}, four, 0));
  CHECK_THROWS(std::invalid_argument, "3 terms", SlotTable(4, 4, {0, 1, 2}, four, 0));
  CHECK_THROWS(std::invalid_argument, "carried is 1", SlotTable(4, 4, {1}, four, 0));
  CHECK_THROWS(std::invalid_argument, "carried is -2", SlotTable(4, 4, {-2}, four, 0));
  CHECK_THROWS(std::invalid_argument, "terms has 8", SlotTable(4, 4, {0}, eight, 0));
  CHECK_THROWS(std::invalid_argument, "terms has 4", SlotTable(4, 4, {0, 1}, four, 0));
  CHECK_THROWS(std::invalid_argument, "first_slot is -1", SlotTable(4, 4, {0}, four, -1));
  CHECK_THROWS(std::invalid_argument, "first_slot is", SlotTable(4, 4, {0}, four, kMost - 3));
}
