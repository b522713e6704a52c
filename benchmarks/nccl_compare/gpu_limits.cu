// What the machine allows any library, between GPU 0 and GPU 1. Prints one JSON object: GB/s and
// microseconds. Usage: gpu_limits [BYTES]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "cuda_check.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 7;

cudaStream_t streams[2];
char* memory[2][2];  // [GPU][which]

// Median seconds of `work`, which enqueues; one round unmeasured.
double median_seconds(const std::function<void()>& work) {
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) {
    const auto begin = Clock::now();
    work();
    for (cudaStream_t stream : streams) CHECK_CUDA(cudaStreamSynchronize(stream));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (round > 0) times.push_back(seconds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

__global__ void copy(uint4* to, const uint4* from, std::size_t length) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * step < length; i += 4 * step) {
    const uint4 a = from[i];
    const uint4 b = from[i + step];
    const uint4 c = from[i + 2 * step];
    const uint4 d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < length; i += step) to[i] = from[i];
}

__global__ void nothing() {}

// Two kernels on two GPUs answer each other; each spins on a word of its own memory.
__global__ void answer(volatile unsigned* own, volatile unsigned* other, bool first, unsigned turns,
                       long long limit) {
  const long long begin = clock64();
  for (unsigned turn = 1; turn <= turns; ++turn) {
    if (first) *other = turn;
    while (*own != turn) {
      if (clock64() - begin > limit) return;  // the other one never came
    }
    if (!first) *other = turn;
  }
}

double copy_engine(std::size_t bytes, bool both) {
  constexpr int kCopies = 4;
  const double seconds = median_seconds([&] {
    for (int i = 0; i < kCopies; ++i) {
      CHECK_CUDA(cudaMemcpyPeerAsync(memory[1][0], 1, memory[0][0], 0, bytes, streams[0]));
      if (both)
        CHECK_CUDA(cudaMemcpyPeerAsync(memory[0][1], 0, memory[1][1], 1, bytes, streams[1]));
    }
  });
  return static_cast<double>(bytes) * kCopies / seconds / 1e9;
}

// One direction each: GPU g stores to, or loads from, the other one.
double by_kernel(std::size_t bytes, bool stores, bool both) {
  constexpr int kCopies = 4;
  const double seconds = median_seconds([&] {
    for (int i = 0; i < kCopies; ++i) {
      for (int g = 0; g < (both ? 2 : 1); ++g) {
        CHECK_CUDA(cudaSetDevice(g));
        char* near = memory[g][0];
        char* far = memory[1 - g][1];
        copy<<<264, 512, 0, streams[g]>>>(reinterpret_cast<uint4*>(stores ? far : near),
                                          reinterpret_cast<uint4*>(stores ? near : far),
                                          bytes / sizeof(uint4));
      }
    }
  });
  return static_cast<double>(bytes) * kCopies / seconds / 1e9;
}

double flag_latency() {
  constexpr unsigned kTurns = 2000;
  const double seconds = median_seconds([&] {
    for (int g = 0; g < 2; ++g) CHECK_CUDA(cudaMemsetAsync(memory[g][0], 0, 4, streams[g]));
    for (cudaStream_t stream : streams) CHECK_CUDA(cudaStreamSynchronize(stream));
    for (int g = 0; g < 2; ++g) {
      CHECK_CUDA(cudaSetDevice(g));
      answer<<<1, 1, 0, streams[g]>>>(reinterpret_cast<unsigned*>(memory[g][0]),
                                      reinterpret_cast<unsigned*>(memory[1 - g][0]), g == 0, kTurns,
                                      4'000'000'000LL);
    }
  });
  return seconds / kTurns / 2 * 1e6;
}

// A kernel and a thread of the host answer each other in the host's memory, as a kernel and what
// moves its data to another host do.
__global__ void answer_host(unsigned long long* own, unsigned long long* other, unsigned turns,
                            bool orders, int lines, long long limit) {
  const long long begin = clock64();
  unsigned long long sum = 0;
  for (unsigned turn = 1; turn <= turns; ++turn) {
    if (orders) __threadfence_system();
    *const_cast<volatile unsigned long long*>(other) = turn;
    while (*const_cast<volatile unsigned long long*>(own) != turn) {
      if (clock64() - begin > limit) return;
    }
    // What lies beside the flag, one after another.
    for (int line = 1; line <= lines; ++line) {
      sum += *const_cast<volatile unsigned long long*>(own + 16 * line + (sum & 1));
    }
  }
  if (sum == 1) *other = 0;  // never: keeps the loads
}

// Microseconds from the kernel to the host and back.
double host_round_trip(bool orders, int lines) {
  constexpr unsigned kTurns = 2000;
  unsigned long long* words = nullptr;
  CHECK_CUDA(cudaSetDevice(0));
  CHECK_CUDA(cudaHostAlloc(&words, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
  unsigned long long* const to_host = words + 256;
  const double seconds = median_seconds([&] {
    for (int i = 0; i < 512; ++i) words[i] = 0;
    answer_host<<<1, 1, 0, streams[0]>>>(words, to_host, kTurns, orders, lines, 4'000'000'000LL);
    const auto begin = Clock::now();
    for (unsigned turn = 1; turn <= kTurns; ++turn) {
      while (*const_cast<volatile unsigned long long*>(to_host) != turn) {
        if (Clock::now() - begin > std::chrono::seconds(2)) return;
      }
      *const_cast<volatile unsigned long long*>(words) = turn;
    }
  });
  CHECK_CUDA(cudaFreeHost(words));
  return seconds / kTurns * 1e6;
}

double empty_launch_stream() {
  constexpr int kLaunches = 1000;
  CHECK_CUDA(cudaSetDevice(0));
  const double seconds = median_seconds([&] {
    for (int i = 0; i < kLaunches; ++i) nothing<<<1, 32, 0, streams[0]>>>();
  });
  return seconds / kLaunches * 1e6;
}

double empty_launch_graph() {
  constexpr int kLaunches = 1000;
  CHECK_CUDA(cudaSetDevice(0));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  CHECK_CUDA(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kLaunches; ++i) nothing<<<1, 32, 0, streams[0]>>>();
  CHECK_CUDA(cudaStreamEndCapture(streams[0], &graph));
  CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
  const double seconds = median_seconds([&] { CHECK_CUDA(cudaGraphLaunch(ready, streams[0])); });
  CHECK_CUDA(cudaGraphExecDestroy(ready));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return seconds / kLaunches * 1e6;
}

void measure(std::size_t bytes) {
  for (int g = 0; g < 2; ++g) {
    CHECK_CUDA(cudaSetDevice(g));
    CHECK_CUDA(cudaStreamCreateWithFlags(&streams[g], cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(1 - g, 0));
    for (char*& one : memory[g]) CHECK_CUDA(cudaMalloc(&one, bytes));
  }
  std::printf("{\"bytes\": %zu, ", bytes);
  std::printf("\"copy_engine_GBs\": %.1f, ", copy_engine(bytes, false));
  std::printf("\"copy_engine_both_ways_GBs\": %.1f, ", copy_engine(bytes, true));
  std::printf("\"kernel_stores_GBs\": %.1f, ", by_kernel(bytes, true, false));
  std::printf("\"kernel_stores_both_ways_GBs\": %.1f, ", by_kernel(bytes, true, true));
  std::printf("\"kernel_loads_GBs\": %.1f, ", by_kernel(bytes, false, false));
  std::printf("\"kernel_loads_both_ways_GBs\": %.1f, ", by_kernel(bytes, false, true));
  std::printf("\"flag_latency_us\": %.3f, ", flag_latency());
  std::printf("\"host_round_trip_us\": %.3f, ", host_round_trip(false, 0));
  std::printf("\"host_round_trip_fenced_us\": %.3f, ", host_round_trip(true, 0));
  std::printf("\"host_round_trip_three_loads_us\": %.3f, ", host_round_trip(false, 3));
  std::printf("\"empty_launch_stream_us\": %.3f, ", empty_launch_stream());
  std::printf("\"empty_launch_graph_us\": %.3f}\n", empty_launch_graph());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    measure(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{256} << 20);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_limits: %s\n", error.what());
    return 1;
  }
  return 0;
}
