// Cancelling, closing and computing from several threads at once: what TSan looks at.
#include <atomic>
#include <cstring>
#include <thread>

#include "compute_pool.h"
#include "errors.h"
#include "kernels.h"
#include "reader.h"
#include "test_sources.h"
#include "testing.h"

using namespace flash_core;

namespace {

std::unique_ptr<Reader> slow_reader(int threads) {
  auto source = std::make_unique<FaultySource>(
      std::make_unique<MemorySource>(std::vector<uint8_t>(1 << 20, 7), 512),
      std::deque<Fault>{{Fault::Kind::delay, 1}}, true);
  return std::make_unique<Reader>(OpenedFile{std::move(source), ""}, "slow",
                                  ReaderOptions{threads, 0, 4096});
}

// 64 reads of 4 KiB.
uint64_t submit_all(Reader* reader, const std::shared_ptr<Buffer>& buffer) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 64; ++i) places.push_back(i * 8192);
  return reader->submit({places.data(), places.data(), places.size(), 4096}, buffer);
}

bool was_cancelled(Reader* reader, uint64_t ticket) {
  try {
    reader->wait(ticket);
  } catch (const ReadCancelled&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(cancel_drops_what_is_queued_and_ends_every_wait) {
  const auto reader = slow_reader(2);
  const auto buffer = std::make_shared<Buffer>(1 << 20);
  const uint64_t first = submit_all(reader.get(), buffer);
  const uint64_t second = submit_all(reader.get(), std::make_shared<Buffer>(1 << 20));
  std::thread canceller([&reader] { reader->cancel(); });
  const bool first_cancelled = was_cancelled(reader.get(), first);
  const bool second_cancelled = was_cancelled(reader.get(), second);
  canceller.join();
  CHECK(first_cancelled && second_cancelled);
  CHECK(reader->stats().reads < 128);
  std::memset(buffer->data(), 0, buffer->size());  // nothing of it is in flight any more
  CHECK(was_cancelled(reader.get(), submit_all(reader.get(), buffer)));
  reader->clear_cancel();
  CHECK(!was_cancelled(reader.get(), submit_all(reader.get(), buffer)));
  CHECK(buffer->data()[8192] == 7);
}

TEST(close_while_others_wait_ends_their_waiting) {
  const auto reader = slow_reader(2);
  std::atomic<int> cancelled{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    const uint64_t ticket = submit_all(reader.get(), std::make_shared<Buffer>(1 << 20));
    waiters.emplace_back([&reader, &cancelled, ticket] {
      try {
        reader->wait(ticket);
      } catch (const ReadCancelled&) {
        ++cancelled;
      } catch (const std::invalid_argument&) {
        ++cancelled;  // closed before this thread came to wait
      }
    });
  }
  reader->close();
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(cancelled == 3);
  reader->close();
}

TEST(many_threads_read_through_one_reader) {
  auto source = std::make_unique<MemorySource>(std::vector<uint8_t>(1 << 20, 7), 512);
  Reader reader({std::move(source), ""}, "shared", {4, 4096, 65536});
  std::atomic<int> right{0};
  std::vector<std::thread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([&reader, &right] {
      for (int round = 0; round < 10; ++round) {
        const auto buffer = std::make_shared<Buffer>(1 << 20);
        reader.wait(submit_all(&reader, buffer));
        if (buffer->data()[8192 * 63 + 4095] == 7 && buffer->data()[4096] == 0) ++right;
      }
    });
  }
  for (std::thread& user : users) user.join();
  CHECK(right == 40);
  CHECK(reader.stats().bytes_useful == 40 * 64 * 4096);
}

TEST(a_reader_dies_with_work_still_queued) {
  const auto buffer = std::make_shared<Buffer>(1 << 20);
  {
    submit_all(slow_reader(3).get(), buffer);
  }
  CHECK(buffer.use_count() == 1);
}

TEST(the_pool_does_every_part_once) {
  for (const int threads : {1, 2, 5}) {
    ComputePool pool(threads);
    for (int round = 0; round < 300; ++round) {
      for (int parts = 1; parts <= 3 * threads; ++parts) {
        std::vector<int> done(static_cast<size_t>(parts), 0);
        pool.run(parts, [&done](int part) { ++done[static_cast<size_t>(part)]; });
        for (const int times : done) CHECK(times == 1);
      }
      if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST(a_part_that_is_held_up_holds_up_no_other) {
  ComputePool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> others{0};
    pool.run(10, [&others](int part) {
      if (part != 0) ++others;
      while (part == 0 && others < 9) std::this_thread::yield();
    });
    CHECK(others == 9);
  }
}

TEST(kernels_may_be_called_by_several_threads) {
  Kernels kernels(3, "");
  const std::vector<float> rows(256 * 512, 0.5F);
  const std::vector<float> x(512, 2.0F);
  std::atomic<int> right{0};
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&] {
      std::vector<float> out(256);
      for (int round = 0; round < 20; ++round) {
        kernels.matvec({reinterpret_cast<const uint8_t*>(rows.data()), rows.size() * 4}, DType::f32,
                       {x.data(), x.size()}, {out.data(), out.size()});
        if (out.front() == 512.0F && out.back() == 512.0F) ++right;
      }
    });
  }
  for (std::thread& user : users) user.join();
  CHECK(right == 60);
}
