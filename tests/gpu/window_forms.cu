// Messages by kernels, of which every byte is compared, and waits of kernels that a lost rank ends.
//
// Run: under a launcher (torchrun --no-python), any number of ranks, GPUs shared where there are
// fewer.
//
//   window_forms                 every form of a message by a thread, a warp and a block
//   window_forms armed           batches that a kernel's one store triggers (rwBatchArm)
//   window_forms lost WAITER     waits for rank 1, or the next one, until it is killed; WAITER is
//                                wait_signal, receive, batch, stream (rwQueueReceive) or armed
//
// A line for each case on rank 0, and for each failure on any rank. Exit status 0 when all was
// right.
#include <cuda_runtime.h>
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <ropewalk/device.cuh>
#include <string>
#include <vector>

#include "capi/testing/window_forms.h"

using namespace ropewalk::capi::testing;
namespace device = ropewalk::device;

constexpr std::size_t kSizes[] = {0, 1, 8, 9, 100, 4097, 65'552, (1 << 20) + 5};
constexpr std::size_t kMost = (1 << 20) + 5;
constexpr int kThreads[] = {1, 32, 256};
constexpr const char* kScopeNames[] = {"thread", "warp", "block"};
// One byte after the other takes a thread a microsecond each.
constexpr std::size_t kMostOf[] = {4097, 65'552, kMost};

static void check(rwResult_t result, rwComm_t comm) {
  if (result == rwSuccess) return;
  std::fprintf(stderr, "FAILED: %s: %s\n", rwGetErrorString(result), rwGetLastError(comm));
  std::exit(EXIT_FAILURE);
}
static void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "FAILED: %s\n", cudaGetErrorString(result));
  std::exit(EXIT_FAILURE);
}

struct Rank {
  rwComm_t comm = nullptr;
  int rank = 0;
  int size = 0;
  int gpu = 0;
  cudaStream_t stream = nullptr;
  [[nodiscard]] rwStream_t of_calls() const { return reinterpret_cast<rwStream_t>(stream); }
  [[nodiscard]] int right() const { return (rank + 1) % size; }
  [[nodiscard]] int left() const { return (rank + size - 1) % size; }
  // Why the communicator broke; the host hears a little later what a kernel came to.
  [[nodiscard]] std::string broken() const {
    rwResult_t error = rwSuccess;
    for (int k = 0; k < 1000 && error == rwSuccess; ++k) {
      check(rwCommGetAsyncError(comm, &error), comm);
      usleep(1000);
    }
    if (error == rwSuccess) return "the communicator is whole";
    error = rwBarrier(comm);
    return std::string(rwGetErrorString(error)) + ": " + rwGetLastError(comm);
  }
};

static Rank join() {
  Rank rank;
  const char* local = std::getenv("LOCAL_RANK");
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  rank.gpu = (local != nullptr ? std::atoi(local) : 0) % gpus;
  check(cudaSetDevice(rank.gpu));
  check(rwCommInitEnv(&rank.comm), nullptr);
  check(rwCommUserRank(rank.comm, &rank.rank), rank.comm);
  check(rwCommCount(rank.comm, &rank.size), rank.comm);
  check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  return rank;
}

template <typename T>
static T* on_gpu(std::size_t count) {
  void* made = nullptr;
  check(cudaMalloc(&made, count * sizeof(T)));
  check(cudaMemset(made, 0, count * sizeof(T)));
  return static_cast<T*>(made);
}
template <typename T>
static T* pinned() {
  void* made = nullptr;
  check(cudaHostAlloc(&made, sizeof(T), cudaHostAllocMapped));
  return new (made) T;
}

// ---- forms --------------------------------------------------------------------------------------

template <typename Scope>
__global__ void round_of(Memory memory, Round round, Found* found) {
  run_round(Scope{}, memory, round, *found);
}

static bool report(const Rank& rank, int scope, const Round& round, const Found& found) {
  const bool right = found.status == 0 && found.wrong == 0 && found.counted == found.counts;
  char what[200];
  std::snprintf(what, sizeof what, "%-16s %-6s %7zu bytes, source + %zu, target + %zu",
                kFormNames[static_cast<int>(round.form)], kScopeNames[scope], round.bytes,
                round.shifts.source, round.shifts.target);
  if (right) {
    if (rank.rank == 0) std::printf("%s: right\n", what);
    return true;
  }
  std::printf("FAILED on rank %d: %s: ", rank.rank, what);
  if (found.status != 0) {
    std::printf("status %d of call %d: %s\n", found.status, found.step, rank.broken().c_str());
  } else if (found.wrong != 0) {
    std::printf("%llu bytes wrong of what was %s: byte %lld is %llu, not %llu\n",
                static_cast<unsigned long long>(found.wrong), found.of_get != 0 ? "got" : "put",
                static_cast<long long>(found.at), static_cast<unsigned long long>(found.got),
                static_cast<unsigned long long>(found.expected));
  } else {
    std::printf("signal_count rose by %llu, not %llu\n",
                static_cast<unsigned long long>(found.counted),
                static_cast<unsigned long long>(found.counts));
  }
  return false;
}

static bool run_forms(const Rank& rank) {
  rwMessageWindow_t window = nullptr;
  check(rwWindowCreateOn(rank.comm, rank.gpu, bytes_of_memory(kMost), kSlots, &window), rank.comm);
  Memory memory;
  check(rwWindowDevice(window, &memory.window), rank.comm);
  void* mine = nullptr;
  check(rwWindowMemory(window, rank.rank, &mine, nullptr), rank.comm);
  memory.mine = static_cast<unsigned char*>(mine);
  memory.source = on_gpu<unsigned char>(bytes_of_memory(kMost));
  memory.back = on_gpu<unsigned char>(bytes_of_memory(kMost));
  memory.right = rank.right();
  memory.left = rank.left();
  Found* const found = on_gpu<Found>(1);
  Found* const seen = pinned<Found>();
  Round round;
  int cases = 0;
  int failures = 0;
  for (int scope = 0; scope < 3; ++scope) {
    for (int form = 0; form < kForms; ++form) {
      for (const Shifts& shifts : kShifts) {
        for (const std::size_t bytes : kSizes) {
          if (bytes > kMostOf[scope]) continue;
          round.form = static_cast<Form>(form);
          round.shifts = shifts;
          round.bytes = bytes;
          ++round.turn;
          check(cudaMemsetAsync(found, 0, sizeof *found, rank.stream));
          if (scope == 0) {
            round_of<device::Thread><<<1, kThreads[0], 0, rank.stream>>>(memory, round, found);
          } else if (scope == 1) {
            round_of<device::Warp><<<1, kThreads[1], 0, rank.stream>>>(memory, round, found);
          } else {
            round_of<device::Block><<<1, kThreads[2], 0, rank.stream>>>(memory, round, found);
          }
          check(cudaGetLastError());
          check(cudaMemcpyAsync(seen, found, sizeof *found, cudaMemcpyDeviceToHost, rank.stream));
          check(cudaStreamSynchronize(rank.stream));
          ++cases;
          if (!report(rank, scope, round, *seen)) ++failures;
          // The others' waits end, too, and tell why.
          if (seen->status != 0) return false;
        }
      }
    }
  }
  if (failures == 0 && rank.rank == 0) std::printf("%d ranks: %d cases right\n", rank.size, cases);
  check(rwWindowFree(window), rank.comm);
  return failures == 0;
}

// ---- armed batches ------------------------------------------------------------------------------

template <typename Scope>
__global__ void write_and_launch(rwDeviceTrigger trigger, unsigned char* source, std::size_t bytes,
                                 int rank, int turn) {
  const Scope scope;
  for (std::size_t k = scope.rank(); k < bytes; k += scope.size()) {
    source[k] = byte_of(rank, turn, k);
  }
  device::launch(scope, trigger);
}

static bool run_armed(const Rank& rank) {
  constexpr std::size_t kBytes = 100'001;
  constexpr int kTurns = 20;
  rwMessageWindow_t window = nullptr;
  check(rwWindowCreateOn(rank.comm, rank.gpu, kBytes, 2, &window), rank.comm);
  void* mine = nullptr;
  check(rwWindowMemory(window, rank.rank, &mine, nullptr), rank.comm);
  auto* const source = on_gpu<unsigned char>(kBytes);
  std::vector<unsigned char> got(kBytes);
  rwBatch_t batch = nullptr;
  check(rwBatchCreate(rank.comm, &batch), rank.comm);
  constexpr std::size_t kFirst = 8;
  check(rwBatchPut(batch, source, kFirst, rank.right(), 0, window), rank.comm);
  check(rwBatchPut(batch, source + kFirst, kBytes - kFirst, rank.right(), kFirst, window),
        rank.comm);
  check(rwBatchSignal(batch, rank.right(), 0, 1, window), rank.comm);
  cudaStream_t other = nullptr;
  check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  int turn = 0;
  for (int scope = 0; scope < 3; ++scope) {
    for (int k = 0; k < kTurns; ++k) {
      ++turn;
      rwDeviceTrigger trigger;
      check(rwBatchArm(batch, rank.of_calls(), &trigger), rank.comm);
      check(rwWaitSignal(rank.left(), 0, 1, window, rank.of_calls(), nullptr), rank.comm);
      if (cudaStreamQuery(rank.stream) != cudaErrorNotReady) {
        std::printf("FAILED on rank %d: armed, %s, turn %d: not held back\n", rank.rank,
                    kScopeNames[scope], k);
        return false;
      }
      (void)cudaGetLastError();  // that it is not ready
      if (scope == 0) {
        write_and_launch<device::Thread>
            <<<1, kThreads[0], 0, other>>>(trigger, source, kBytes, rank.rank, turn);
      } else if (scope == 1) {
        write_and_launch<device::Warp>
            <<<1, kThreads[1], 0, other>>>(trigger, source, kBytes, rank.rank, turn);
      } else {
        write_and_launch<device::Block>
            <<<1, kThreads[2], 0, other>>>(trigger, source, kBytes, rank.rank, turn);
      }
      check(cudaGetLastError());
      check(cudaStreamSynchronize(rank.stream));
      check(cudaStreamSynchronize(other));
      check(cudaMemcpy(got.data(), mine, kBytes, cudaMemcpyDeviceToHost));
      for (std::size_t byte = 0; byte < kBytes; ++byte) {
        if (got[byte] == byte_of(rank.left(), turn, byte)) continue;
        std::printf("FAILED on rank %d: armed, %s, turn %d: byte %zu is %d, not %d. %s\n",
                    rank.rank, kScopeNames[scope], k, byte, got[byte],
                    byte_of(rank.left(), turn, byte), rank.broken().c_str());
        return false;
      }
      // The left one may put again.
      check(rwSignal(rank.left(), 1, 1, window, nullptr, nullptr), rank.comm);
      check(rwWaitSignal(rank.right(), 1, 1, window, nullptr, nullptr), rank.comm);
    }
    if (rank.rank == 0) std::printf("armed, %s: %d turns right\n", kScopeNames[scope], kTurns);
  }
  if (rank.rank == 0) std::printf("%d ranks: armed batches right\n", rank.size);
  check(rwBatchFree(batch), rank.comm);
  check(rwWindowFree(window), rank.comm);
  return true;
}

// ---- a lost rank --------------------------------------------------------------------------------

__global__ void wait_for_signal(rwDeviceWindow window, int peer, int* status) {
  *status = static_cast<int>(device::wait_signal(device::Block{}, window, peer));
}
__global__ void receive_from(rwDeviceWindow queues, int peer, unsigned char* memory, int* status) {
  const device::Block block;
  device::Queue<device::Block> queue(block, queues, peer);
  *status = static_cast<int>(queue.receive(memory, 8));
}
__global__ void launch_list(rwDeviceBatch batch, int* status) {
  *status = static_cast<int>(device::launch(device::Block{}, batch));
}

static bool run_lost(const Rank& rank, const std::string& waiter) {
  rwMessageWindow_t window = nullptr;
  const bool of_queues = waiter == "receive" || waiter == "stream";
  check(of_queues ? rwWindowCreateQueues(rank.comm, rank.gpu, 512, 1, &window)
                  : rwWindowCreateOn(rank.comm, rank.gpu, 64, 1, &window),
        rank.comm);
  rwDeviceWindow handle;
  check(rwWindowDevice(window, &handle), rank.comm);
  const int peer = rank.right();
  auto* const memory = on_gpu<unsigned char>(64);
  int* const status = pinned<int>();
  *status = static_cast<int>(device::Status::kAborted);
  rwBatch_t batch = nullptr;
  rwDeviceBatch list;
  check(rwBatchCreate(rank.comm, &batch), rank.comm);
  check(rwBatchSignal(batch, rank.rank, 0, 1, window), rank.comm);
  check(rwBatchWaitSignal(batch, peer, 0, 1, window), rank.comm);
  check(rwBarrier(rank.comm), rank.comm);
  if (waiter == "wait_signal") {
    wait_for_signal<<<1, 64, 0, rank.stream>>>(handle, peer, status);
  } else if (waiter == "receive") {
    receive_from<<<1, 64, 0, rank.stream>>>(handle, peer, memory, status);
  } else if (waiter == "stream") {
    check(rwQueueReceive(memory, 8, peer, 0, window, rank.of_calls()), rank.comm);
  } else if (waiter == "batch") {
    check(rwBatchDevice(batch, &list), rank.comm);
    launch_list<<<1, 64, 0, rank.stream>>>(list, status);
  } else if (waiter == "armed") {
    rwDeviceTrigger trigger;
    check(rwBatchArm(batch, rank.of_calls(), &trigger), rank.comm);
  } else {
    std::printf("FAILED: %s is no waiter\n", waiter.c_str());
    return false;
  }
  check(cudaGetLastError());
  std::printf("waiting\n");
  std::fflush(stdout);
  check(cudaStreamSynchronize(rank.stream));
  timeval now{};
  gettimeofday(&now, nullptr);
  const rwResult_t error = rwBarrier(rank.comm);
  const std::string text = rwGetLastError(rank.comm);
  // CUDA's context is whole.
  check(cudaMemset(memory, 1, 64));
  check(cudaDeviceSynchronize());
  const bool right =
      error == rwRemoteError && *status == static_cast<int>(device::Status::kAborted);
  std::printf("%s at %lld.%06lld: %s (status %d)\n", right ? "PeerLostError" : "FAILED",
              static_cast<long long>(now.tv_sec), static_cast<long long>(now.tv_usec), text.c_str(),
              *status);
  std::fflush(stdout);
  (void)rwCommAbort(rank.comm);
  return right;
}

int main(int argc, char** argv) {
  // Loading a kernel at its first launch waits for what runs, and may wait for this very rank.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const std::string part = argc > 1 ? argv[1] : "forms";
  const Rank rank = join();
  if (part == "lost" && argc > 2) {
    return run_lost(rank, argv[2]) ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  const bool right = part == "armed" ? run_armed(rank) : run_forms(rank);
  std::fflush(stdout);
  if (!right) {
    (void)rwCommAbort(rank.comm);
    return EXIT_FAILURE;
  }
  check(rwCommDestroy(rank.comm), nullptr);
  return EXIT_SUCCESS;
}
