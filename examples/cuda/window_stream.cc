// A ring in the order of a CUDA stream: the host enqueues puts, signals and waits between its own
// copies and kernels, and waits for nothing itself.
//
// Run: two GPUs under a launcher, torchrun --no-python --nproc-per-node 2 ./window_stream
#include <cuda_runtime_api.h>
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int kTurns = 10;

static void check(rwResult_t result, rwComm_t comm) {
  if (result == rwSuccess) return;
  std::fprintf(stderr, "%s: %s\n", rwGetErrorString(result), rwGetLastError(comm));
  std::exit(EXIT_FAILURE);
}
static void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(result));
  std::exit(EXIT_FAILURE);
}

int main() {
  const char* local = std::getenv("LOCAL_RANK");
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  const int device = (local != nullptr ? std::atoi(local) : 0) % gpus;
  check(cudaSetDevice(device));
  rwComm_t comm = nullptr;
  check(rwCommInitEnv(&comm), nullptr);
  int rank = 0;
  int size = 0;
  check(rwCommUserRank(comm, &rank), comm);
  check(rwCommCount(comm, &size), comm);
  const int right = (rank + 1) % size;
  const int left = (rank + size - 1) % size;

  cudaStream_t on_device = nullptr;
  check(cudaStreamCreateWithFlags(&on_device, cudaStreamNonBlocking));
  auto* const stream = reinterpret_cast<rwStream_t>(on_device);
  const size_t bytes = sizeof(double) * kTurns;
  rwMessageWindow_t window = nullptr;
  check(rwWindowCreateOn(comm, device, bytes, 1, &window), comm);
  void* inbox = nullptr;
  check(rwWindowMemory(window, rank, &inbox, nullptr), comm);

  std::vector<double> host(kTurns);
  for (int turn = 0; turn < kTurns; ++turn) host[turn] = 100.0 * rank + turn;
  double* mine = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&mine), bytes));
  check(cudaMemcpyAsync(mine, host.data(), bytes, cudaMemcpyHostToDevice, on_device));
  for (int turn = 0; turn < kTurns; ++turn) {
    // Is sent after the copy above, which is enqueued and no more.
    check(rwPutSignal(mine + turn, sizeof(double), right, turn * sizeof(double), 0, window, stream,
                      nullptr),
          comm);
  }
  check(rwWaitSignal(left, 0, kTurns, window, stream, nullptr), comm);
  std::vector<double> received(kTurns);
  check(cudaMemcpyAsync(received.data(), inbox, bytes, cudaMemcpyDeviceToHost, on_device));
  check(cudaStreamSynchronize(on_device));
  rwResult_t error = rwSuccess;
  check(rwCommGetAsyncError(comm, &error), comm);
  check(error, comm);
  if (rank == 0) {
    std::printf("%d ranks: %g to %g from rank %d\n", size, received.front(), received.back(), left);
  }
  check(rwWindowFree(window), comm);
  check(rwCommDestroy(comm), nullptr);
  check(cudaFree(mine));
  check(cudaStreamDestroy(on_device));
  return received.back() == 100.0 * left + kTurns - 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
