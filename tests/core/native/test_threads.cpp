// Cancelling, closing and computing from several threads at once: what TSan looks at.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "compute_pool.h"
#include "errors.h"
#include "kernels.h"
#include "reader.h"
#include "test_sources.h"
#include "testing.h"

using namespace flash_core;

namespace {

std::unique_ptr<Reader> slow_reader(Backend backend, int threads, int64_t delay_ms = 1) {
  auto source = std::make_unique<FaultySource>(
      std::make_unique<MemorySource>(std::vector<uint8_t>(1 << 20, 7), 512),
      std::deque<Fault>{{Fault::Kind::delay, delay_ms}}, true);
  return std::make_unique<Reader>(OpenedFile{std::move(source), ""}, "slow",
                                  ReaderOptions{threads, 0, 4096, backend});
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

TEST_BACKENDS(cancel_drops_what_is_queued_and_ends_every_wait) {
  const auto reader = slow_reader(backend, 2);
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

// Tells where it is read, and holds every read until it is let go.
class Gate final : public RingedSource {
 public:
  uint64_t size() const override { return 1 << 20; }
  size_t alignment() const override { return 512; }
  ssize_t read(const iovec* vectors, int, uint64_t offset) override {
    std::unique_lock<std::mutex> lock(mutex_);
    offsets.push_back(offset);
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return static_cast<ssize_t>(vectors[0].iov_len);
  }
  void await_reads(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this, count] { return offsets.size() >= count; });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<uint64_t> offsets;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST_BACKENDS(batches_are_read_by_their_priority) {
  auto owned = std::make_unique<Gate>();
  Gate* const gate = owned.get();
  Reader reader({std::move(owned), ""}, "gate", {1, 0, 512, backend});
  std::vector<uint64_t> tickets;
  const auto submit = [&](int64_t offset, int64_t length, Priority priority) {
    const int64_t start = 0;
    tickets.push_back(
        reader.submit({&offset, &start, 1, length}, std::make_shared<Buffer>(2048), priority));
  };
  submit(0, 2048, Priority::usual);
  gate->await_reads(1);
  submit(61440, 512, Priority::ahead);
  submit(51200, 512, Priority::ahead);
  submit(10240, 512, Priority::usual);
  submit(20480, 1024, Priority::urgent);
  submit(40960, 512, Priority::ahead);
  submit(30720, 512, Priority::urgent);
  reader.hasten(tickets[5]);  // behind what was there of its new kind
  CHECK(reader.drop(tickets[2]) == 0);
  gate->open();
  for (const size_t other : {0, 1, 3, 4, 5, 6}) reader.wait(tickets[other]);
  CHECK(was_cancelled(&reader, tickets[2]));
  CHECK((gate->offsets ==
         std::vector<uint64_t>{0, 20480, 20992, 30720, 512, 1024, 1536, 10240, 40960, 61440}));
}

TEST(few_reads_are_in_flight_of_what_is_read_ahead) {
  auto owned = std::make_unique<Gate>();
  Gate* const gate = owned.get();
  Reader reader({std::move(owned), ""}, "gate", {16, 0, 512});
  const auto submit = [&](int64_t offset, int64_t length, Priority priority) {
    const int64_t start = 0;
    return reader.submit({&offset, &start, 1, length}, std::make_shared<Buffer>(8192), priority);
  };
  const uint64_t wrong = submit(0, 1024, Priority::ahead);
  const uint64_t right = submit(8192, 4096, Priority::ahead);
  gate->await_reads(kReadsAhead);
  CHECK(reader.drop(wrong) == 1024);  // both had been started
  reader.hasten(right);
  const uint64_t needed = submit(65536, 1024, Priority::usual);
  gate->open();
  reader.wait(wrong);
  reader.wait(right);
  reader.wait(needed);
  CHECK(gate->offsets.size() == 2 + 8 + 2);
  const uint64_t in_vain = submit(0, 8192, Priority::ahead);
  reader.drop(in_vain);
  reader.wait(submit(0, 8192, Priority::ahead));  // what was dropped holds no place
  static_cast<void>(was_cancelled(&reader, in_vain));
}

TEST_BACKENDS(close_while_others_wait_ends_their_waiting) {
  const auto reader = slow_reader(backend, 2, 20);  // 0.6 s a batch: closed before any is done
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

TEST_BACKENDS(many_threads_read_through_one_reader) {
  auto source = std::make_unique<MemorySource>(std::vector<uint8_t>(1 << 20, 7), 512);
  Reader reader({std::move(source), ""}, "shared", {4, 4096, 65536, backend});
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

TEST_BACKENDS(a_reader_dies_with_work_still_queued) {
  const auto buffer = std::make_shared<Buffer>(1 << 20);
  {
    submit_all(slow_reader(backend, 3).get(), buffer);
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
