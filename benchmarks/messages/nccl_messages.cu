// ncclPutSignal and ncclWaitSignal of one libnccl.so.2 (2.29 and later) between two GPUs of a host,
// one process for each: NVIDIA's library and Ropewalk's in the same program.
//
//   nccl_messages LIBRARY [MOST_BYTES [ROUNDS]]
//
// Prints the library's version, then a line for each size: "BYTES SECONDS ENQUEUE_S WRONG": half a
// round trip of data and signal on streams, medians of ROUNDS; what the host's calls for one
// message, a put and a wait, take; bytes that are wrong at the end. Data lies in symmetric windows
// of ncclMemAlloc, the sources too.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "nccl_compare/crew.h"
#include "nccl_compare/cuda_check.h"
#include "nccl_compare/join.h"
#include "nccl_compare/nccl_functions.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTrips = 200;
// The host's time is that of so few: streams that hold more may make the next calls wait.
constexpr int kBurst = 20;
constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Rank {
 public:
  Rank(Crew& crew, const char* library, int rank, std::size_t most)
      : crew_(crew), nccl_(library), rank_(rank) {
    if (nccl_.PutSignal == nullptr || nccl_.WaitSignal == nullptr) {
      throw std::runtime_error("the library lacks ncclPutSignal");
    }
    CHECK_CUDA(cudaSetDevice(rank));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    comm_ = join(crew, nccl_, rank, 2);
    for (const bool target : {false, true}) {
      void*& memory = target ? target_ : source_;
      nccl_.check(nccl_.MemAlloc(&memory, most), "MemAlloc");
      CHECK_CUDA(cudaMemset(memory, target ? 0 : 1 + rank, most));
      ncclWindow_t window = nullptr;
      nccl_.check(nccl_.CommWindowRegister(comm_, memory, most, &window, kSymmetric),
                  "CommWindowRegister");
      if (target) window_ = window;
    }
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  int version() const {
    int version = 0;
    nccl_.check(nccl_.GetVersion(&version), "GetVersion");
    return version;
  }

  // Collective; rank 0 prints.
  void measure(std::size_t bytes, int rounds) {
    (void)time(bytes, kBurst);
    std::vector<double> one_way;
    std::vector<double> enqueue;
    for (int round = 0; round < rounds; ++round) {
      one_way.push_back(time(bytes, kTrips).second);
      enqueue.push_back(time(bytes, kBurst).first);
    }
    std::vector<unsigned char> seen(bytes);
    CHECK_CUDA(cudaMemcpy(seen.data(), target_, bytes, cudaMemcpyDeviceToHost));
    const auto wrong =
        bytes - static_cast<std::size_t>(std::count(seen.begin(), seen.end(), 1 + (1 - rank_)));
    if (rank_ == 0) {
      std::printf("%zu %.9g %.9g %zu\n", bytes, median(one_way), median(enqueue), wrong);
      std::fflush(stdout);
    }
    crew_.barrier();
  }

  void destroy() { nccl_.check(nccl_.CommDestroy(comm_), "CommDestroy"); }

 private:
  void put(std::size_t bytes) {
    nccl_.check(
        nccl_.PutSignal(source_, bytes, ncclInt8, 1 - rank_, window_, 0, 0, 0, 0, comm_, stream_),
        "PutSignal");
  }
  void wait() {
    ncclWaitSignalDesc_t one{1, 1 - rank_, 0, 0};
    nccl_.check(nccl_.WaitSignal(1, &one, comm_, stream_), "WaitSignal");
  }

  // Seconds that the host's calls take for a message, and half a round trip.
  std::pair<double, double> time(std::size_t bytes, int trips) {
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    crew_.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < trips; ++i) {
      if (rank_ == 0) put(bytes);
      wait();
      if (rank_ == 1) put(bytes);
    }
    const std::chrono::duration<double> host = Clock::now() - begin;
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    const std::chrono::duration<double> whole = Clock::now() - begin;
    crew_.barrier();
    return {host.count() / trips, whole.count() / trips / 2};
  }

  Crew& crew_;
  NcclFunctions nccl_;
  int rank_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  void* source_ = nullptr;
  void* target_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

void work(Crew& crew, int number, const char* library, std::size_t most, int rounds) {
  try {
    Rank rank(crew, library, number, most);
    if (number == 0) std::printf("# version %d\n", rank.version());
    for (std::size_t bytes = 8; bytes <= most; bytes *= 8) rank.measure(bytes, rounds);
    rank.destroy();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", number, error.what());
    crew.shared().failed.store(true);
    _exit(EXIT_FAILURE);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: nccl_messages LIBRARY [MOST_BYTES [ROUNDS]]\n");
    return 2;
  }
  const std::size_t most = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::size_t{2} << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  if (most < 8 || rounds < 1) {
    std::fprintf(stderr, "nccl_messages: at least 8 bytes and one round\n");
    return 2;
  }
  Crew crew(2);
  crew.start([&](int worker) { work(crew, worker, argv[1], most, rounds); });
  int failures = 0;
  for (int status = 0; wait(&status) > 0;) failures += status == 0 ? 0 : 1;
  return failures == 0 ? 0 : 1;
}
