// Runs Ropewalk's collectives on the GPUs of this machine, one thread driving all of them: verifies
// results, and times operations under given settings. It serves to find constants and limits;
// benchmarks/nccl_compare compares with NCCL.
//
//   sweep check                    every collective, type and operator, many sizes: counts errors
//   sweep time OP BYTES... -- NAME=VALUE...    microseconds by stream and by graph, per setting
//   sweep times < LINES            the same for each line: OP BYTES... -- NAME=VALUE..., all lines
//                                  with the same names, since settings stay
//
// SWEEP_RANKS in the environment: so many ranks, which share the GPUs; times then say little.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/runtime.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"

using namespace ropewalk;

namespace {

#define CUDA(call)                                                                         \
  do {                                                                                     \
    const cudaError_t result = (call);                                                     \
    if (result != cudaSuccess) {                                                           \
      fmt::print("{}:{} {}: {}\n", __FILE__, __LINE__, #call, cudaGetErrorString(result)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

int num_gpus() {
  int n = 0;
  CUDA(cudaGetDeviceCount(&n));
  return n;
}

int gpu_of(int rank) {
  static const int gpus = num_gpus();
  return rank % gpus;
}

// All GPUs of this machine as ranks of one communicator in one thread.
class Team {
 public:
  explicit Team(int n) {
    comm::Runtime& runtime = comm::Runtime::process();
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
    comms.resize(static_cast<std::size_t>(n));
    streams.resize(comms.size());
    comm::Group group;
    group.start();
    for (int r = 0; r < n; ++r) {
      group.add_join([this, &id, &runtime, r, n] {
        const auto i = static_cast<std::size_t>(r);
        comms[i] = comm::Communicator::join(id, r, n, runtime);
        comms[i]->attach_device(gpu_of(r));
      });
    }
    group.end();
    for (int r = 0; r < n; ++r) {
      CUDA(cudaSetDevice(gpu_of(r)));
      CUDA(cudaStreamCreateWithFlags(&streams[static_cast<std::size_t>(r)], cudaStreamNonBlocking));
    }
  }
  ~Team() {
    for (auto& one : comms) one->finalize();
    comms.clear();
    for (std::size_t r = 0; r < streams.size(); ++r) cudaStreamDestroy(streams[r]);
  }
  int size() const { return static_cast<int>(comms.size()); }
  void sync() {
    for (std::size_t r = 0; r < streams.size(); ++r) {
      CUDA(cudaSetDevice(gpu_of(static_cast<int>(r))));
      cudaError_t state = cudaErrorNotReady;
      const auto begin = std::chrono::steady_clock::now();
      while ((state = cudaStreamQuery(streams[r])) == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(20)) {
          for (auto& one : comms) one->device()->abort();
          fmt::print("HUNG\n");
          std::fflush(stdout);
          std::_Exit(3);
        }
      }
      CUDA(state);
      comms[r]->look_at_device();
      comms[r]->failure().check();
    }
  }
  std::vector<std::unique_ptr<comm::Communicator>> comms;
  std::vector<cudaStream_t> streams;
};

struct Buffers {
  std::vector<std::byte*> input;
  std::vector<std::byte*> output;
  Buffers(int n, std::size_t bytes) : input(static_cast<std::size_t>(n)), output(input.size()) {
    for (int r = 0; r < n; ++r) {
      CUDA(cudaSetDevice(gpu_of(r)));
      CUDA(cudaMalloc(&input[static_cast<std::size_t>(r)], bytes + 64));
      CUDA(cudaMalloc(&output[static_cast<std::size_t>(r)], bytes + 64));
    }
  }
  ~Buffers() {
    for (std::size_t r = 0; r < input.size(); ++r) {
      cudaFree(input[r]);
      cudaFree(output[r]);
    }
  }
};

comm::CollectiveCall make_call(Collective c, DataType type, RedOp op, std::size_t count, int root) {
  comm::CollectiveCall call;
  call.collective = c;
  call.type = type;
  call.op = op;
  call.count = count;
  call.root = root;
  return call;
}

std::uint64_t check_one(Team& team, Buffers& buffers, Collective c, DataType type, RedOp op,
                        std::size_t count, int root, bool in_place, std::size_t shift,
                        int repeats) {
  const int n = team.size();
  const std::size_t unit = count * size_of(type);
  const schedule::TestPattern pattern(c, type, op, n, root, count);
  std::vector<std::vector<std::byte>> host(static_cast<std::size_t>(n));
  std::vector<comm::CollectiveCall> calls;
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < repeats; ++turn) {
    calls.clear();
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::size_t in = unit * schedule::input_units(c, n, root, r);
      const std::size_t out = unit * schedule::output_units(c, n, root, r);
      comm::CollectiveCall call = make_call(c, type, op, count, root);
      std::byte* input = buffers.input[i] + shift;
      std::byte* output = buffers.output[i] + shift;
      if (in_place) {
        const int offset = *schedule::in_place_input_offset(c, r);
        if (out >= in) {
          input = output + (out > in ? unit * offset : 0);
        } else {
          output = input + unit * static_cast<std::size_t>(-offset);
        }
      }
      host[i].assign(std::max(in, out) + 64, std::byte{0});
      CUDA(cudaSetDevice(gpu_of(r)));
      if (!in_place && out > 0) CUDA(cudaMemset(output, 0x5a, out));
      pattern.fill_input(r, host[i].data());
      if (in > 0) CUDA(cudaMemcpy(input, host[i].data(), in, cudaMemcpyHostToDevice));
      call.input = input;
      call.output = output;
      if (op == RedOp::kPreMulSum) call.scalar = pattern.scalar(r);
      calls.push_back(call);
    }
    for (int r = 0; r < n; ++r) {
      CUDA(cudaSetDevice(gpu_of(r)));
      CUDA(cudaDeviceSynchronize());
    }
    comm::Group& group = comm::Group::of_thread();
    group.start();
    for (int r = 0; r < n; ++r) {
      group.add_on_stream(*team.comms[static_cast<std::size_t>(r)],
                          calls[static_cast<std::size_t>(r)],
                          team.streams[static_cast<std::size_t>(r)]);
    }
    group.end();
    team.sync();
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::size_t out = unit * schedule::output_units(c, n, root, r);
      if (out > 0) {
        CUDA(cudaMemcpy(host[i].data(), calls[i].output, out, cudaMemcpyDeviceToHost));
      }
      wrong += pattern.count_wrong(r, host[i].data());
    }
  }
  return wrong;
}

void set_all(const std::vector<std::string>& settings) {
  for (const std::string& text : settings) {
    const std::size_t equals = text.find('=');
    comm::Runtime::process().set(text.substr(0, equals), text.substr(equals + 1), "command line");
  }
}

int check(int n) {
  std::uint64_t wrong = 0;
  int runs = 0;
  const std::vector<std::vector<std::string>> configurations{
      {"PROTOCOL=auto", "DIRECT_BUFFERS=on", "CHANNELS=0"},
      {"PROTOCOL=ll", "DIRECT_BUFFERS=on", "CHANNELS=4"},
      {"PROTOCOL=ll128", "DIRECT_BUFFERS=on", "CHANNELS=4"},
      {"PROTOCOL=simple", "DIRECT_BUFFERS=on", "CHANNELS=4"},
      {"PROTOCOL=simple", "DIRECT_BUFFERS=off", "CHANNELS=0"}};
  for (const auto& settings : configurations) {
    set_all(settings);
    Team team(n);
    Buffers buffers(n, std::size_t{40} << 20);
    const int before = runs;
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      for (const std::size_t count : {1, 3, 127, 1024, 33333, 1 << 18, 1000003}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !schedule::in_place_input_offset(collective, 0)) continue;
          for (const std::size_t shift : {0, 4}) {
            if (shift != 0 && count > 40000) continue;
            const std::uint64_t bad =
                check_one(team, buffers, collective, DataType::kFloat32, RedOp::kSum, count,
                          has_root(collective) ? n - 1 : 0, in_place, shift, 2);
            if (bad != 0) {
              fmt::print("WRONG {} count {} in place {} shift {} ({}): {}\n", name(collective),
                         count, in_place, shift, settings[0], bad);
            }
            wrong += bad;
            ++runs;
          }
        }
      }
    }
    for (int t = 0; t < kNumDataTypes; ++t) {
      for (int o = 0; o < kNumRedOps; ++o) {
        for (const std::size_t count : {5, 4099, 200001}) {
          const std::uint64_t bad =
              check_one(team, buffers, Collective::kAllReduce, static_cast<DataType>(t),
                        static_cast<RedOp>(o), count, 0, false, 0, 1);
          if (bad != 0) {
            fmt::print("WRONG all_reduce {} {} count {} ({}): {}\n", name(static_cast<DataType>(t)),
                       name(static_cast<RedOp>(o)), count, settings[0], bad);
          }
          wrong += bad;
          ++runs;
        }
      }
    }
    fmt::print("{} {}: {} runs, {} wrong elements so far; {} MiB per communicator\n", settings[0],
               settings[1], runs - before, wrong, team.comms[0]->device()->memory_bytes() >> 20);
    std::fflush(stdout);
  }
  return wrong == 0 ? 0 : 1;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Timing {
  double stream = 0;
  double graph = 0;
  double host = 0;  // of the thread that enqueues
};

Timing time_one(Team& team, Buffers& buffers, Collective c, std::size_t count) {
  const int n = team.size();
  std::vector<comm::CollectiveCall> calls;
  for (int r = 0; r < n; ++r) {
    comm::CollectiveCall call = make_call(c, DataType::kFloat32, RedOp::kSum, count, 0);
    call.input = buffers.input[static_cast<std::size_t>(r)];
    call.output = buffers.output[static_cast<std::size_t>(r)];
    calls.push_back(call);
  }
  const auto once = [&] {
    comm::Group& group = comm::Group::of_thread();
    group.start();
    for (int r = 0; r < n; ++r) {
      group.add_on_stream(*team.comms[static_cast<std::size_t>(r)],
                          calls[static_cast<std::size_t>(r)],
                          team.streams[static_cast<std::size_t>(r)]);
    }
    group.end();
  };
  const std::size_t bytes = count * 4;
  const int turns = bytes <= (1 << 20) ? 200 : bytes <= (32 << 20) ? 40 : 8;
  Timing timing;
  for (int i = 0; i < 5; ++i) once();
  team.sync();
  timing.stream = 1e9;
  for (int round = 0; round < 3; ++round) {
    const double begin = seconds_now();
    for (int i = 0; i < turns; ++i) once();
    if (round == 0 || seconds_now() - begin < timing.host * turns) {
      timing.host = (seconds_now() - begin) / turns;
    }
    team.sync();
    timing.stream = std::min(timing.stream, (seconds_now() - begin) / turns);
  }
  // Graphs: as many calls in each rank's graph.
  std::vector<cudaGraphExec_t> graphs(static_cast<std::size_t>(n));
  std::vector<cudaGraph_t> captured(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) {
    CUDA(cudaSetDevice(gpu_of(r)));
    CUDA(cudaStreamBeginCapture(team.streams[static_cast<std::size_t>(r)],
                                cudaStreamCaptureModeThreadLocal));
  }
  for (int i = 0; i < turns; ++i) once();
  for (int r = 0; r < n; ++r) {
    CUDA(cudaSetDevice(gpu_of(r)));
    CUDA(cudaStreamEndCapture(team.streams[static_cast<std::size_t>(r)],
                              &captured[static_cast<std::size_t>(r)]));
  }
  for (int r = 0; r < n; ++r) {
    CUDA(cudaSetDevice(gpu_of(r)));
    CUDA(cudaGraphInstantiate(&graphs[static_cast<std::size_t>(r)],
                              captured[static_cast<std::size_t>(r)], 0));
    CUDA(cudaGraphDestroy(captured[static_cast<std::size_t>(r)]));
  }
  timing.graph = 1e9;
  for (int round = 0; round < 4; ++round) {
    const double begin = seconds_now();
    for (int r = 0; r < n; ++r) {
      CUDA(cudaSetDevice(gpu_of(r)));
      CUDA(cudaGraphLaunch(graphs[static_cast<std::size_t>(r)],
                           team.streams[static_cast<std::size_t>(r)]));
    }
    team.sync();
    if (round > 0) timing.graph = std::min(timing.graph, (seconds_now() - begin) / turns);
  }
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  return timing;
}

int time_all(int n, const std::vector<std::string>& words) {
  const Collective collective = *parse_collective(words[0]);
  std::vector<std::size_t> sizes;
  std::size_t w = 1;
  for (; w < words.size() && words[w] != "--"; ++w) sizes.push_back(std::stoull(words[w]));
  set_all({words.begin() + static_cast<long>(std::min(w + 1, words.size())), words.end()});
  Team team(n);
  Buffers buffers(n, *std::max_element(sizes.begin(), sizes.end()) * static_cast<std::size_t>(n));
  std::string label;
  for (std::size_t i = w + 1; i < words.size(); ++i) label += words[i] + " ";
  for (const std::size_t bytes : sizes) {
    const std::size_t count = bytes / 4;
    const Timing t = time_one(team, buffers, collective, count);
    comm::CollectiveCall call = make_call(collective, DataType::kFloat32, RedOp::kSum, count, 0);
    const tune::Choice choice = team.comms[0]->explain(call).choice;
    const std::string chosen =
        fmt::format("{} {} {}x{} chunk {}", choice.algorithm, executor::name(choice.protocol),
                    choice.channels, choice.threads, choice.chunk_bytes);
    fmt::print(
        "{:12} {:>10} B  stream {:8.2f} us (host {:5.2f})  graph {:8.2f} us  {:7.1f} GB/s  {} {}\n",
        words[0], bytes, t.stream * 1e6, t.host * 1e6, t.graph * 1e6,
        static_cast<double>(bytes) / t.graph * 1e-9, chosen, label);
    std::fflush(stdout);
  }
  return 0;
}

int time_lines(int n) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    if (words.size() < 2) continue;
    try {
      time_all(n, words);
    } catch (const std::exception& error) {
      fmt::print("ERROR {}: {}\n", line, error.what());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* given = std::getenv("SWEEP_RANKS");
  const int n = given == nullptr ? num_gpus() : std::atoi(given);
  const std::vector<std::string> words(argv + 2, argv + argc);
  const std::string mode = argc > 1 ? argv[1] : "check";
  try {
    if (mode == "check") return check(n);
    if (mode == "time") return time_all(n, words);
    if (mode == "times") return time_lines(n);
  } catch (const std::exception& error) {
    fmt::print("ERROR {}\n", error.what());
    return 2;
  }
  fmt::print("unknown mode {}\n", mode);
  return 2;
}
