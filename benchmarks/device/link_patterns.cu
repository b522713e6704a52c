// What stores over the links of all GPUs of this machine reach, at once and without flags: by how
// many blocks, placed singly or in clusters, and in which order a GPU serves the others. A limit
// for collectives, and the reason for their clusters and orders (docs/gpu.md). Usage: link_patterns
// [MiB]
//
// Prints GB/s out of each GPU, the median of five runs, and of GPU 0 the longest time of a block
// over the shortest.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "nccl_compare/cuda_check.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostGpus = 8;
constexpr int kRuns = 5;
constexpr unsigned kThreads = 512;
constexpr unsigned kMostBlocks = 128;
constexpr std::size_t kChunk = std::size_t{128} << 10;
constexpr std::size_t kWindow = std::size_t{96} << 20;  // of what comes from the others

enum class Order { kRing, kSameFirst, kOwnFirst };
struct Pattern {
  const char* name;
  Order order;
  bool copies;  // what came, as a receiver does
};
constexpr Pattern kPatterns[] = {
    {"to one neighbour", Order::kRing, false},
    {"to one neighbour, copying what came", Order::kRing, true},
    {"to all in turn, all blocks alike", Order::kSameFirst, true},
    {"to all in turn, each block from another on", Order::kOwnFirst, true}};

struct Args {
  const uint4* input;
  uint4* output;
  const uint4* window;   // what comes
  uint4* to[kMostGpus];  // the others' windows, by distance from 1 on
  unsigned others;
  std::size_t share;  // of a block for each of the others, in packs
  std::size_t room;   // of the window, the same
  Order order;
  bool copies;
  unsigned long long* took;  // by block, ns
};

__device__ unsigned long long clock_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__device__ void copy(uint4* to, const uint4* from, std::size_t packs) {
  constexpr int kAtOnce = 8;
  for (std::size_t first = threadIdx.x; first < packs; first += kAtOnce * kThreads) {
    uint4 in[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kThreads < packs) in[u] = __ldcv(from + first + u * kThreads);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kThreads < packs) to[first + u * kThreads] = in[u];
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) send(const __grid_constant__ Args args) {
  const unsigned long long begin = clock_ns();
  const std::size_t first = std::size_t{blockIdx.x} * args.others;
  constexpr std::size_t kPacks = kChunk / sizeof(uint4);
  for (std::size_t at = 0; at < args.share; at += kPacks) {
    for (unsigned k = 0; k < args.others; ++k) {
      const unsigned other = args.order == Order::kRing        ? 0
                             : args.order == Order::kSameFirst ? k
                                                               : (k + blockIdx.x) % args.others;
      const std::size_t slot = (first + k) * args.room + at % args.room;
      const std::size_t place = (first + k) * args.share + at;
      copy(args.to[other] + slot, args.input + place, kPacks);
      if (args.copies) copy(args.output + place, args.window + slot, kPacks);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) args.took[blockIdx.x] = clock_ns() - begin;
}

struct Gpu {
  uint4* input = nullptr;
  uint4* output = nullptr;
  uint4* window = nullptr;
  unsigned long long* took = nullptr;
  cudaStream_t stream = nullptr;
};

class Machine {
 public:
  explicit Machine(std::size_t bytes) : bytes_(bytes) {
    int count = 0;
    CHECK_CUDA(cudaGetDeviceCount(&count));
    gpus_.resize(static_cast<std::size_t>(std::min(count, kMostGpus)));
    for (int g = 0; g < size(); ++g) {
      Gpu& gpu = gpus_[static_cast<std::size_t>(g)];
      CHECK_CUDA(cudaSetDevice(g));
      for (int other = 0; other < size(); ++other) {
        if (other != g) CHECK_CUDA(cudaDeviceEnablePeerAccess(other, 0));
      }
      CHECK_CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
      CHECK_CUDA(cudaMalloc(&gpu.input, bytes));
      CHECK_CUDA(cudaMalloc(&gpu.output, bytes));
      CHECK_CUDA(cudaMalloc(&gpu.window, kWindow));
      CHECK_CUDA(cudaMallocHost(&gpu.took, kMostBlocks * sizeof *gpu.took));
    }
  }
  int size() const { return static_cast<int>(gpus_.size()); }

  // GB/s out of each GPU; 0 where clusters of that size are not to be had.
  double run(const Pattern& pattern, unsigned blocks, unsigned cluster) {
    const auto others = static_cast<unsigned>(size() - 1);
    constexpr std::size_t kPacks = kChunk / sizeof(uint4);
    const auto whole_chunks = [&](std::size_t of) {
      return std::max(kPacks, of / sizeof(uint4) / blocks / others / kPacks * kPacks);
    };
    std::vector<double> rates;
    for (int run = 0; run <= kRuns; ++run) {
      const auto begin = Clock::now();
      const std::size_t share = whole_chunks(bytes_);
      for (int g = 0; g < size(); ++g) {
        const Gpu& gpu = gpus_[static_cast<std::size_t>(g)];
        Args args{
            gpu.input,     gpu.output,     gpu.window, {}, others, share, whole_chunks(kWindow),
            pattern.order, pattern.copies, gpu.took};
        for (unsigned d = 0; d < others; ++d) {
          args.to[d] = gpus_[(static_cast<std::size_t>(g) + d + 1) % gpus_.size()].window;
        }
        CHECK_CUDA(cudaSetDevice(g));
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {cluster, 1, 1};
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(kThreads);
        config.stream = gpu.stream;
        config.attrs = &attribute;
        config.numAttrs = cluster > 1 ? 1 : 0;
        if (cudaLaunchKernelEx(&config, send, args) != cudaSuccess) {
          (void)cudaGetLastError();
          return 0;
        }
      }
      for (const Gpu& gpu : gpus_) CHECK_CUDA(cudaStreamSynchronize(gpu.stream));
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (run > 0)
        rates.push_back(static_cast<double>(share * sizeof(uint4)) * blocks * others / seconds /
                        1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
  }
  // Of GPU 0 in the last run.
  double unevenness(unsigned blocks) const {
    const auto* const took = gpus_.front().took;
    const auto [least, most] = std::minmax_element(took, took + blocks);
    return static_cast<double>(*most) / static_cast<double>(std::max(*least, 1ULL));
  }

 private:
  std::size_t bytes_;
  std::vector<Gpu> gpus_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::size_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 384;
    if (mib < 96 || mib > 8192) throw std::runtime_error("MiB: from 96 to 8192");
    Machine machine(mib << 20);
    if (machine.size() < 2) throw std::runtime_error("there are fewer than two GPUs");
    std::printf("%d GPUs, %zu MiB out of each. GB/s out of each GPU (slowest block over fastest)\n",
                machine.size(), mib);
    for (const Pattern& pattern : kPatterns) {
      std::printf("\n%s\n%8s", pattern.name, "cluster");
      for (const unsigned blocks : {8U, 16U, 24U, 32U, 64U, 128U})
        std::printf("  %4u blocks ", blocks);
      for (const unsigned cluster : {1U, 2U, 4U, 8U}) {
        std::printf("\n%8u", cluster);
        for (const unsigned blocks : {8U, 16U, 24U, 32U, 64U, 128U}) {
          const double rate = machine.run(pattern, blocks, cluster);
          std::printf("  %4.0f (%5.2f)", rate, machine.unevenness(blocks));
        }
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "link_patterns: %s\n", error.what());
    return 1;
  }
  return 0;
}
