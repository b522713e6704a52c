// A ring inside one kernel: each rank puts numbers into its neighbour's window, signals, waits for
// those of the other neighbour, and adds them up, again and again without the host.
//
// Run: two GPUs under a launcher, torchrun --no-python --nproc-per-node 2 ./window_kernel
#include <cuda_runtime.h>
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include <cstdio>
#include <cstdlib>
#include <ropewalk/device.cuh>

constexpr int kCount = 1024;
constexpr int kTurns = 100;

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

// One block. Slot 0 says that numbers came, slot 1 that they were read.
__global__ void ring(rwDeviceWindow window, int right, int left, const float* inbox, float* mine,
                     float* sum) {
  using namespace ropewalk::device;
  const Block block;
  for (int turn = 0; turn < kTurns; ++turn) {
    put_signal(block, window, right, 0, mine, kCount * sizeof(float), 0);
    if (wait_signal(block, window, left, 0) != Status::kDone) return;  // the host is told why
    for (int i = threadIdx.x; i < kCount; i += blockDim.x) sum[i] += inbox[i];
    signal(block, window, left, 1);
    if (wait_signal(block, window, right, 1) != Status::kDone) return;
  }
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

  rwMessageWindow_t window = nullptr;
  check(rwWindowCreateOn(comm, device, kCount * sizeof(float), 2, &window), comm);
  rwDeviceWindow on_gpu;
  check(rwWindowDevice(window, &on_gpu), comm);
  void* inbox = nullptr;
  check(rwWindowMemory(window, rank, &inbox, nullptr), comm);

  float host[kCount];
  for (float& value : host) value = static_cast<float>(rank + 1);
  float* mine = nullptr;
  float* sum = nullptr;
  check(cudaMalloc(&mine, sizeof host));
  check(cudaMalloc(&sum, sizeof host));
  check(cudaMemcpy(mine, host, sizeof host, cudaMemcpyHostToDevice));
  check(cudaMemset(sum, 0, sizeof host));
  const int right = (rank + 1) % size;
  const int left = (rank + size - 1) % size;
  ring<<<1, 256>>>(on_gpu, right, left, static_cast<const float*>(inbox), mine, sum);
  check(cudaDeviceSynchronize());
  rwResult_t error = rwSuccess;
  check(rwCommGetAsyncError(comm, &error), comm);
  check(error, comm);
  check(cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost));
  if (rank == 0)
    std::printf("%d ranks: %g from rank %d in %d turns\n", size, host[0], left, kTurns);
  check(rwWindowFree(window), comm);
  check(rwCommDestroy(comm), nullptr);
  check(cudaFree(mine));
  check(cudaFree(sum));
  return host[kCount - 1] == static_cast<float>(kTurns * (left + 1)) ? EXIT_SUCCESS : EXIT_FAILURE;
}
