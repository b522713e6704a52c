// Times operations of one libnccl.so.2, in one thread with all GPUs or one process per GPU; in the
// mode `hosts` each process tells NCCL that it is another host, in the mode `hosts=N` as many
// following each other as N hosts have in equal shares.
//
//   nccl_loop LIBRARY thread|process|hosts[=N] GPUS MAX_BYTES [windows]
//
// With `windows` the buffers are of ncclMemAlloc, and registered as symmetric windows.
//
// Reads commands from standard input, one a line: OPERATION BYTES stream|graph ITERATIONS. Answers
// each by a line: the microseconds of one operation and the number of wrong elements, or "error"
// and why. The operation lose_rank kills the last rank's process in the middle of all-reduces of
// BYTES: the answer is the time until all others' NCCL reports it, and the error code; it is the
// last command. The first line out tells the version of the library and the seconds that starting
// took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <vector>

#include "crew.h"
#include "cuda_check.h"
#include "join.h"
#include "operations.cuh"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kWarmups = 5;
// Calls in one graph: one replay is then long against its own launch.
constexpr int kCallsPerGraph = 20;
// A rank's death must be known to the others by then.
constexpr double kLossLimitS = 20;

struct Gpu {
  int device = 0;  // and rank
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* in = nullptr;
  float* out = nullptr;
  unsigned long long* wrong = nullptr;
  cudaGraphExec_t graph = nullptr;
};

/// The ranks of one process.
class Worker {
 public:
  Worker(Crew& crew, const char* library, int first, int own, int ranks, std::size_t max_bytes,
         bool windows)
      : crew_(crew), nccl_(library), ranks_(ranks), gpus_(static_cast<std::size_t>(own)) {
    if (windows && (nccl_.CommWindowRegister == nullptr || nccl_.MemAlloc == nullptr)) {
      throw std::runtime_error("the library has no windows");
    }
    max_bytes = std::max<std::size_t>(max_bytes, 4096);
    for (int g = 0; g < own; ++g) {
      Gpu& gpu = gpus_[static_cast<std::size_t>(g)];
      gpu.device = first + g;
      CHECK_CUDA(cudaSetDevice(gpu.device));
      CHECK_CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
      gpu.in = allocate(max_bytes, windows);
      gpu.out = allocate(max_bytes, windows);
      CHECK_CUDA(cudaMalloc(&gpu.wrong, sizeof *gpu.wrong));
      fill<<<512, 256, 0, gpu.stream>>>(gpu.in, max_bytes / sizeof(float), gpu.device);
      CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
    }
    if (own == ranks) {
      std::vector<ncclComm_t> comms(gpus_.size());
      nccl_.check(nccl_.CommInitAll(comms.data(), own, nullptr), "CommInitAll");
      for (std::size_t g = 0; g < gpus_.size(); ++g) gpus_[g].comm = comms[g];
    } else {
      gpus_.front().comm = join(crew_, nccl_, first, ranks);
    }
    if (windows) register_windows(max_bytes);
  }

  int version() const {
    int version = 0;
    nccl_.check(nccl_.GetVersion(&version), "GetVersion");
    return version;
  }

  void carry_out(const Command& command, Outcome& outcome) {
    const Operation operation = operation_of(command.operation);
    std::size_t count = command.bytes / sizeof(float);
    if (in_parts(operation))
      count = std::max<std::size_t>(1, count / static_cast<std::size_t>(ranks_));
    const int batch = command.graph ? kCallsPerGraph : 1;
    if (command.graph) capture(operation, count);
    const int repeats = std::max(1, command.iterations / batch);
    for (int i = 0; i < (command.graph ? 2 : kWarmups); ++i) step(operation, count, command.graph);
    synchronize();
    crew_.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) step(operation, count, command.graph);
    synchronize();
    outcome.seconds = seconds_since(begin) / repeats / batch;
    crew_.barrier();
    outcome.wrong = check(operation, count);
    release_graphs();
  }

  /// The last rank's process dies while all-reduces are in progress.
  void lose_rank(const Command& command, Outcome& outcome) {
    const std::size_t count = std::max<std::size_t>(1, command.bytes / sizeof(float));
    enqueue(Operation::kAllReduce, count);
    synchronize();
    crew_.barrier();
    for (int i = 0; i < command.iterations; ++i) enqueue(Operation::kAllReduce, count);
    const Gpu& gpu = gpus_.front();
    if (gpu.device == ranks_ - 1) {
      usleep(2000);
      kill(getpid(), SIGKILL);
    }
    const auto begin = Clock::now();
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess || state == ncclInProgress) {
      nccl_.check(nccl_.CommGetAsyncError(gpu.comm, &state), "CommGetAsyncError");
      if (seconds_since(begin) > kLossLimitS) throw std::runtime_error("NCCL reports no error");
      usleep(1000);
    }
    outcome.seconds = seconds_since(begin);
    outcome.wrong = static_cast<unsigned long long>(state);
    nccl_.check(nccl_.CommAbort(gpu.comm), "CommAbort");
    synchronize();
  }

  void destroy() {
    for (Gpu& gpu : gpus_) {
      CHECK_CUDA(cudaSetDevice(gpu.device));
      nccl_.check(nccl_.CommDestroy(gpu.comm), "CommDestroy");
    }
  }

 private:
  float* allocate(std::size_t bytes, bool windows) {
    void* memory = nullptr;
    if (windows) {
      nccl_.check(nccl_.MemAlloc(&memory, bytes), "MemAlloc");
    } else {
      CHECK_CUDA(cudaMalloc(&memory, bytes));
    }
    return static_cast<float*>(memory);
  }

  // They stay until the communicators end.
  void register_windows(std::size_t bytes) {
    constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    for (float* Gpu::*buffer : {&Gpu::in, &Gpu::out}) {
      std::vector<ncclWindow_t> windows(gpus_.size());
      nccl_.check(nccl_.GroupStart(), "GroupStart");
      for (std::size_t g = 0; g < gpus_.size(); ++g) {
        CHECK_CUDA(cudaSetDevice(gpus_[g].device));
        nccl_.check(nccl_.CommWindowRegister(gpus_[g].comm, gpus_[g].*buffer, bytes, &windows[g],
                                             kSymmetric),
                    "CommWindowRegister");
      }
      nccl_.check(nccl_.GroupEnd(), "GroupEnd");
    }
  }

  void enqueue(Operation operation, std::size_t count) {
    if (gpus_.size() > 1) nccl_.check(nccl_.GroupStart(), "GroupStart");
    for (Gpu& gpu : gpus_) {
      call(nccl_, operation, gpu.in, gpu.out, count, gpu.device, ranks_, gpu.comm, gpu.stream);
    }
    if (gpus_.size() > 1) nccl_.check(nccl_.GroupEnd(), "GroupEnd");
  }

  void step(Operation operation, std::size_t count, bool graph) {
    if (!graph) {
      enqueue(operation, count);
      return;
    }
    for (Gpu& gpu : gpus_) CHECK_CUDA(cudaGraphLaunch(gpu.graph, gpu.stream));
  }

  void capture(Operation operation, std::size_t count) {
    // Once outside: a library may set things up at the first call of a kind.
    enqueue(operation, count);
    synchronize();
    for (Gpu& gpu : gpus_) {
      CHECK_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    }
    for (int i = 0; i < kCallsPerGraph; ++i) enqueue(operation, count);
    // All captures end first: none may be open in this thread when a graph is instantiated.
    std::vector<cudaGraph_t> graphs(gpus_.size());
    for (std::size_t g = 0; g < gpus_.size(); ++g) {
      CHECK_CUDA(cudaStreamEndCapture(gpus_[g].stream, &graphs[g]));
    }
    for (std::size_t g = 0; g < gpus_.size(); ++g) {
      CHECK_CUDA(cudaSetDevice(gpus_[g].device));
      CHECK_CUDA(cudaGraphInstantiate(&gpus_[g].graph, graphs[g], 0));
      CHECK_CUDA(cudaGraphDestroy(graphs[g]));
    }
  }

  void release_graphs() {
    for (Gpu& gpu : gpus_) {
      if (gpu.graph != nullptr) CHECK_CUDA(cudaGraphExecDestroy(gpu.graph));
      gpu.graph = nullptr;
    }
  }

  void synchronize() {
    for (Gpu& gpu : gpus_) CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
  }

  // One more operation into outputs that hold nothing right.
  unsigned long long check(Operation operation, std::size_t count) {
    for (Gpu& gpu : gpus_) {
      CHECK_CUDA(cudaSetDevice(gpu.device));
      const std::size_t length = output_length(operation, count, gpu.device, ranks_);
      CHECK_CUDA(cudaMemsetAsync(gpu.out, 0xff, length * sizeof(float), gpu.stream));
      CHECK_CUDA(cudaMemsetAsync(gpu.wrong, 0, sizeof *gpu.wrong, gpu.stream));
    }
    synchronize();
    crew_.barrier();
    enqueue(operation, count);
    unsigned long long total = 0;
    for (Gpu& gpu : gpus_) {
      CHECK_CUDA(cudaSetDevice(gpu.device));
      const std::size_t length = output_length(operation, count, gpu.device, ranks_);
      count_wrong<<<512, 256, 0, gpu.stream>>>(operation, gpu.out, length, count, gpu.device,
                                               ranks_, gpu.wrong);
      CHECK_CUDA(cudaGetLastError());
    }
    synchronize();
    for (Gpu& gpu : gpus_) {
      unsigned long long wrong = 0;
      CHECK_CUDA(cudaMemcpy(&wrong, gpu.wrong, sizeof wrong, cudaMemcpyDeviceToHost));
      total += wrong;
    }
    return total;
  }

  Crew& crew_;
  NcclFunctions nccl_;
  int ranks_;
  std::vector<Gpu> gpus_;
};

bool is_loss(const Command& command) { return std::strcmp(command.operation, "lose_rank") == 0; }

void note_error(Outcome& outcome, const char* text) {
  std::strncpy(outcome.error, text, sizeof outcome.error - 1);
  for (char& c : outcome.error) {
    if (c == '\n') c = ' ';
  }
}

// A worker that has failed is out of step with the others: it says why and takes no more commands.
void work(Crew& crew, int number, const char* library, int hosts, int ranks, std::size_t max_bytes,
          bool windows) {
  Shared& shared = crew.shared();
  Outcome& outcome = shared.outcomes[number];
  const int own = ranks / crew.workers();
  int commands = 0;
  try {
    if (hosts > 0) {
      const std::string host = std::to_string(number * hosts / crew.workers());
      setenv("NCCL_HOSTID", ("host-" + host).c_str(), 1);
      setenv("SOFTWARE_SISCI_HOST", host.c_str(), 1);  // of software PCIe bridges
    }
    crew.next(commands);
    const auto begin = Clock::now();
    Worker worker(crew, library, number * own, own, ranks, max_bytes, windows);
    outcome.seconds = seconds_since(begin);
    if (number == 0) outcome.wrong = static_cast<unsigned long long>(worker.version());
    shared.done.fetch_add(1);
    while (true) {
      crew.next(commands);
      if (shared.command.operation[0] == '\0') break;
      if (is_loss(shared.command)) {
        worker.lose_rank(shared.command, outcome);
        shared.done.fetch_add(1);
        return;
      }
      worker.carry_out(shared.command, outcome);
      shared.done.fetch_add(1);
    }
    worker.destroy();
  } catch (const std::exception& error) {
    note_error(outcome, error.what());
    shared.failed.store(true);
  }
  shared.done.fetch_add(1);
  // Without destructors, since the communicators may be broken.
}

bool print_outcome(Crew& crew, bool alive) {
  const Shared& shared = crew.shared();
  double seconds = 0;
  unsigned long long wrong = 0;
  const char* error = nullptr;
  for (int w = 0; w < crew.workers(); ++w) {
    const Outcome& outcome = shared.outcomes[w];
    seconds = std::max(seconds, outcome.seconds);
    wrong += outcome.wrong;
    // The first failure is more telling than those of the others.
    if (outcome.error[0] != '\0' &&
        (error == nullptr || std::strcmp(error, "another worker failed") == 0)) {
      error = outcome.error;
    }
  }
  if (error == nullptr && !alive) error = "a worker has died";
  if (error != nullptr) {
    std::printf("error %s\n", error);
  } else {
    std::printf("%.4f %llu\n", seconds * 1e6, wrong);
  }
  std::fflush(stdout);
  return error == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const bool windows = argc == 6 && std::strcmp(argv[5], "windows") == 0;
  if (argc != 5 && !windows) {
    std::fprintf(stderr,
                 "usage: nccl_loop LIBRARY thread|process|hosts[=N] GPUS MAX_BYTES [windows]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[3]);
  int hosts = std::strcmp(argv[2], "hosts") == 0 ? ranks : 0;
  if (std::strncmp(argv[2], "hosts=", 6) == 0) {
    hosts = std::atoi(argv[2] + 6);
    if (hosts < 1 || hosts > ranks) {
      std::fprintf(stderr, "nccl_loop: %s: from 1 to %d hosts\n", argv[2], ranks);
      return 2;
    }
  }
  const bool processes = hosts > 0 || std::strcmp(argv[2], "process") == 0;
  const std::size_t max_bytes = std::strtoull(argv[4], nullptr, 10);
  if (ranks < 1 || ranks > kMaxWorkers) {
    std::fprintf(stderr, "nccl_loop: %s GPUs are outside 1 to %d\n", argv[3], kMaxWorkers);
    return 2;
  }
  Crew crew(processes ? ranks : 1);
  crew.start([&](int worker) { work(crew, worker, argv[1], hosts, ranks, max_bytes, windows); });
  // The first command is to start. Its answer holds the version.
  Command command{};
  bool whole = print_outcome(crew, crew.carry_out(command));
  std::string line;
  while (whole && std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string operation;
    std::string launch;
    command = Command{};
    words >> operation >> command.bytes >> launch >> command.iterations;
    if (!words || operation.size() >= sizeof command.operation || command.bytes > max_bytes) {
      std::printf("error malformed command \"%s\"\n", line.c_str());
      std::fflush(stdout);
      continue;
    }
    std::strcpy(command.operation, operation.c_str());
    command.graph = launch == "graph";
    const bool loss = is_loss(command);
    whole = print_outcome(crew, crew.carry_out(command, loss ? 1 : 0));
    if (loss) return whole ? 0 : 1;
  }
  if (whole) {
    const Command end{};
    crew.carry_out(end);
  }
  return whole ? 0 : 1;
}
