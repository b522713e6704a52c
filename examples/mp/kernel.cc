/* Half round trips between two ranks, all of them in one kernel on each side: it starts each
 * message by a descriptor, and waits for the peer's by another one.
 *
 * Run: mpirun -n 2 ./kernel, or under another launcher if it was compiled without MPI.
 * Prints one line for each size: bytes, microseconds.
 *
 * The kernel is a thread of the host, and memory the host's; compiled by `nvcc -x cu kernel.cc`
 * it is a GPU's, and the memory, too.
 */
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mp/device.cuh>
#include <thread>
#include <vector>

namespace {

constexpr int kMost = 4096;
constexpr int kSteps = 100;

void check(int result) {
  if (result == MP_SUCCESS) return;
  std::fprintf(stderr, "%s\n", mp_last_error());
  std::exit(EXIT_FAILURE);
}

/* What the kernel gets, in memory that it reaches. */
struct Plan {
  int begins;
  int failed;
  mp::mlx5::send_desc_t start[kSteps];
  mp::mlx5::wait_desc_t received[kSteps];
};

#ifdef __CUDACC__
#define KERNEL __global__
#else
#define KERNEL
#endif

KERNEL void run(Plan* plan) {
  for (int k = 0; k < kSteps; ++k) {
    if (plan->begins) mp::device::mlx5::send(plan->start[k]);
    plan->failed |= mp::device::mlx5::wait(plan->received[k]);
    mp::device::mlx5::signal(plan->received[k]);
    if (!plan->begins) mp::device::mlx5::send(plan->start[k]);
  }
}

#ifdef __CUDACC__
void* allocate(size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
#else
void* allocate(size_t bytes) { return std::malloc(bytes); }
#endif

/* Microseconds of half a round trip. */
double exchange(Plan* plan, int bytes, int peer, void* memory, mp_reg_t* reg) {
  std::vector<mp_request_t> sends(kSteps), receives(kSteps);
  for (size_t k = 0; k < kSteps; ++k) {
    check(mp_irecv(memory, bytes, peer, reg, &receives[k]));
    check(mp_send_prepare(memory, bytes, peer, reg, &sends[k]));
    check(mp::mlx5::get_descriptors(&plan->start[k], &sends[k]));
    check(mp::mlx5::get_descriptors(&plan->received[k], &receives[k]));
  }
  const auto begin = std::chrono::steady_clock::now();
#ifdef __CUDACC__
  run<<<1, 1>>>(plan);
#else
  std::thread kernel(run, plan);
#endif
  check(mp_wait_all(kSteps, receives.data())); /* and makes progress meanwhile */
  check(mp_wait_all(kSteps, sends.data()));
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
#ifdef __CUDACC__
  if (cudaDeviceSynchronize() != cudaSuccess) plan->failed = 1;
#else
  kernel.join();
#endif
  if (plan->failed != 0) check(MP_FAILURE);
  return took.count() / kSteps / 2;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef __CUDACC__
  const int gpu = 0; /* CUDA_VISIBLE_DEVICES chooses */
  if (cudaSetDevice(gpu) != cudaSuccess) return EXIT_FAILURE;
#else
  const int gpu = MP_HOST_ONLY;
#endif
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
  check(mp_init(MPI_COMM_WORLD, nullptr, 0, MP_INIT_DEFAULT, gpu));
#else
  (void)argc;
  (void)argv;
  check(mp_init_env(nullptr, 0, MP_INIT_DEFAULT, gpu));
#endif
  if (mp_size() != 2) {
    std::fprintf(stderr, "kernel: 2 ranks, not %d\n", mp_size());
    return EXIT_FAILURE;
  }
  void* plan = nullptr;
  check(mp_kernel_memory(sizeof(Plan), &plan));
  static_cast<Plan*>(plan)->begins = mp_rank() == 0;
  void* const memory = allocate(kMost);
  mp_reg_t reg;
  check(mp_register(memory, kMost, &reg));
  for (int bytes = 8; bytes <= kMost; bytes *= 8) {
    const double half = exchange(static_cast<Plan*>(plan), bytes, 1 - mp_rank(), memory, &reg);
    if (mp_rank() == 0) std::printf("%6d bytes: %8.2f us\n", bytes, half);
  }
  check(mp_deregister(&reg));
  mp_finalize();
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
  return EXIT_SUCCESS;
}
