// Messages between the GPUs of two ranks: gpu_messages [MOST_BYTES [ROUNDS [ROWS [threads]]]].
//
// Each rank is a process, with torchrun's variables; LOCAL_RANK picks its GPU (modulo their
// number). Rank 0 prints a line for each row and size: "ROW BYTES SECONDS BYTES_PER_S ENQUEUE_S
// WRONG": half a round trip of data and signal, medians of ROUNDS; the rate that this is; what the
// host's calls for one message take (0 where there are none); bytes that are wrong at the end.
//
//   kernel   both directions from inside one kernel, by one block
//   blocks   the same by 64 blocks, each with a part of the data and a slot of its own;
//            answers are signals alone, and SECONDS is the whole trip: blocks run by themselves, so
//            that answers with data would use both directions of a link at once
//   queue    as kernel, by messages (Queue); 8 bytes by one thread, up to 256 by a warp
//   queues   the same by several blocks, of 2 KiB each, 64 at most: half a round trip of a block,
//            though others may use the other direction of the link at that time
//   stream   rwPutSignal and rwWaitSignal on streams
//   message  rwQueueSend and rwQueueReceive on streams, up to 256 KiB
//   chain    the same, 20 round trips captured in a CUDA graph
//   pair     one put and a signal, prepared, launched on a stream
//   batch    64 puts of a 64th of the bytes each and a signal, prepared, launched on a stream
//   whole    the same with the wait for the other rank's at its end, in one prepared batch: both
//            ranks put at the same time, and SECONDS is that of one such exchange
//   list     the same batch, launched by kernels (rwBatchDevice), of a warp or a block; up to
//            256 KiB
//   lists    the same batch and waits, 20 round trips captured in a CUDA graph
//   graph    as stream, 20 round trips captured in a CUDA graph, launched again and again
//   flags    the limit of kernels: 8 bytes and a number in one store of 16 bytes, without fences
//            or counters, so that nothing says that earlier data is there
//   driver   the limit of streams: the driver's calls alone, a copy, a write and a wait of 8 bytes
//
// A fourth argument, "threads": both ranks are threads of this process, and share a GPU where there
// is one. (Kernels of two processes take turns on it by time slices of milliseconds.)
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ropewalk/device.cuh>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kBlocks = 64;
constexpr int kSlots = kBlocks + 1;
constexpr int kThreads = 512;
// Of each queue: what one block of 64 KiB has on its way. More goes in pieces.
constexpr std::size_t kQueueBytes = std::size_t{64} << 10;
constexpr std::size_t kMostOfAStreamsMessage = std::size_t{256} << 10;
constexpr std::size_t kMostOfAWarp = 256;
constexpr std::size_t kMessageOfABlock = 2048;
constexpr int kPutsOfABatch = 64;
constexpr std::size_t kMostOfAList = std::size_t{256} << 10;
constexpr int kTripsOfAGraph = 20;
// What the host's calls take is that of so many: streams that hold some 250 make the next ones
// wait.
constexpr int kBurst = 100;

thread_local rwComm_t comm = nullptr;

void check(rwResult_t result) {
  if (result == rwSuccess) return;
  std::fprintf(stderr, "%s: %s\n", rwGetErrorString(result), rwGetLastError(comm));
  std::exit(EXIT_FAILURE);
}
void check(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "CUDA's driver: error %d\n", static_cast<int>(result));
  std::exit(EXIT_FAILURE);
}
void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(result));
  std::exit(EXIT_FAILURE);
}

__global__ void __launch_bounds__(kThreads)
    trips(const __grid_constant__ rwDeviceWindow window, int peer, bool begins, bool answers,
          const unsigned char* source, std::size_t bytes, int count) {
  using namespace ropewalk::device;
  const Block block;
  const int slot = static_cast<int>(blockIdx.x);
  // Sixteen bytes are the least that a thread moves at once.
  const std::size_t each = (bytes / gridDim.x + 15) / 16 * 16;
  const std::size_t first = min(bytes, each * blockIdx.x);
  const std::size_t mine = min(each, bytes - first);
  for (int i = 0; i < count; ++i) {
    if (begins) put_signal(block, window, peer, first, source + first, mine, slot);
    if (wait_signal(block, window, peer, slot) != Status::kDone) return;
    if (begins) continue;
    if (answers) {
      put_signal(block, window, peer, first, source + first, mine, slot);
    } else {
      signal(block, window, peer, slot);
    }
  }
}

// The same by messages, from `source` to `to`; answers have data, too.
template <typename Scope>
__global__ void __launch_bounds__(kThreads)
    message_trips(const __grid_constant__ rwDeviceWindow queues, int peer, bool begins,
                  const unsigned char* source, unsigned char* to, std::size_t bytes, int count) {
  using namespace ropewalk::device;
  const Scope scope;
  const std::size_t each = (bytes / gridDim.x + 15) / 16 * 16;
  const std::size_t first = min(bytes, each * blockIdx.x);
  const std::size_t mine = min(each, bytes - first);
  Queue queue(scope, queues, peer, static_cast<int>(blockIdx.x));
  for (int i = 0; i < count; ++i) {
    if (begins && queue.send(source + first, mine) != Status::kDone) return;
    if (queue.receive(to + first, mine) != Status::kDone) return;
    if (!begins && queue.send(source + first, mine) != Status::kDone) return;
  }
}

// Rounds of a prepared batch, which puts and signals, and a wait for the other rank's.
__global__ void __launch_bounds__(kThreads)
    list_trips(const __grid_constant__ rwDeviceWindow window,
               const __grid_constant__ rwDeviceBatch batch, int peer, bool begins, int count) {
  using namespace ropewalk::device;
  const Block scope;
  for (int i = 0; i < count; ++i) {
    if (begins && launch(scope, batch) != Status::kDone) return;
    if (wait_signal(scope, window, peer) != Status::kDone) return;
    if (!begins && launch(scope, batch) != Status::kDone) return;
  }
}

// One warp; `ours` and `theirs` are lines of this rank's and the peer's memory.
__global__ void flag_trips(std::uint64_t* ours, std::uint64_t* theirs, const std::uint64_t* source,
                           bool begins, std::uint64_t from, int count) {
  if (threadIdx.x != 0) return;
  for (std::uint64_t number = from + 1; number <= from + static_cast<std::uint64_t>(count);
       ++number) {
    for (int half = 0; half < 2; ++half) {
      if ((half == 0) == begins) {
        asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(theirs), "l"(*source),
                     "l"(number)
                     : "memory");
        continue;
      }
      std::uint64_t value = 0;
      std::uint64_t seen = 0;
      do {
        asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                     : "=l"(value), "=l"(seen)
                     : "l"(ours)
                     : "memory");
      } while (seen < number || value == 0);
    }
  }
}

// The calls of the CUDA driver that streams are limited by.
struct Driver {
  decltype(&cuStreamWriteValue64) write = nullptr;
  decltype(&cuStreamWaitValue64) wait = nullptr;
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return;
    write = reinterpret_cast<decltype(write)>(dlsym(library, "cuStreamWriteValue64_v2"));
    wait = reinterpret_cast<decltype(wait)>(dlsym(library, "cuStreamWaitValue64_v2"));
  }
};

struct Setup {
  int rank = 0;
  int peer = 0;
  rwMessageWindow_t window = nullptr;
  rwDeviceWindow device{};
  rwDeviceWindow queues{};
  unsigned char* source = nullptr;
  const unsigned char* memory = nullptr;
  cudaStream_t stream = nullptr;
  [[nodiscard]] rwStream_t ours() const { return reinterpret_cast<rwStream_t>(stream); }
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  double one_way_s = 0;
  double enqueue_s = 0;
};

// `trip` enqueues one round trip; rank 0 begins it.
Times time_streams(const Setup& at, int count, const std::function<void()>& trip) {
  check(cudaStreamSynchronize(at.stream));
  check(rwBarrier(comm));
  const int burst = std::min(count, kBurst);
  const double begin = now_s();
  double enqueued = begin;
  for (int i = 0; i < count; ++i) {
    trip();
    if (i + 1 == burst) enqueued = now_s();
  }
  check(cudaStreamSynchronize(at.stream));
  const double end = now_s();
  return {(end - begin) / count / 2, (enqueued - begin) / burst / 2};
}

Times time_kernel(const Setup& at, std::size_t bytes, int count, int blocks) {
  return time_streams(at, 1, [&] {
    trips<<<blocks, kThreads, 0, at.stream>>>(at.device, at.peer, at.rank == 0, blocks == 1,
                                              at.source, bytes, count);
    check(cudaGetLastError());
  });
}

Times time_messages(const Setup& at, std::size_t bytes, int count, int blocks) {
  return time_streams(at, 1, [&] {
    const auto launch = [&](auto kernel, int threads) {
      kernel<<<blocks, threads, 0, at.stream>>>(at.queues, at.peer, at.rank == 0, at.source,
                                                const_cast<unsigned char*>(at.memory), bytes,
                                                count);
      check(cudaGetLastError());
    };
    if (bytes <= 8) {
      launch(message_trips<ropewalk::device::Thread>, 1);
    } else if (bytes <= kMostOfAWarp) {
      launch(message_trips<ropewalk::device::Warp>, 32);
    } else {
      launch(message_trips<ropewalk::device::Block>, kThreads);
    }
  });
}

Times time_lists(const Setup& at, rwBatch_t batch, std::size_t piece, int count) {
  rwDeviceBatch list{};
  check(rwBatchDevice(batch, &list));
  return time_streams(at, 1, [&] {
    const auto launch = [&](unsigned threads) {
      list_trips<<<1, threads, 0, at.stream>>>(at.device, list, at.peer, at.rank == 0, count);
      check(cudaGetLastError());
    };
    // A thread moves 16 bytes at once.
    const std::size_t threads = kPutsOfABatch * ((piece + 15) / 16);
    launch(static_cast<unsigned>(std::min<std::size_t>(threads, kThreads)));
  });
}

void put_signal(const Setup& at, std::size_t bytes, int slot) {
  check(rwPutSignal(at.source, bytes, at.peer, 0, slot, at.window, at.ours(), nullptr));
}
void wait_signal(const Setup& at, int slot) {
  check(rwWaitSignal(at.peer, slot, 1, at.window, at.ours(), nullptr));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// This thread's rank, of `comm`.
void run_rank(std::size_t most, int rounds, const std::string& rows, int device) {
  Setup at;
  check(rwCommUserRank(comm, &at.rank));
  at.peer = 1 - at.rank;
  check(rwWindowCreateOn(comm, device, most, kSlots, &at.window));
  check(rwWindowDevice(at.window, &at.device));
  void* memory = nullptr;
  check(rwWindowMemory(at.window, at.rank, &memory, nullptr));
  at.memory = static_cast<const unsigned char*>(memory);
  check(cudaMalloc(&at.source, most));
  check(cudaMemset(at.source, 1 + at.rank, most));
  check(cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking));
  check(cudaDeviceSynchronize());

  rwMessageWindow_t queues = nullptr;
  check(rwWindowCreateQueues(comm, device, kQueueBytes, kBlocks + 1, &queues));
  check(rwWindowDevice(queues, &at.queues));

  // Slots of kernels are theirs: kernels use 0 to kBlocks - 1. A rank's calls on streams use the
  // last one of a second window, graphs that of a third, batches that kernels launch a fourth's.
  rwMessageWindow_t by_stream = nullptr;
  rwMessageWindow_t by_graph = nullptr;
  check(rwWindowCreateOn(comm, device, most, 1, &by_stream));
  check(rwWindowCreateOn(comm, device, most, 1, &by_graph));
  rwMessageWindow_t by_list = nullptr;
  check(rwWindowCreateOn(comm, device, most, 1, &by_list));
  rwDeviceWindow of_lists{};
  check(rwWindowDevice(by_list, &of_lists));

  // Of the peer's part, where this rank's GPU stores.
  void* there = nullptr;
  check(rwWindowMemory(at.window, at.peer, &there, nullptr));
  auto* const theirs = static_cast<unsigned char*>(there);
  const Driver driver;

  std::vector<unsigned char> seen(most);
  const auto next = [most](std::size_t bytes) {
    // 64 KiB, too, which has an aim.
    const std::size_t more = bytes == 32768 ? 65536 : bytes == 65536 ? 262144 : bytes * 8;
    return bytes == most ? most + 1 : std::min(more, most);
  };
  for (std::size_t bytes = 8; bytes <= most; bytes = next(bytes)) {
    for (const char* row :
         {"kernel", "blocks", "queue", "queues", "stream", "message", "chain", "pair", "batch",
          "whole", "list", "lists", "graph", "flags", "driver"}) {
      const std::string name = row;
      if (("," + rows + ",").find("," + name + ",") == std::string::npos) continue;
      if (name == "blocks" && bytes < 4096) continue;
      if (name == "queues" && bytes < 2 * kMessageOfABlock) continue;
      const bool by_queue = name == "message" || name == "chain";
      if (by_queue && bytes > kMostOfAStreamsMessage) continue;
      const bool by_batch =
          name == "pair" || name == "batch" || name == "whole" || name == "list" || name == "lists";
      const int puts = name == "pair" ? 1 : kPutsOfABatch;
      if (by_batch &&
          (bytes < static_cast<std::size_t>(puts) * 8 || bytes > (std::size_t{16} << 20)))
        continue;
      if (name == "list" && bytes > kMostOfAList) continue;
      const bool limit = name == "flags" || name == "driver";
      if (limit && (bytes > 8 || most < 64 || theirs == nullptr || driver.wait == nullptr))
        continue;
      const int count = static_cast<int>(
          std::clamp<std::size_t>((std::size_t{1} << 30) / (bytes + (1 << 20)), 20, 1000));
      Setup used = at;
      if (name == "stream" || name == "pair" || name == "batch" || name == "whole") {
        used.window = by_stream;
      }
      if (name == "graph" || name == "lists") used.window = by_graph;
      if (name == "list") {
        used.window = by_list;
        used.device = of_lists;
      }
      check(rwWindowMemory(used.window, used.rank, &memory, nullptr));
      check(cudaMemset(memory, 0, bytes));
      check(cudaDeviceSynchronize());
      // Which ends captures of other threads.
      check(rwBarrier(comm));
      std::function<Times(int)> measure;
      rwBatch_t batch = nullptr;
      cudaGraphExec_t graph = nullptr;
      const auto message_trip = [&used, queues, bytes] {
        const auto send = [&] {
          check(rwQueueSend(used.source, bytes, used.peer, kBlocks, queues, used.ours()));
        };
        if (used.rank == 0) send();
        check(rwQueueReceive(const_cast<unsigned char*>(used.memory), bytes, used.peer, kBlocks,
                             queues, used.ours()));
        if (used.rank == 1) send();
      };
      const auto trip = [&used, bytes] {
        if (used.rank == 0) put_signal(used, bytes, 0);
        wait_signal(used, 0);
        if (used.rank == 1) put_signal(used, bytes, 0);
      };
      if (by_batch) {
        check(rwBatchCreate(comm, &batch));
        const std::size_t piece = bytes / static_cast<std::size_t>(puts);
        for (int k = 0; k < puts; ++k) {
          const std::size_t offset = piece * static_cast<std::size_t>(k);
          check(rwBatchPut(batch, used.source + offset, piece, used.peer, offset, used.window));
        }
        check(rwBatchSignal(batch, used.peer, 0, 1, used.window));
        if (name == "whole") check(rwBatchWaitSignal(batch, used.peer, 0, 1, used.window));
      }
      const auto batch_trip = [&used, batch] {
        if (used.rank == 0) check(rwBatchLaunch(batch, used.ours(), nullptr));
        wait_signal(used, 0);
        if (used.rank == 1) check(rwBatchLaunch(batch, used.ours(), nullptr));
      };
      if (name == "kernel" || name == "blocks") {
        measure = [&](int turns) {
          const bool one = name == "kernel";
          const Times times = time_kernel(used, bytes, turns, one ? 1 : kBlocks);
          return Times{times.one_way_s / turns * (one ? 1 : 2), 0};
        };
      } else if (name == "queue" || name == "queues") {
        const bool one = name == "queue";
        const int blocks =
            one ? 1 : static_cast<int>(std::min<std::size_t>(kBlocks, bytes / kMessageOfABlock));
        measure = [&, blocks](int turns) {
          const Times times = time_messages(used, bytes, turns, blocks);
          return Times{times.one_way_s / turns, 0};
        };
      } else if (name == "stream") {
        measure = [&](int turns) { return time_streams(used, turns, trip); };
      } else if (name == "message") {
        measure = [&](int turns) { return time_streams(used, turns, message_trip); };
      } else if (name == "flags") {
        measure = [&, number = std::uint64_t{0}](int turns) mutable {
          const Times times = time_streams(used, 1, [&] {
            flag_trips<<<1, 32, 0, used.stream>>>(
                static_cast<std::uint64_t*>(memory), reinterpret_cast<std::uint64_t*>(theirs),
                reinterpret_cast<const std::uint64_t*>(used.source), used.rank == 0, number, turns);
            check(cudaGetLastError());
          });
          number += static_cast<std::uint64_t>(turns);
          return Times{times.one_way_s / turns, 0};
        };
      } else if (name == "driver") {
        // The counters lie behind the data.
        measure = [&, number = std::uint64_t{0}](int turns) mutable {
          const auto stream = reinterpret_cast<CUstream>(used.stream);
          return time_streams(used, turns, [&] {
            ++number;
            const auto send = [&] {
              check(cudaMemcpyAsync(theirs, used.source, bytes, cudaMemcpyDefault, used.stream));
              check(driver.write(stream, reinterpret_cast<CUdeviceptr>(theirs) + 32, number, 0));
            };
            if (used.rank == 0) send();
            check(driver.wait(stream, reinterpret_cast<CUdeviceptr>(memory) + 32, number,
                              CU_STREAM_WAIT_VALUE_GEQ));
            if (used.rank == 1) send();
          });
        };
      } else if (name == "pair" || name == "batch") {
        measure = [&](int turns) { return time_streams(used, turns, batch_trip); };
      } else if (name == "whole") {
        measure = [&](int turns) {
          const Times times =
              time_streams(used, turns, [&] { check(rwBatchLaunch(batch, used.ours(), nullptr)); });
          return Times{2 * times.one_way_s, 2 * times.enqueue_s};
        };
      } else if (name == "list") {
        measure = [&](int turns) {
          const Times times = time_lists(used, batch, bytes / kPutsOfABatch, turns);
          return Times{times.one_way_s / turns, 0};
        };
      } else {
        cudaGraph_t captured = nullptr;
        check(cudaStreamBeginCapture(used.stream, cudaStreamCaptureModeThreadLocal));
        for (int k = 0; k < kTripsOfAGraph; ++k) {
          if (name == "chain") {
            message_trip();
          } else if (name == "lists") {
            batch_trip();
          } else {
            trip();
          }
        }
        check(cudaStreamEndCapture(used.stream, &captured));
        check(cudaGraphInstantiate(&graph, captured, 0));
        check(cudaGraphDestroy(captured));
        measure = [&](int turns) {
          const int launches = std::max(1, turns / kTripsOfAGraph);
          Times times =
              time_streams(used, launches, [&] { check(cudaGraphLaunch(graph, used.stream)); });
          return Times{times.one_way_s / kTripsOfAGraph, times.enqueue_s / kTripsOfAGraph};
        };
      }
      // Links take as long for one as kernels for a hundred: a round lasts a tenth of a second.
      (void)measure(kTripsOfAGraph);
      std::int64_t turns = std::clamp<std::int64_t>(
          static_cast<std::int64_t>(0.05 / measure(kTripsOfAGraph).one_way_s), kTripsOfAGraph,
          count);
      check(rwBroadcast(&turns, &turns, 1, rwInt64, 0, comm, nullptr, nullptr));
      std::vector<double> one_way;
      std::vector<double> enqueue;
      for (int round = 0; round < rounds; ++round) {
        const Times times = measure(static_cast<int>(turns));
        one_way.push_back(times.one_way_s);
        enqueue.push_back(times.enqueue_s);
      }
      check(cudaMemcpy(seen.data(), memory, bytes, cudaMemcpyDeviceToHost));
      std::size_t wrong = 0;
      const auto of_puts = static_cast<std::size_t>(puts);
      const std::size_t whole = by_batch ? bytes / of_puts * of_puts : bytes;
      // Rank 0 gets no data from blocks.
      const int written = name == "blocks" && used.rank == 0 ? 0 : 1 + used.peer;
      for (std::size_t i = 0; i < whole; ++i) wrong += seen[i] != written ? 1 : 0;
      rwResult_t error = rwSuccess;
      check(rwCommGetAsyncError(comm, &error));
      check(error);
      if (used.rank == 0) {
        std::printf("%s %zu %.9g %.9g %.9g %zu\n", row, bytes, median(one_way),
                    static_cast<double>(bytes) / median(one_way), median(enqueue), wrong);
        std::fflush(stdout);
      }
      if (graph != nullptr) check(cudaGraphExecDestroy(graph));
      check(rwBatchFree(batch));
      check(rwBarrier(comm));
    }
  }
  check(rwWindowFree(queues));
  check(rwWindowFree(by_list));
  check(rwWindowFree(by_graph));
  check(rwWindowFree(by_stream));
  check(rwWindowFree(at.window));
  check(rwCommDestroy(comm));
  check(cudaFree(at.source));
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{64} << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::string rows = argc > 3 ? argv[3]
                                    : "kernel,blocks,queue,queues,stream,message,chain,pair,batch,"
                                      "whole,list,lists,graph,flags,driver";
  // Kernels that were loaded while a stream waits would wait for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  if (argc > 4 && std::string(argv[4]) == "threads") {
    rwUniqueId id;
    check(rwGetUniqueId(&id));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        check(cudaSetDevice(rank % gpus));
        check(rwCommInitRank(&comm, 2, id, rank));
        run_rank(most, rounds, rows, rank % gpus);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return EXIT_SUCCESS;
  }
  const char* local = std::getenv("LOCAL_RANK");
  const int device = (local != nullptr ? std::atoi(local) : 0) % gpus;
  check(cudaSetDevice(device));
  check(rwCommInitEnv(&comm));
  run_rank(most, rounds, rows, device);
  return EXIT_SUCCESS;
}
