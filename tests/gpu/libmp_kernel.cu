/* Descriptors of libmp's API in kernels of a GPU: libmp_kernel CASE. Each rank prints "CASE:
 * passed" at the end. tests/libmp/kernel.cc has the same with threads of the host. */
#include <comm.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../libmp/cases.h"

#define CUDA_OK(call) EXPECT((call) == cudaSuccess)

namespace {

enum { kSteps = 20, kThreads = 128 };

int rank, size, right, left;
cudaStream_t stream;

void begin() {
  const char* const local = getenv("LOCAL_RANK");
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  const int gpu = (local == nullptr ? 0 : atoi(local)) % count;
  CUDA_OK(cudaSetDevice(gpu));
  OK(mp_init_env(nullptr, 0, MP_INIT_DEFAULT, gpu));
  OK(comm_begin());
  rank = mp_rank();
  size = mp_size();
  right = (rank + 1) % size;
  left = (rank + size - 1) % size;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

/* The block's. */
__device__ unsigned char byte_of(int of_rank, int message, size_t at) {
  return static_cast<unsigned char>(31U * static_cast<unsigned>(of_rank) +
                                    7U * static_cast<unsigned>(message) + at + at / 251U);
}

__device__ void pack(unsigned char* data, size_t bytes, int of_rank, int message) {
  for (size_t k = threadIdx.x; k < bytes; k += blockDim.x) data[k] = byte_of(of_rank, message, k);
  __syncthreads();
}

__device__ void count_wrong(const unsigned char* data, size_t bytes, int of_rank, int message,
                            unsigned* wrong_bytes) {
  for (size_t k = threadIdx.x; k < bytes; k += blockDim.x) {
    if (data[k] != byte_of(of_rank, message, k)) atomicAdd(wrong_bytes, 1U);
  }
}

struct Descriptors {
  mp::mlx5::send_desc_t start[kSteps];
  mp::mlx5::wait_desc_t sent[kSteps], received[kSteps];
};

/* What went wrong: results of waits that are not 0, and bytes. */
struct Result {
  int failed;
  unsigned wrong_bytes;
};

__global__ void exchange(Descriptors descriptors, unsigned char* out, unsigned char* in,
                         size_t bytes, int rank, int left, Result* result) {
  for (int k = 0; k < kSteps; ++k) {
    pack(out + k * bytes, bytes, rank, k);
    if (threadIdx.x == 0) {
      mp::device::mlx5::send(descriptors.start[k]);
      result->failed |= mp::device::mlx5::wait(descriptors.received[k]);
      mp::device::mlx5::signal(descriptors.received[k]);
      result->failed |= mp::device::mlx5::wait(descriptors.sent[k]);
      mp::device::mlx5::signal(descriptors.sent[k]);
    }
    __syncthreads();
    count_wrong(in + k * bytes, bytes, left, k, &result->wrong_bytes);
  }
}

unsigned char* allocate(size_t bytes, mp_reg_t* reg) {
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, bytes));
  CUDA_OK(cudaMemset(memory, 0, bytes));
  CUDA_OK(cudaDeviceSynchronize());
  OK(mp_register(memory, bytes, reg));
  return static_cast<unsigned char*>(memory);
}

Result* make_result() {
  void* memory = nullptr;
  OK(mp_kernel_memory(sizeof(Result), &memory));
  return static_cast<Result*>(memory);
}

void expect_good(const Result* result) {
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT(result->failed == 0 && result->wrong_bytes == 0);
}

/* Packing, sending, waiting and looking in one kernel. */
void messages() {
  Result* const result = make_result();
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{65537}}) {
    mp_reg_t out_reg, in_reg;
    unsigned char* const out = allocate(kSteps * bytes, &out_reg);
    unsigned char* const in = allocate(kSteps * bytes, &in_reg);
    mp_request_t sends[kSteps], receives[kSteps];
    Descriptors descriptors;
    for (int k = 0; k < kSteps; ++k) {
      const int length = static_cast<int>(bytes);
      OK(mp_irecv(in + k * bytes, length, left, &in_reg, &receives[k]));
      OK(mp_send_prepare(out + k * bytes, length, right, &out_reg, &sends[k]));
      OK(mp::mlx5::get_descriptors(&descriptors.start[k], &sends[k]));
      OK(mp::mlx5::get_descriptors(&descriptors.sent[k], &sends[k]));
      OK(mp::mlx5::get_descriptors(&descriptors.received[k], &receives[k]));
    }
    exchange<<<1, kThreads, 0, stream>>>(descriptors, out, in, bytes, rank, left, result);
    CUDA_OK(cudaGetLastError());
    OK(mp_wait_all(kSteps, receives));
    OK(mp_wait_all(kSteps, sends));
    expect_good(result);
    OK(mp_deregister(&out_reg));
    OK(mp_deregister(&in_reg));
  }
}

__global__ void step(comm_dev_descs* descs, unsigned char* out, unsigned char* in, size_t bytes,
                     int rank, int left, int number, Result* result) {
  pack(out, bytes, rank, number);
  if (threadIdx.x == 0) {
    result->failed |= mp::device::mlx5::wait_geq(descs->ready[0]);
    mp::device::mlx5::send(descs->tx[0]);
    for (int k = 0; k < descs->n_wait; ++k) {
      result->failed |= mp::device::mlx5::wait(descs->wait[k]);
      mp::device::mlx5::signal(descs->wait[k]);
    }
  }
  __syncthreads();
  count_wrong(in, bytes, left, number, &result->wrong_bytes);
}

/* The COMM layer's sets, a kernel for each step; the CPU does not wait between them. */
void readiness() {
  enum { kKernels = 40, kBytes = 3000 };
  Result* const result = make_result();
  mp_reg_t unused;
  unsigned char* const out = allocate(kKernels * kBytes, &unused);
  OK(mp_deregister(&unused));
  unsigned char* const in = allocate(kKernels * kBytes, &unused);
  OK(mp_deregister(&unused));
  comm_reg_t out_reg = nullptr, in_reg = nullptr;
  OK(comm_register(out, kKernels * kBytes, &out_reg));
  OK(comm_register(in, kKernels * kBytes, &in_reg));
  for (int k = 0; k < kKernels; ++k) {
    comm_request_t both[2], ready;
    OK(comm_irecv_bytes(in + k * kBytes, kBytes, &in_reg, left, &both[0]));
    OK(comm_send_ready(left, &ready));
    OK(comm_prepare_wait_ready(right));
    OK(comm_prepare_isend_bytes(out + k * kBytes, kBytes, &out_reg, right, &both[1]));
    OK(comm_prepare_wait_all(2, both));
    step<<<1, kThreads, 0, stream>>>(comm_prepared_requests(), out + k * kBytes, in + k * kBytes,
                                     kBytes, rank, left, k, result);
    CUDA_OK(cudaGetLastError());
    OK(comm_progress());
  }
  OK(comm_flush());
  expect_good(result);
}

__global__ void wait_for(mp::mlx5::wait_desc_t descriptor, int* result) {
  *result = mp::device::mlx5::wait(descriptor);
}

/* A kernel that waits for a rank that dies ends with an error. */
void lost_peer() {
  EXPECT(size > 1);
  mp_reg_t reg;
  mp_request_t receive, request;
  unsigned char* const memory = allocate(100, &reg);
  if (rank == size - 1) {
    for (int peer = 0; peer < size - 1; ++peer) {
      OK(mp_irecv(memory, 1, peer, &reg, &request));
      OK(mp_wait(&request));
    }
    _exit(0);
  }
  void* result = nullptr;
  mp::mlx5::wait_desc_t descriptor;
  OK(mp_kernel_memory(sizeof(int), &result));
  OK(mp_irecv(memory, 100, size - 1, &reg, &receive));
  OK(mp::mlx5::get_descriptors(&descriptor, &receive));
  wait_for<<<1, 1, 0, stream>>>(descriptor, static_cast<int*>(result));
  CUDA_OK(cudaGetLastError());
  OK(mp_isend(memory, 1, size - 1, &reg, &request));
  OK(mp_wait(&request));
  CUDA_OK(cudaStreamSynchronize(stream)); /* no call of libmp waits */
  EXPECT(*static_cast<int*>(result) == gdsync::ERROR_FAILED);
  EXPECT(mp_wait(&receive) == MP_FAILURE);
}

const struct {
  const char* name;
  void (*run)();
} cases[] = {{"messages", messages}, {"readiness", readiness}, {"lost_peer", lost_peer}};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  for (const auto& each : cases) {
    if (name != each.name) continue;
    begin();
    each.run();
    comm_finalize();
    printf("%s: passed\n", each.name);
    return EXIT_SUCCESS;
  }
  return EXIT_FAILURE;
}
