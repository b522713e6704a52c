// Kernels compiled against NVIDIA's device header (nccl_device.h) of some version, on a
// communicator of Ropewalk's: device_api_gpu_test.py compiles this for each header that it finds,
// and device_api_rank.py calls run_device_api() on each rank.
//
// All values are whole numbers, and different for each rank, element and turn.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kBlocks = 8;
constexpr int kThreads = 256;
constexpr std::size_t kCount = 1'000'003;
constexpr int kTurns = 20;
constexpr int kTimedBarriers = 1000;

[[noreturn]] void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw std::runtime_error(text);
}

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) fail("%s: %s", what, cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail("%s: %d: %s", what, result, ncclGetLastError(nullptr));
}

void finish(const char* what) {
  check(cudaGetLastError(), what);
  check(cudaDeviceSynchronize(), what);
}

__host__ __device__ std::uint32_t value_of(int rank, std::size_t element, int turn) {
  return static_cast<std::uint32_t>(element * 7 + rank * 1000003U + turn * 31U);
}

__global__ void fill(std::uint32_t* to, std::size_t count, int rank, int turn) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x)
    to[i] = value_of(rank, i, turn);
}

// Each rank adds up every so many elements of all ranks' inputs and stores the sums into all ranks'
// outputs.
__global__ void all_reduce(ncclDevComm comm, ncclWindow_t inputs, ncclWindow_t outputs,
                           std::size_t count) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel);
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x * comm.lsaSize;
  std::size_t i = (blockIdx.x * blockDim.x + threadIdx.x) * static_cast<std::size_t>(comm.lsaSize) +
                  comm.lsaRank;
  for (; i < count; i += step) {
    std::uint32_t sum = 0;
    for (int peer = 0; peer < comm.lsaSize; ++peer)
      sum += static_cast<std::uint32_t*>(ncclGetLsaPointer(inputs, 0, peer))[i];
    for (int peer = 0; peer < comm.lsaSize; ++peer)
      static_cast<std::uint32_t*>(ncclGetPeerPointer(outputs, 0, peer))[i] = sum;
  }
  barrier.sync(block, cuda::memory_order_acq_rel);
}

__global__ void count_differences(const std::uint32_t* output, std::size_t count, int ranks,
                                  int turn, unsigned* differences) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    std::uint32_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i, turn);
    if (output[i] != sum) atomicAdd(differences, 1);
  }
}

struct Found {
  ncclWindow_t window;
  ncclWindow_t last;
  std::uint32_t neighbours_word;
  std::uint64_t all_to_all_sum;
};

// One warp: the resource window, a barrier of the list, the slots for all-to-all.
__global__ void look(ncclDevComm comm, ncclLsaBarrierHandle own_barriers, ncclLLA2AHandle slots,
                     ncclDevResourceHandle words, Found* found) {
  ncclCoopCta block;
  const ncclTeam team = ncclTeamLsa(comm);
  // A barrier that the program asked for in its list, and of a team that it named.
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, team, own_barriers, 1);
  const int next = (comm.lsaRank + 1) % comm.lsaSize;
  if (threadIdx.x == 0) {
    static_cast<std::uint32_t*>(ncclGetResourceBufferLsaPointer(comm, words, next))[5] =
        77U + comm.lsaRank;
  }
  barrier.sync(block, cuda::memory_order_acq_rel);
  if (threadIdx.x == 0) {
    found->neighbours_word =
        static_cast<std::uint32_t*>(ncclGetResourceBufferLocalPointer(comm, words))[5];
  }
  std::uint64_t sum = 0;
  {
    ncclLLA2ASession<ncclCoopCta> session(block, comm, team, slots, 0, comm.lsaSize);
    for (int turn = 1; turn <= 3; ++turn) {
      for (int peer = threadIdx.x; peer < comm.lsaSize; peer += blockDim.x) {
        session.send(peer, comm.lsaRank, static_cast<std::uint64_t>(turn * 100 + comm.lsaRank));
      }
      for (int peer = threadIdx.x; peer < comm.lsaSize; peer += blockDim.x) {
        sum += session.recv<std::uint64_t>(peer);
      }
      session.endEpoch(block);
    }
  }
  for (int other = 16; other > 0; other /= 2) sum += __shfl_down_sync(~0U, sum, other);
  if (threadIdx.x == 0) found->all_to_all_sum = sum;
}

// One warp.
__global__ void find(ncclDevComm comm, const char* buffer, std::size_t bytes, Found* found) {
  ncclCoopCta block;
  const ncclWindow_t first = ncclFindWindow(block, comm, buffer);
  const ncclWindow_t last = ncclFindWindow(block, comm, buffer + bytes - 1);
  if (threadIdx.x == 0) {
    found->window = first;
    found->last = last;
  }
}

__global__ void many_barriers(ncclDevComm comm, int count) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), blockIdx.x);
  for (int n = 0; n < count; ++n) barrier.sync(block, cuda::memory_order_acq_rel);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
// NVIDIA's own reduction over the team, which PyTorch uses.
__global__ void reduce_copy(ncclDevComm comm, ncclWindow_t inputs, std::uint32_t* output,
                            std::size_t count) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel);
  ncclLsaReduceSum(block, inputs, 0, output, count, comm);
  barrier.sync(block, cuda::memory_order_acq_rel);
}
#endif

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
// Rank 0 alone: the others never come, and the header's own limit ends the wait.
__global__ void wait_in_vain(ncclDevComm comm, ncclResult_t* result) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), kBlocks);
  const ncclResult_t ended = barrier.wait(block, cuda::memory_order_acq_rel, 1'000'000ULL);
  if (threadIdx.x == 0) *result = ended;
}
#endif

template <typename T>
struct OnDevice {
  OnDevice() {
    check(cudaMalloc(&pointer, sizeof(T)), "cudaMalloc");
    check(cudaMemset(pointer, 0, sizeof(T)), "cudaMemset");
  }
  ~OnDevice() { cudaFree(pointer); }
  T fetch() const {
    T value;
    check(cudaMemcpy(&value, pointer, sizeof value, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return value;
  }
  T* pointer = nullptr;
};

// Memory of ncclMemAlloc in a window.
struct Buffer {
  Buffer(ncclComm_t of, std::size_t size) : comm(of), bytes(size) {
    check(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
    check(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");
  }
  ~Buffer() {
    ncclCommWindowDeregister(comm, window);
    ncclMemFree(memory);
  }
  std::uint32_t* words() const { return static_cast<std::uint32_t*>(memory); }
  ncclComm_t comm;
  std::size_t bytes;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
};

void verify(const std::uint32_t* output, std::size_t count, int ranks, int turn, const char* what) {
  OnDevice<unsigned> differences;
  count_differences<<<kBlocks, kThreads>>>(output, count, ranks, turn, differences.pointer);
  finish(what);
  if (const unsigned n = differences.fetch(); n != 0) fail("%s, turn %d: %u differ", what, turn, n);
}

void run(ncclComm_t comm, std::string& said) {
  int rank = 0;
  int ranks = 0;
  check(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
  check(ncclCommCount(comm, &ranks), "ncclCommCount");
  int device = 0;
  check(ncclCommCuDevice(comm, &device), "ncclCommCuDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
  Buffer input(comm, kCount * 4);
  Buffer output(comm, kCount * 4);

  ncclLsaBarrierHandle own_barriers{};
  ncclLLA2AHandle slots{};
  ncclDevResourceHandle words = 0;
  ncclDevResourceRequirements for_barriers;
  ncclDevResourceRequirements for_slots;
  ncclDevResourceRequirements for_words;
  std::memset(&for_words, 0, sizeof for_words);
  check(
      ncclLsaBarrierCreateRequirement(ncclTeam_t{ranks, rank, 1}, 3, &own_barriers, &for_barriers),
      "ncclLsaBarrierCreateRequirement");
  check(ncclLLA2ACreateRequirement(1, ncclLLA2ACalcSlots(ranks, 8), &slots, &for_slots),
        "ncclLLA2ACreateRequirement");
  for_words.bufferSize = 4096;
  for_words.bufferAlign = 1024;
  for_words.outBufferHandle = &words;
  for_barriers.next = &for_slots;
  for_slots.next = &for_words;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements request = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements request;
  std::memset(&request, 0, sizeof request);
#endif
  request.resourceRequirementsList = &for_barriers;
  request.lsaBarrierCount = kBlocks + 1;
  ncclDevComm dev;
  std::memset(&dev, 0xee, sizeof dev);
  check(ncclDevCommCreate(comm, &request, &dev), "ncclDevCommCreate");
  if (dev.rank != rank || dev.nRanks != ranks || dev.lsaRank != rank || dev.lsaSize != ranks) {
    fail("ncclDevComm: rank %d of %d, LSA %d of %d", dev.rank, dev.nRanks, dev.lsaRank,
         dev.lsaSize);
  }

  for (int turn = 0; turn < kTurns; ++turn) {
    fill<<<kBlocks, kThreads>>>(input.words(), kCount, rank, turn);
    all_reduce<<<kBlocks, kThreads>>>(dev, input.window, output.window, kCount);
    finish("all-reduce");
    verify(output.words(), kCount, ranks, turn, "all-reduce");
  }
  said += "all-reduce by stores; ";

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
  reduce_copy<<<1, kThreads>>>(dev, input.window, output.words(), kCount);
  finish("ncclLsaReduceSum");
  verify(output.words(), kCount, ranks, kTurns - 1, "ncclLsaReduceSum");
  said += "ncclLsaReduceSum; ";
#endif

  OnDevice<Found> found;
  look<<<1, 32>>>(dev, own_barriers, slots, words, found.pointer);
  finish("resources");
  const Found seen = found.fetch();
  const auto before = static_cast<std::uint32_t>((rank + ranks - 1) % ranks);
  if (seen.neighbours_word != 77U + before)
    fail("resource: %u of %u", seen.neighbours_word, before);
  const auto sum = static_cast<std::uint64_t>(600 * ranks + 3 * ranks * (ranks - 1) / 2);
  if (seen.all_to_all_sum != sum) {
    fail("all-to-all: %llu instead of %llu", static_cast<unsigned long long>(seen.all_to_all_sum),
         static_cast<unsigned long long>(sum));
  }
  said += "resources, barriers of a list, all-to-all slots; ";

  find<<<1, 32>>>(dev, static_cast<char*>(output.memory), output.bytes, found.pointer);
  finish("ncclFindWindow");
  if (found.fetch().window != output.window || found.fetch().last != output.window) {
    fail("ncclFindWindow found another window");
  }
  said += "ncclFindWindow; ";

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
  if (rank == 0) {
    OnDevice<ncclResult_t> result;
    wait_in_vain<<<1, 32>>>(dev, result.pointer);
    finish("a barrier with a limit");
    if (ranks > 1 && result.fetch() != ncclTimeout) fail("a barrier with a limit did not time out");
  }
  said += "a barrier's time limit; ";
#endif

  many_barriers<<<kBlocks, 32>>>(dev, 10);
  finish("barriers");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  check(cudaEventRecord(begin), "cudaEventRecord");
  many_barriers<<<kBlocks, 32>>>(dev, kTimedBarriers);
  check(cudaEventRecord(end), "cudaEventRecord");
  finish("barriers");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  char figure[80];
  snprintf(figure, sizeof figure, "%.2f us for a barrier of %d blocks",
           milliseconds * 1000 / kTimedBarriers, kBlocks);
  said += figure;
  cudaEventDestroy(begin);
  cudaEventDestroy(end);

  // A second one while the first is there, and one without resources.
  ncclDevComm second;
  ncclDevComm empty;
  request.resourceRequirementsList = nullptr;
  request.lsaBarrierCount = 1;
  check(ncclDevCommCreate(comm, &request, &second), "a second ncclDevCommCreate");
  request.lsaBarrierCount = 0;
  check(ncclDevCommCreate(comm, &request, &empty), "ncclDevCommCreate without resources");
  many_barriers<<<1, 32>>>(second, 10);
  finish("the second's barrier");
  check(ncclDevCommDestroy(comm, &dev), "ncclDevCommDestroy");
  many_barriers<<<1, 32>>>(second, 10);
  finish("the second's barrier after the end of the first");
  check(ncclDevCommDestroy(comm, &empty), "ncclDevCommDestroy without resources");
  check(ncclDevCommDestroy(comm, &second), "the second's ncclDevCommDestroy");
  if (ncclDevCommDestroy(comm, &second) != ncclInvalidArgument) fail("destroyed twice");

  // What is not offered says so.
  request.lsaMultimem = true;
  if (ncclDevCommCreate(comm, &request, &second) != ncclInvalidArgument) fail("lsaMultimem");
  request.lsaMultimem = false;
  request.ginSignalCount = 1;
  if (ncclDevCommCreate(comm, &request, &second) != ncclInvalidUsage) fail("ginSignalCount");
}

}  // namespace

// The header's version, as ncclGetVersion counts.
extern "C" int device_api_version() { return NCCL_VERSION_CODE; }

// What it did, or what went wrong, is written to `text`. @return whether all went well
extern "C" int run_device_api(ncclComm_t comm, char* text, int room) {
  std::string said;
  int ok = 1;
  try {
    run(comm, said);
  } catch (const std::exception& error) {
    said = error.what();
    ok = 0;
  }
  snprintf(text, static_cast<std::size_t>(room), "%s", said.c_str());
  return ok;
}
