// Times the collectives of several libropewalk.so in turn, with the same buffers.
//
// Usage: call_times [--ranks N] [--cpus A,B,..] [--operation NAME] [--sizes BYTES,..] [--rounds N]
//                   [--data cached|memory] [--small-pages] [--seconds S] LIBRARY...
//
// Each rank is a process bound to one CPU, which loads all libraries and joins a communicator of
// each. For each size, out of place and in place, the libraries take turns; who begins changes. A
// timing is `seconds` of calls one after another, and counts the slowest rank's time per call.
// `cached`: the same buffers at each call. `memory`: buffers that no call of the last 128 MiB has
// used. Memory is in huge pages where the kernel gives them, or, with --small-pages, in none.
//
// Results of each library are checked once per point, out of place and in place, before it is
// timed. Prints a line of JSON per point: operation, bytes (the larger of a rank's two buffers),
// in_place, and microseconds[] with a list of rounds for each library. Exit status 1 after an
// error, wrong results included.
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "ropewalk/ropewalk.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 64;
constexpr int kMostLibraries = 8;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kTurnover = 128UL << 20;  // bytes of buffers that "memory" cycles through
constexpr int kRoot = 0;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "call_times: %s\n", why.c_str());
  std::exit(1);
}

struct Options {
  int ranks = 2;
  std::vector<int> cpus = {0, 1};
  std::string operation = "all_reduce";
  std::vector<std::size_t> sizes = {8, 4096, 1UL << 20};
  int rounds = 5;
  bool cached = true;
  bool huge = true;
  double seconds = 0.05;
  std::vector<std::string> libraries;
};

template <typename T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> all;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    all.push_back(static_cast<T>(std::stoull(word)));
  }
  if (all.empty()) fail("no numbers in \"" + text + "\"");
  return all;
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      options.libraries.push_back(word);
      continue;
    }
    if (word == "--small-pages") {
      options.huge = false;
      continue;
    }
    if (i + 1 == argc) fail(word + " needs a value");
    const std::string value = argv[++i];
    if (word == "--ranks") {
      options.ranks = std::stoi(value);
    } else if (word == "--cpus") {
      options.cpus = numbers<int>(value);
    } else if (word == "--operation") {
      options.operation = value;
    } else if (word == "--sizes") {
      options.sizes = numbers<std::size_t>(value);
    } else if (word == "--rounds") {
      options.rounds = std::stoi(value);
    } else if (word == "--data" && (value == "cached" || value == "memory")) {
      options.cached = value == "cached";
    } else if (word == "--seconds") {
      options.seconds = std::stod(value);
    } else {
      fail("unknown option " + word + " " + value);
    }
  }
  const auto number = static_cast<int>(options.libraries.size());
  if (number == 0 || number > kMostLibraries) fail("one to 8 libraries are needed");
  if (options.ranks < 1 || options.ranks > kMostRanks) fail("--ranks: 1 to 64");
  return options;
}

// ---- operations -----------------------------------------------------------------------------

enum class Form { kPlain, kReducing, kRooted, kReducingRooted };
enum class Result { kSum, kOfBlock, kOfRoot, kOfRankBefore };

struct Operation {
  const char* name;
  const char* function;
  Form form;  // which arguments it takes
  // Whether the buffer has a block for each rank.
  bool input_blocks;
  bool output_blocks;
  bool in_place;
  bool root_alone;  // the output is the root's
  Result result;    // what the output holds where rank r's whole input is r + 1
};

constexpr Operation kOperations[] = {
    {"all_reduce", "rwAllReduce", Form::kReducing, false, false, true, false, Result::kSum},
    {"reduce", "rwReduce", Form::kReducingRooted, false, false, true, true, Result::kSum},
    {"broadcast", "rwBroadcast", Form::kRooted, false, false, true, false, Result::kOfRoot},
    {"all_gather", "rwAllGather", Form::kPlain, false, true, true, false, Result::kOfBlock},
    {"reduce_scatter", "rwReduceScatter", Form::kReducing, true, false, true, false, Result::kSum},
    {"all_to_all", "rwAllToAll", Form::kPlain, true, true, false, false, Result::kOfBlock},
    {"gather", "rwGather", Form::kRooted, false, true, true, true, Result::kOfBlock},
    {"scatter", "rwScatter", Form::kRooted, true, false, true, false, Result::kOfRoot},
    {"sendrecv", "rwSendRecv", Form::kPlain, false, false, false, false, Result::kOfRankBefore},
};

const Operation& operation_of(const std::string& name) {
  for (const Operation& operation : kOperations) {
    if (name == operation.name) return operation;
  }
  fail("unknown operation " + name);
}

float expected(Result result, int ranks, int rank, int block) {
  int value = 0;
  switch (result) {
    case Result::kSum: value = ranks * (ranks + 1) / 2; break;
    case Result::kOfBlock: value = block + 1; break;
    case Result::kOfRoot: value = kRoot + 1; break;
    case Result::kOfRankBefore: value = (rank + ranks - 1) % ranks + 1; break;
  }
  return static_cast<float>(value);
}

// ---- one library ----------------------------------------------------------------------------

struct Call {
  const float* input;
  float* output;
  std::size_t count;  // of a block, or of the buffers of operations without blocks
};

class Library {
 public:
  Library(const std::string& path, const Operation& operation)
      : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)), form_(operation.form) {
    if (handle_ == nullptr) fail(dlerror());
    run_ = find<void*>(operation.function);
  }

  rwUniqueId unique_id() const {
    rwUniqueId id;
    check(find<decltype(&rwGetUniqueId)>("rwGetUniqueId")(&id));
    return id;
  }
  void join(int ranks, const rwUniqueId& id, int rank) {
    check(find<decltype(&rwCommInitRank)>("rwCommInitRank")(&comm_, ranks, id, rank));
  }
  void leave() {
    check(find<decltype(&rwCommFinalize)>("rwCommFinalize")(comm_));
    check(find<decltype(&rwCommDestroy)>("rwCommDestroy")(comm_));
  }

  void run(const Call& call) const {
    const auto& [input, output, count] = call;
    constexpr rwDataType_t kType = rwFloat32;
    switch (form_) {
      case Form::kPlain:
        return check(
            as<decltype(&rwAllGather)>(run_)(input, output, count, kType, comm_, nullptr, nullptr));
      case Form::kReducing:
        return check(as<decltype(&rwAllReduce)>(run_)(input, output, count, kType, rwSum, comm_,
                                                      nullptr, nullptr));
      case Form::kRooted:
        return check(as<decltype(&rwBroadcast)>(run_)(input, output, count, kType, kRoot, comm_,
                                                      nullptr, nullptr));
      case Form::kReducingRooted:
        return check(as<decltype(&rwReduce)>(run_)(input, output, count, kType, rwSum, kRoot, comm_,
                                                   nullptr, nullptr));
    }
  }

 private:
  template <typename Function>
  static Function as(void* function) {
    return reinterpret_cast<Function>(function);
  }
  template <typename Function>
  Function find(const char* name) const {
    void* const found = dlsym(handle_, name);
    if (found == nullptr) fail(path_ + " has no " + name);
    return as<Function>(found);
  }
  void check(rwResult_t result) const {
    if (result != rwSuccess) fail(find<decltype(&rwGetLastError)>("rwGetLastError")(comm_));
  }

  std::string path_;
  void* handle_;
  Form form_;
  void* run_ = nullptr;
  rwComm_t comm_ = nullptr;
};

// ---- ranks ----------------------------------------------------------------------------------

// In memory that all ranks map.
struct Shared {
  std::atomic<unsigned> arrived;
  std::atomic<unsigned> generation;
  rwUniqueId ids[kMostLibraries];
  double seconds[kMostRanks];
};

class Rank {
 public:
  Rank(const Options& options, Shared& shared, int rank)
      : options_(options),
        operation_(operation_of(options.operation)),
        shared_(shared),
        rank_(rank) {
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(options.cpus[static_cast<std::size_t>(rank) % options.cpus.size()], &cpu);
    if (sched_setaffinity(0, sizeof cpu, &cpu) != 0) fail("sched_setaffinity fails");
    for (const std::string& path : options.libraries) libraries_.emplace_back(path, operation_);
    for (std::size_t i = 0; i < libraries_.size(); ++i) {
      if (rank == 0) shared.ids[i] = libraries_[i].unique_id();
      meet();
      libraries_[i].join(options.ranks, shared.ids[i], rank);
    }
  }

  void run() {
    for (const std::size_t bytes : options_.sizes) {
      point(bytes, false);
      if (operation_.in_place) point(bytes, true);
    }
    for (Library& each : libraries_) each.leave();
  }

 private:
  // Waits for all ranks; the library is not used for it.
  void meet() {
    const unsigned now = shared_.generation;
    if (++shared_.arrived == static_cast<unsigned>(options_.ranks)) {
      shared_.arrived = 0;
      ++shared_.generation;
      return;
    }
    while (shared_.generation == now) sched_yield();
  }

  float* memory(std::size_t bytes) const {
    constexpr std::size_t kHuge = 2UL << 20;
    void* const got =
        mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) fail("mmap fails");
    auto* const begin = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(got) + kHuge - 1) / kHuge * kHuge);
    madvise(begin, bytes, options_.huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return reinterpret_cast<float*>(begin);
  }

  void point(std::size_t bytes, bool in_place) {
    const int blocks = operation_.input_blocks || operation_.output_blocks ? options_.ranks : 1;
    const std::size_t count =
        std::max<std::size_t>(1, bytes / sizeof(float) / static_cast<std::size_t>(blocks));
    const std::size_t largest = count * static_cast<std::size_t>(blocks) * sizeof(float);
    const std::size_t stride = (largest + kPage - 1) / kPage * kPage;
    // Two buffers in turn, or as many as the turnover has.
    const std::size_t places =
        options_.cached ? 1 : std::max<std::size_t>(2, kTurnover / 2 / stride);
    float* const inputs = memory(places * stride);
    float* const outputs = in_place ? inputs : memory(places * stride);
    const auto fill = [&](float input, float output) {
      std::fill_n(outputs, places * stride / sizeof(float), output);
      std::fill_n(inputs, places * stride / sizeof(float), input);
    };

    const Library* library = nullptr;
    Call call{nullptr, nullptr, count};
    std::size_t next = 0;
    const auto aim = [&](std::size_t place) {
      float* const in = inputs + place * stride / sizeof(float);
      call.input = in;
      call.output = outputs + place * stride / sizeof(float);
      if (!in_place) return;
      const std::size_t own = static_cast<std::size_t>(rank_) * count;
      if (operation_.input_blocks < operation_.output_blocks) call.input = in + own;
      if (operation_.input_blocks > operation_.output_blocks) call.output = in + own;
    };
    const auto repeat = [&](std::size_t times) {
      for (std::size_t i = 0; i < times; ++i) {
        aim(next);
        next = next + 1 == places ? 0 : next + 1;
        library->run(call);
      }
    };

    for (const Library& each : libraries_) {
      library = &each;
      fill(static_cast<float>(rank_ + 1), -1);  // so that each has to make its own result
      meet();
      repeat(1);
      check(call);
      meet();
    }
    fill(0, 0);  // sums in place would grow without end

    std::vector<std::vector<double>> times(libraries_.size());
    std::vector<std::size_t> calls(libraries_.size());
    for (std::size_t i = 0; i < libraries_.size(); ++i) {
      library = &libraries_[i];
      calls[i] = calls_in_time(repeat);
    }
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < libraries_.size(); ++i) {
        const std::size_t who = round % 2 == 0 ? i : libraries_.size() - 1 - i;
        library = &libraries_[who];
        repeat(calls[who] / 10 + 1);
        times[who].push_back(timed(repeat, calls[who]));
      }
    }
    if (rank_ == 0) print(bytes, in_place, times);
    munmap(inputs, places * stride);
    if (!in_place) munmap(outputs, places * stride);
  }

  void check(const Call& call) const {
    if (operation_.root_alone && rank_ != kRoot) return;
    const int blocks = operation_.output_blocks ? options_.ranks : 1;
    for (int block = 0; block < blocks; ++block) {
      const float* const begin = call.output + static_cast<std::size_t>(block) * call.count;
      const float right = expected(operation_.result, options_.ranks, rank_, block);
      if (std::any_of(begin, begin + call.count, [&](float v) { return v != right; })) {
        fail("wrong results: " + options_.operation);
      }
    }
  }

  // The slowest rank's seconds per call.
  template <typename Repeat>
  double timed(const Repeat& repeat, std::size_t calls) {
    meet();
    const Clock::time_point begin = Clock::now();
    repeat(calls);
    const std::chrono::duration<double> took = Clock::now() - begin;
    shared_.seconds[rank_] = took.count() / static_cast<double>(calls);
    meet();
    const double slowest = *std::max_element(shared_.seconds, shared_.seconds + options_.ranks);
    meet();
    return slowest;
  }

  // Grows the number of calls until they take `seconds`; all ranks find the same one.
  template <typename Repeat>
  std::size_t calls_in_time(const Repeat& repeat) {
    std::size_t calls = 3;
    for (;;) {
      const double seconds = timed(repeat, calls) * static_cast<double>(calls);
      if (seconds > options_.seconds / 2 || calls > 1'000'000) {
        const double wanted = static_cast<double>(calls) * options_.seconds / seconds;
        return std::max<std::size_t>(3, static_cast<std::size_t>(wanted));
      }
      calls *= 2;
    }
  }

  void print(std::size_t bytes, bool in_place, const std::vector<std::vector<double>>& times) {
    std::string text;
    for (const std::vector<double>& rounds : times) {
      text += text.empty() ? "[" : ", [";
      for (std::size_t i = 0; i < rounds.size(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(rounds[i] * 1e6);
      }
      text += "]";
    }
    std::printf(
        "{\"operation\": \"%s\", \"bytes\": %zu, \"in_place\": %s, \"microseconds\": [%s]}\n",
        options_.operation.c_str(), bytes, in_place ? "true" : "false", text.c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  const Operation& operation_;
  Shared& shared_;
  const int rank_;
  std::vector<Library> libraries_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap fails");
  auto& shared = *static_cast<Shared*>(memory);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) fail("fork fails");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Rank(options, shared, rank).run();
      std::exit(0);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (std::size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    if (ended < 0) break;
    if (status == 0) continue;
    // The others may wait for the one that failed.
    if (worst == 0) {
      for (const pid_t each : children) {
        if (each != ended) kill(each, SIGKILL);
      }
    }
    worst = 1;
  }
  return worst;
}
