// The reader over memory that fails in every way a device can.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "errors.h"
#include "reader.h"
#include "test_sources.h"
#include "testing.h"

using namespace flash_core;

namespace {

using Kind = Fault::Kind;

std::vector<uint8_t> some_bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((i * 2654435761U) >> 13);
  return bytes;
}

const std::vector<uint8_t>& contents() {
  static const std::vector<uint8_t> bytes = some_bytes(100'003);
  return bytes;
}

std::unique_ptr<Source> memory(size_t alignment) {
  return std::make_unique<MemorySource>(contents(), alignment);
}

std::unique_ptr<Reader> faulty(Backend backend, std::deque<Fault> script, bool forever = false,
                               int threads = 1, size_t alignment = 512) {
  auto source = std::make_unique<FaultySource>(memory(alignment), std::move(script), forever);
  auto reader = std::make_unique<Reader>(OpenedFile{std::move(source), ""}, "name",
                                         ReaderOptions{threads, 2048, 8192, backend});
  CHECK(reader->backend() == std::string(backend == Backend::uring ? "uring" : "threads"));
  return reader;
}

struct Request {
  std::vector<int64_t> offsets;
  int64_t length;
  std::vector<int64_t> destinations;
};

Request scattered() { return {{4096, 0, 1024, 20480, 30000}, 1024, {0, 2048, 4096, 8192, 16001}}; }

// Reads, and checks every byte of the buffer: those asked for, and that no other was written.
void read_and_check(Reader* reader, const Request& request) {
  const auto buffer = std::make_shared<Buffer>(65'536);
  std::vector<uint8_t> expected(buffer->size(), 0xA5);
  std::memcpy(buffer->data(), expected.data(), expected.size());
  for (size_t i = 0; i < request.offsets.size(); ++i) {
    std::memcpy(expected.data() + request.destinations[i], contents().data() + request.offsets[i],
                static_cast<size_t>(request.length));
  }
  reader->wait(reader->submit(
      {request.offsets.data(), request.destinations.data(), request.offsets.size(), request.length},
      buffer));
  CHECK(std::memcmp(buffer->data(), expected.data(), expected.size()) == 0);
}

}  // namespace

TEST_BACKENDS(reads_arrive_from_memory_aligned_or_not) {
  for (const size_t alignment : {1, 512, 4096}) {
    for (const int threads : {1, 4}) {
      const auto reader = faulty(backend, {}, false, threads, alignment);
      read_and_check(reader.get(), scattered());
      read_and_check(reader.get(), {{99'003}, 1000, {5}});
      read_and_check(reader.get(), {{0}, 50'000, {4096}});
    }
  }
}

TEST_BACKENDS(short_reads_are_resumed_wherever_they_stop) {
  for (int64_t bytes : {1, 2, 511, 512, 513, 1000, 1024, 2048, 5119}) {
    for (const size_t alignment : {1, 512}) {
      const auto reader = faulty(backend, {{Kind::shorten, bytes}}, false, 1, alignment);
      read_and_check(reader.get(), scattered());
    }
  }
}

TEST_BACKENDS(short_reads_for_ever_still_end) {
  const auto reader = faulty(backend, {{Kind::shorten, 700}}, true);
  read_and_check(reader.get(), scattered());
  CHECK(reader->stats().short_reads > 0);
}

TEST_BACKENDS(interruptions_are_tried_again) {
  const auto reader =
      faulty(backend, {{Kind::fail, EINTR}, {Kind::fail, EAGAIN}, {Kind::fail, EINTR}});
  read_and_check(reader.get(), scattered());
  CHECK(reader->stats().retries == 3);
}

TEST_BACKENDS(a_device_error_is_tried_again_twice) {
  const auto reader = faulty(backend, {{Kind::fail, EIO}, {Kind::fail, EIO}});
  read_and_check(reader.get(), scattered());
  CHECK(reader->stats().retries == 2);
}

TEST_BACKENDS(a_device_error_that_stays_is_reported_with_its_offset) {
  const auto reader = faulty(backend, {{Kind::none}, {Kind::fail, EIO}}, true);
  try {
    read_and_check(reader.get(), scattered());
    CHECK(false);
  } catch (const DeviceError& error) {
    CHECK(error.code() == EIO);
    CHECK(error.path() == "name");
    CHECK(std::string(error.what()).find("at offset ") != std::string::npos);
  }
}

TEST_BACKENDS(what_cannot_pass_is_not_tried_again) {
  for (const int code : {EINVAL, ENXIO, EBADF}) {
    const auto reader = faulty(backend, {{Kind::fail, code}});
    CHECK_THROWS(DeviceError, "offset 0", read_and_check(reader.get(), scattered()));
    CHECK(reader->stats().retries == 0);
    read_and_check(reader.get(), scattered());
  }
}

TEST_BACKENDS(a_shortage_may_pass) {
  for (const int code : {ENOMEM, EMFILE, ENFILE, ENOBUFS}) {
    const auto reader = faulty(backend, {{Kind::fail, code}, {Kind::fail, code}});
    read_and_check(reader.get(), scattered());
    CHECK(reader->stats().retries == 2);
    const auto short_for_ever = faulty(backend, {{Kind::fail, code}}, true);
    CHECK_THROWS(DeviceError, "offset", read_and_check(short_for_ever.get(), scattered()));
  }
}

namespace {

// As a file system that takes direct reads when it is asked at opening and refuses them later.
class Refusing final : public RingedSource {
 public:
  // `left`: direct reads that it still takes.
  Refusing(int left, bool stops) : inner_(memory(512)), left_(left), stops_(stops) {}
  uint64_t size() const override { return inner_->size(); }
  size_t alignment() const override { return inner_->alignment(); }
  ssize_t read(const iovec* vectors, int count, uint64_t offset) override {
    if (!stopped_ && left_-- <= 0) return -EINVAL;
    return inner_->read(vectors, count, offset);
  }
  DirectStopped stop_direct() override {
    if (!stops_) return DirectStopped::not_direct;
    return stopped_.exchange(true) ? DirectStopped::before : DirectStopped::now;
  }

 private:
  std::unique_ptr<Source> inner_;
  std::atomic<int> left_;
  bool stops_;
  std::atomic<bool> stopped_{false};
};

}  // namespace

TEST_BACKENDS(direct_reads_that_are_refused_are_given_up_once) {
  for (const int taken : {0, 1, 2, 5}) {
    for (const int threads : {1, 8}) {
      Reader reader({std::make_unique<Refusing>(taken, true), ""}, "name",
                    {threads, 0, 512, backend});
      CHECK(reader.direct() && reader.stats().downgrades == 0);
      for (int again = 0; again < 3; ++again) read_and_check(&reader, scattered());
      CHECK(!reader.direct() && reader.stats().downgrades == 1);
      CHECK(reader.fallback().find("refused: Invalid argument") != std::string::npos);
      CHECK(reader.stats().retries >= 1);
      CHECK(reader.stats().retries <= static_cast<uint64_t>(threads));  // those in flight then
    }
  }
  Reader must_be_direct({std::make_unique<Refusing>(1, false), ""}, "name", {1, 0, 8192, backend});
  CHECK_THROWS(DeviceError, "Invalid argument", read_and_check(&must_be_direct, scattered()));
  CHECK(must_be_direct.direct() && must_be_direct.stats().retries == 0);
}

TEST_BACKENDS(an_interruption_that_never_ends_does_end) {
  const auto reader = faulty(backend, {{Kind::fail, EINTR}}, true);
  CHECK_THROWS(DeviceError, "offset", read_and_check(reader.get(), scattered()));
}

// The n-th operation fails, for every n until none does: always a right result or an error that
// says so, and a reader that goes on working.
TEST_BACKENDS(every_read_in_turn_fails_and_the_reader_goes_on) {
  for (const Fault& fault :
       {Fault{Kind::fail, EIO}, Fault{Kind::fail, ENXIO}, Fault{Kind::fail, EINTR},
        Fault{Kind::fail, ENOMEM}, Fault{Kind::shorten, 512}, Fault{Kind::shorten, 0},
        Fault{Kind::delay, 1}}) {
    for (size_t n = 0; n < 12; ++n) {
      std::deque<Fault> script(n);
      script.push_back(fault);
      const auto reader = faulty(backend, script, false, 3);
      try {
        read_and_check(reader.get(), scattered());
      } catch (const DeviceError& error) {
        CHECK(error.code() == ENXIO);
      } catch (const EndOfFile&) {
        CHECK(fault.kind == Kind::shorten && fault.value == 0);
      }
    }
  }
}

TEST_BACKENDS(a_flipped_bit_arrives_flipped) {
  const auto reader = faulty(backend, {{Kind::flip, 3}});
  CHECK_THROWS(testing::Failure, "memcmp", read_and_check(reader.get(), {{0}, 512, {0}}));
  read_and_check(reader.get(), {{0}, 512, {0}});
}

TEST_BACKENDS(a_file_that_ends_early_is_reported) {
  for (const size_t alignment : {1, 512}) {
    auto shorter = std::make_unique<MemorySource>(some_bytes(10'000), alignment);
    // It says that it has the full size, as a file does that was cut after it was opened.
    class Cut final : public RingedSource {
     public:
      explicit Cut(std::unique_ptr<Source> inner) : inner_(std::move(inner)) {}
      uint64_t size() const override { return 100'000; }
      size_t alignment() const override { return inner_->alignment(); }
      ssize_t read(const iovec* vectors, int count, uint64_t offset) override {
        return inner_->read(vectors, count, offset);
      }

     private:
      std::unique_ptr<Source> inner_;
    };
    Reader reader({std::make_unique<Cut>(std::move(shorter)), ""}, "cut", {2, 0, 8192, backend});
    CHECK_THROWS(EndOfFile, "offset 10000", read_and_check(&reader, {{9'000}, 2'000, {0}}));
    CHECK_THROWS(EndOfFile, "offset", read_and_check(&reader, {{50'000}, 512, {0}}));
  }
}

TEST_BACKENDS(counts_add_up) {
  const auto reader = faulty(backend, {}, false, 4);
  read_and_check(reader.get(), scattered());
  const ReadStats stats = reader->stats();
  CHECK(stats.bytes_useful == 5 * 1024);
  CHECK(stats.reads == 3);
  CHECK(stats.bytes_read == 5120 + 1024 + 1536);
  CHECK(stats.bounced == 1);
  uint64_t counted = 0;
  for (const uint64_t reads : stats.size_histogram) counted += reads;
  CHECK(counted == stats.reads);
  CHECK(stats.depth_max >= 1 && stats.depth_max <= 4);
}

TEST(files_are_read_directly_or_not) {
  char path[] = "/tmp/flash_core_test_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  CHECK(write(file, contents().data(), contents().size()) ==
        static_cast<ssize_t>(contents().size()));
  close(file);
  for (const Direct direct : {Direct::optional, Direct::disabled}) {
    for (const Backend backend : {Backend::threads, Backend::uring}) {
      Reader reader(open_file(path, direct), path, {4, 2048, 8192, backend});
      CHECK(reader.file_bytes() == contents().size());
      CHECK(reader.direct() == reader.fallback().empty());
      CHECK(reader.backend() == std::string(backend == Backend::threads ? "threads" : "uring") ||
            !reader.backend_problem().empty());
      read_and_check(&reader, scattered());
      read_and_check(&reader, {{99'003}, 1000, {5}});
    }
  }
  unlink(path);
  CHECK_THROWS(DeviceError, "No such file", open_file(path, Direct::optional));
  CHECK_THROWS(DeviceError, "directory", open_file("/tmp", Direct::disabled));
}

TEST(options_that_cannot_be_are_refused) {
  const auto open = [](int threads, int64_t gap_bytes, int64_t max_read_bytes) {
    Reader reader({memory(512), ""}, "name",
                  {threads, gap_bytes, max_read_bytes, Backend::threads});
    read_and_check(&reader, scattered());
    return reader.stats().reads;
  };
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  CHECK_THROWS(std::invalid_argument, "threads is 0; expected 1 to 1024", open(0, 0, 4096));
  CHECK_THROWS(std::invalid_argument, "threads is 1025; expected", open(1025, 0, 4096));
  CHECK_THROWS(std::invalid_argument, "gap_bytes is -1", open(1, -1, 4096));
  CHECK_THROWS(std::invalid_argument, "max_read_bytes 0", open(1, 0, 0));
  CHECK_THROWS(std::invalid_argument, "max_read_bytes 1073741825", open(1, 0, kMostBytes + 1));
  CHECK(open(1, std::numeric_limits<int64_t>::max(), 65'536) == 1);
  CHECK(open(1, 0, 1) == 10);  // each of the five in pieces of 512 bytes, the least that can be
}

TEST_BACKENDS(a_batch_of_nothing_is_done) {
  const auto reader = faulty(backend, {});
  read_and_check(reader.get(), {{}, 512, {}});
  CHECK(reader->stats().reads == 0);
  read_and_check(reader.get(), scattered());
}

TEST_BACKENDS(a_ticket_is_waited_for_once) {
  const auto reader = faulty(backend, {});
  const auto buffer = std::make_shared<Buffer>(4096);
  const int64_t start = 0;
  const uint64_t ticket = reader->submit({&start, &start, 1, 512}, buffer);
  const std::string told = "no ticket " + std::to_string(ticket + 1);
  CHECK_THROWS(std::invalid_argument, told, reader->wait(ticket + 1));
  reader->wait(ticket);
  CHECK_THROWS(std::invalid_argument, "is waited for once", reader->wait(ticket));
  reader->close();
  CHECK_THROWS(std::invalid_argument, "is closed",
               reader->submit({&start, &start, 1, 512}, buffer));
}

TEST(names_of_options_are_those_that_are_told) {
  CHECK(parse_backend("auto") == Backend::automatic);
  CHECK(parse_backend("threads") == Backend::threads);
  CHECK(parse_backend("uring") == Backend::uring);
  CHECK(parse_direct("required") == Direct::required);
  CHECK(parse_direct("optional") == Direct::optional);
  CHECK(parse_direct("disabled") == Direct::disabled);
  for (const char* name : {"", "perhaps", "Threads", "required "}) {
    CHECK_THROWS(std::invalid_argument, "expected auto, threads or uring", parse_backend(name));
    CHECK_THROWS(std::invalid_argument, "expected required, optional or", parse_direct(name));
  }
}

// The same file by the same descriptor, before and after: what is given up is O_DIRECT itself.
TEST(a_file_is_read_through_the_page_cache_once_direct_reads_are_given_up) {
  char path[] = "/tmp/flash_core_test_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  CHECK(write(file, contents().data(), contents().size()) ==
        static_cast<ssize_t>(contents().size()));
  close(file);
  for (const Direct direct : {Direct::optional, Direct::required, Direct::disabled}) {
    OpenedFile opened;
    try {
      opened = open_file(path, direct);
    } catch (const DeviceError&) {
      continue;  // this file system has no direct reads
    }
    const bool may_stop = direct == Direct::optional && opened.fallback.empty();
    Source* const source = opened.source.get();
    CHECK(source->stop_direct() == (may_stop ? DirectStopped::now : DirectStopped::not_direct));
    CHECK(source->stop_direct() == (may_stop ? DirectStopped::before : DirectStopped::not_direct));
    if (may_stop) {
      uint8_t byte = 0;
      const iovec vector = {&byte, 1};  // which no direct read would take
      CHECK(source->read(&vector, 1, 12345) == 1 && byte == contents()[12345]);
    }
    for (const Backend backend : {Backend::threads, Backend::uring}) {
      if (!opened.source) opened = open_file(path, direct);
      Reader reader(std::move(opened), path, {4, 2048, 8192, backend});
      opened.source.reset();
      read_and_check(&reader, scattered());
    }
  }
  unlink(path);
}

TEST(threads_read_where_there_is_no_ring) {
  class Plain final : public Source {
   public:
    uint64_t size() const override { return 4096; }
    size_t alignment() const override { return 1; }
    ssize_t read(const iovec* vectors, int, uint64_t) override {
      std::memset(vectors[0].iov_base, 9, vectors[0].iov_len);
      return static_cast<ssize_t>(vectors[0].iov_len);
    }
  };
  for (const Backend backend : {Backend::automatic, Backend::uring, Backend::threads}) {
    Reader reader({std::make_unique<Plain>(), ""}, "plain", {2, 0, 4096, backend});
    CHECK(reader.backend() == std::string("threads"));
    CHECK((reader.backend_problem() == "no ring for this source") == (backend == Backend::uring));
    const auto buffer = std::make_shared<Buffer>(4096);
    const int64_t start = 0;
    reader.wait(reader.submit({&start, &start, 1, 4096}, buffer));
    CHECK(buffer->data()[0] == 9 && buffer->data()[4095] == 9);
  }
}
