// Runs a target on its corpus and on mutations of it, guided by coverage, where no libFuzzer is.
//
//   TARGET [-max_total_time=SECONDS] [-runs=N] [-seed=N] [-max_len=BYTES] [-timeout=SECONDS]
//          [-artifact_prefix=PATH] [FOLDER | FILE]...
//
// The flags are libFuzzer's. Inputs of all folders are run first; those of them and of their
// mutations that reach something new are kept in the first folder. Files are run, and nothing
// else. An input that ends the program, or takes longer than the time limit, is kept as
// PATHcrash-NUMBER.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "coverage.h"
#include "mutations.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace fuzzing {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  double seconds = 0;  // 0 for no end
  int64_t runs = -1;   // of mutations; -1 for no end
  uint64_t seed = 1;
  size_t bytes_max = 4096;
  unsigned timeout_seconds = 25;
  std::string artifact_prefix;
  std::vector<std::string> paths;
};

const Bytes* running = nullptr;  // for the handlers
std::string crash_path;          // set before, since handlers may not allocate

extern "C" void keep_running() {
  if (running == nullptr) return;
  const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0 && write(file, running->data(), running->size()) >= 0) {
    static_cast<void>(write(STDERR_FILENO, "input kept: ", 12));
    static_cast<void>(write(STDERR_FILENO, crash_path.data(), crash_path.size()));
    static_cast<void>(write(STDERR_FILENO, "\n", 1));
  }
  running = nullptr;
}

extern "C" void end_by_signal(int number) {
  if (number == SIGALRM) {
    constexpr char kSlow[] = "the input takes longer than the time limit\n";
    static_cast<void>(write(STDERR_FILENO, kSlow, sizeof(kSlow) - 1));
  }
  keep_running();
  std::signal(number, SIG_DFL);
  std::raise(number == SIGALRM ? SIGKILL : number);
}

void install_handlers() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_running);
#endif
  std::signal(SIGABRT, end_by_signal);
  std::signal(SIGALRM, end_by_signal);
#if !defined(__SANITIZE_ADDRESS__)
  std::signal(SIGSEGV, end_by_signal);
  std::signal(SIGBUS, end_by_signal);
  std::signal(SIGFPE, end_by_signal);
#endif
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (word[0] != '-') {
      options.paths.push_back(word);
      continue;
    }
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "-max_total_time") {
      options.seconds = std::atof(value.c_str());
    } else if (name == "-runs") {
      options.runs = std::atoll(value.c_str());
    } else if (name == "-seed") {
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "-max_len") {
      options.bytes_max = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "-timeout") {
      options.timeout_seconds = static_cast<unsigned>(std::atoi(value.c_str()));
    } else if (name == "-artifact_prefix") {
      options.artifact_prefix = value;
    } else {
      std::fprintf(stderr, "unknown flag %s\n", word.c_str());
      std::exit(2);
    }
  }
  return options;
}

bool is_folder(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

Bytes read_file(const std::string& path) {
  Bytes bytes;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::perror(path.c_str());
    std::exit(2);
  }
  std::array<uint8_t, 4096> block;
  size_t count = 0;
  while ((count = std::fread(block.data(), 1, block.size(), file)) > 0) {
    bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(count));
  }
  std::fclose(file);
  return bytes;
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.push_back(folder + "/" + entry->d_name);
  }
  closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

// FNV-1a, which names inputs.
std::string name_of(const Bytes& bytes) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001B3U;
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

class Fuzzer {
 public:
  explicit Fuzzer(const Options& options) : options_(options), random_(options.seed) {
    crash_path = options.artifact_prefix + "crash-" + std::to_string(getpid());
    if (!options.paths.empty() && is_folder(options.paths[0])) kept_in_ = options.paths[0];
  }

  void run_folders() {
    std::vector<Given> inputs = {{{}, true}};
    for (const std::string& folder : options_.paths) {
      for (const std::string& path : files_of(folder)) {
        inputs.push_back({read_file(path), folder == kept_in_});
      }
    }
    std::stable_sort(inputs.begin(), inputs.end(), [](const Given& left, const Given& right) {
      return left.bytes.size() < right.bytes.size();
    });
    for (const Given& input : inputs) {
      is_kept_ = input.is_kept;
      run(input.bytes);
    }
    is_kept_ = false;
    n_given_ = inputs.size();
  }

  void run_mutations() {
    int64_t left = options_.runs;
    while (left != 0 && (options_.seconds <= 0 || seconds() < options_.seconds)) {
      for (int i = 0; i < 64 && left != 0; ++i, --left) {
        run(mutated(inputs_, options_.bytes_max, &random_));
      }
    }
  }

  void run(const Bytes& input) {
    running = &input;
    begin_run();
    // A copy that ends where its allocation ends.
    const Bytes exact(input);
    if (n_runs_ % 256 == 0) alarm(options_.timeout_seconds);
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    ++n_runs_;
    if (reached_something_new()) keep(input);
    running = nullptr;
  }

  void report(const char* program) const {
    const char* name = std::strrchr(program, '/');
    std::printf("%-20s %10lld executions %8.1f s %6zu edges %5zu inputs, %zu of them given\n",
                name == nullptr ? program : name + 1, static_cast<long long>(n_runs_), seconds(),
                edges_reached(), inputs_.size(), n_given_);
  }

 private:
  struct Given {
    Bytes bytes;
    bool is_kept;  // it lies in the first folder
  };

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  void keep(const Bytes& input) {
    inputs_.push_back(input);
    if (kept_in_.empty() || is_kept_) return;
    const std::string path = kept_in_ + "/" + name_of(input);
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return;
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }

  Options options_;
  std::mt19937_64 random_;
  std::string kept_in_;
  bool is_kept_ = false;       // what runs now is there already
  std::vector<Bytes> inputs_;  // those that reached something new
  size_t n_given_ = 0;
  int64_t n_runs_ = 0;
  Clock::time_point begun_ = Clock::now();
};

int run_program(int argc, char** argv) {
  const Options options = parse(argc, argv);
  install_handlers();
  Fuzzer fuzzer(options);
  const bool is_replay = !options.paths.empty() && !is_folder(options.paths[0]);
  if (is_replay) {
    for (const std::string& path : options.paths) fuzzer.run(read_file(path));
  } else {
    fuzzer.run_folders();
    fuzzer.run_mutations();
  }
  fuzzer.report(argv[0]);
  return 0;
}

}  // namespace
}  // namespace fuzzing

int main(int argc, char** argv) { return fuzzing::run_program(argc, argv); }
