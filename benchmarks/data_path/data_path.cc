// Times several methods to move data between two processes of one host.
//
// Two processes, pinned to the first two allowed cores, run each strategy over a range of sizes:
//
//   one_way     rank 0's buffer to rank 1's
//   exchange    both directions at once
//   all_reduce  float32 sum, both ranks get the result
//
// Strategies: `slots` copies through a FIFO of slots in shared memory; `line` sends up to 56 bytes
// beside their sequence number in one cache line; `readv` reads the peer's buffer with
// process_vm_readv, piece by piece; `cooperate` lets the receiver read one half while the sender
// writes the other; `direct` has the buffers themselves in shared memory.
//
// Usage: data_path [--same-core] [--wait spin|yield|mixed] [--filter TEXT] [--max BYTES]
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/types.h"
#include "core/units.h"
#include "executor/host/kernels.h"

namespace ropewalk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::size_t kSlotArea = std::size_t{8} << 20;

enum class Pattern { kOneWay, kExchange, kAllReduce };
enum class Strategy { kSlots, kLine, kReadv, kCooperate, kDirect, kOneShotSlots };
enum class Wait { kSpin, kYield, kMixed };

struct Run {
  Pattern pattern = Pattern::kOneWay;
  Strategy strategy = Strategy::kSlots;
  std::size_t bytes = 0;
  std::size_t piece = 0;  // bytes of a slot, or of one process_vm_readv
  int slots = 0;
  int iterations = 0;
};

struct alignas(128) Counter {
  std::atomic<std::uint64_t> value{0};
};
struct alignas(64) Line {
  std::atomic<std::uint64_t> sequence{0};
  std::byte data[56];
};

/// What both processes see. Index: the rank that writes the counter.
struct Control {
  Run run;
  Counter arrived[2];
  Counter head[2];   // slots filled
  Counter tail[2];   // slots emptied
  Counter ready[2];  // completed pieces or operations of any other kind
  Counter done[2];
  Line line[2];
};

struct Memory {
  Control* control = nullptr;
  pid_t pid[2] = {};
  std::byte* slots[2] = {};            // written by rank i
  std::byte* private_input = nullptr;  // the same address in both processes, other memory
  std::byte* private_output = nullptr;
  std::byte* shared_input[2] = {};
  std::byte* shared_output[2] = {};
  std::byte* scratch = nullptr;
};

std::byte* map_memory(std::size_t bytes, int kind) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw system_error(errno, "mmap");
  return static_cast<std::byte*>(memory);
}

Wait wait_kind = Wait::kSpin;

template <typename Condition>
void wait_until(Condition&& condition) {
  for (int i = 0; !condition(); ++i) {
    if (wait_kind == Wait::kYield || (wait_kind == Wait::kMixed && i > 1000)) {
      sched_yield();
    } else {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
}

void wait_for(const Counter& counter, std::uint64_t value) {
  wait_until([&] { return counter.value.load(std::memory_order_acquire) >= value; });
}

void readv_from(pid_t pid, void* to, const void* from, std::size_t bytes, bool write = false) {
  const iovec local{to, bytes};
  const iovec remote{const_cast<void*>(from), bytes};
  const ssize_t moved = write ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                              : process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (moved != static_cast<ssize_t>(bytes)) throw system_error(errno, "process_vm_readv");
}

/// One rank of a run. Counters are never reset, so that no run starts by clearing them.
class Rank {
 public:
  Rank(const Memory& memory, int rank)
      : m_(memory), c_(*memory.control), me_(static_cast<std::size_t>(rank)), peer_(1 - me_) {}

  void barrier() {
    const std::uint64_t n = c_.arrived[me_].value.load(std::memory_order_relaxed) + 1;
    c_.arrived[me_].value.store(n, std::memory_order_release);
    wait_for(c_.arrived[peer_], n);
  }

  double timed(const Run& run) {
    barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < run.iterations; ++i) once(run);
    barrier();
    return std::chrono::duration<double>(Clock::now() - begin).count() / run.iterations;
  }

 private:
  void once(const Run& run) {
    switch (run.pattern) {
      case Pattern::kOneWay: return one_way(run);
      case Pattern::kExchange: return exchange(run);
      case Pattern::kAllReduce: return all_reduce(run);
    }
  }

  // ---- slots ----

  [[nodiscard]] std::byte* slot(std::size_t owner, std::uint64_t number, const Run& run) const {
    return m_.slots[owner] + number % static_cast<std::uint64_t>(run.slots) * run.piece;
  }
  bool can_push(const Run& run) {
    const auto head = c_.head[me_].value.load(std::memory_order_relaxed);
    if (head - known_tail_ < static_cast<std::uint64_t>(run.slots)) return true;
    known_tail_ = c_.tail[peer_].value.load(std::memory_order_acquire);
    return head - known_tail_ < static_cast<std::uint64_t>(run.slots);
  }
  bool can_pop() {
    const auto tail = c_.tail[me_].value.load(std::memory_order_relaxed);
    if (known_head_ > tail) return true;
    known_head_ = c_.head[peer_].value.load(std::memory_order_acquire);
    return known_head_ > tail;
  }
  std::byte* push_slot(const Run& run) {
    return slot(me_, c_.head[me_].value.load(std::memory_order_relaxed), run);
  }
  const std::byte* pop_slot(const Run& run) {
    return slot(peer_, c_.tail[me_].value.load(std::memory_order_relaxed), run);
  }
  static void raise(Counter& counter) {
    counter.value.store(counter.value.load(std::memory_order_relaxed) + 1,
                        std::memory_order_release);
  }

  /// Sends `out_bytes` and receives `in_bytes`, as they come.
  void move_by_slots(const Run& run, const std::byte* from, std::size_t out_bytes, std::byte* to,
                     std::size_t in_bytes) {
    std::size_t sent = 0;
    std::size_t received = 0;
    wait_until([&] {
      if (sent < out_bytes && can_push(run)) {
        const std::size_t part = std::min(run.piece, out_bytes - sent);
        std::memcpy(push_slot(run), from + sent, part);
        raise(c_.head[me_]);
        sent += part;
      }
      if (received < in_bytes && can_pop()) {
        const std::size_t part = std::min(run.piece, in_bytes - received);
        std::memcpy(to + received, pop_slot(run), part);
        raise(c_.tail[me_]);
        received += part;
      }
      return sent == out_bytes && received == in_bytes;
    });
  }

  void move_by_line(const std::byte* from, std::size_t out_bytes, std::byte* to,
                    std::size_t in_bytes) {
    if (out_bytes > 0) {
      // One line: the reader is done with the last message before it answers or acknowledges.
      Line& line = c_.line[me_];
      std::memcpy(line.data, from, out_bytes);
      line.sequence.store(line.sequence.load(std::memory_order_relaxed) + 1,
                          std::memory_order_release);
    }
    if (in_bytes > 0) {
      Line& line = c_.line[peer_];
      ++line_seen_;
      wait_until([&] { return line.sequence.load(std::memory_order_acquire) >= line_seen_; });
      std::memcpy(to, line.data, in_bytes);
    }
  }

  // ---- handshakes of the other strategies ----

  void signal_ready() { raise(c_.ready[me_]); }
  void wait_ready() { wait_for(c_.ready[peer_], ++ready_seen_); }
  void signal_done() { raise(c_.done[me_]); }
  void wait_done() { wait_for(c_.done[peer_], ++done_seen_); }

  void read_pieces(const Run& run, std::byte* to, const std::byte* from, std::size_t bytes,
                   bool write = false) {
    for (std::size_t i = 0; i < bytes; i += run.piece) {
      readv_from(m_.pid[peer_], to + i, from + i, std::min(run.piece, bytes - i), write);
    }
  }

  void one_way(const Run& run) {
    const bool sends = me_ == 0;
    switch (run.strategy) {
      case Strategy::kSlots:
      case Strategy::kOneShotSlots:
        // Back to back: the FIFO itself holds the sender back.
        return move_by_slots(run, m_.private_input, sends ? run.bytes : 0, m_.private_output,
                             sends ? 0 : run.bytes);
      case Strategy::kLine:
        move_by_line(m_.private_input, sends ? run.bytes : 0, m_.private_output,
                     sends ? 0 : run.bytes);
        return sends ? wait_done() : signal_done();
      case Strategy::kReadv:
      case Strategy::kDirect:
        if (sends) {
          signal_ready();
          return wait_done();
        }
        wait_ready();
        if (run.strategy == Strategy::kReadv) {
          read_pieces(run, m_.private_output, m_.private_input, run.bytes);
        } else {
          std::memcpy(m_.private_output, m_.shared_input[peer_], run.bytes);
        }
        return signal_done();
      case Strategy::kCooperate: {
        // Both must know that the other has arrived before either touches its memory.
        signal_ready();
        wait_ready();
        const std::size_t half = run.bytes / 2;
        if (sends) {
          read_pieces(run, m_.private_input + half, m_.private_output + half, run.bytes - half,
                      true);
        } else {
          read_pieces(run, m_.private_output, m_.private_input, half);
        }
        signal_done();
        return wait_done();
      }
    }
  }

  void exchange(const Run& run) {
    switch (run.strategy) {
      case Strategy::kSlots:
      case Strategy::kOneShotSlots:
        return move_by_slots(run, m_.private_input, run.bytes, m_.private_output, run.bytes);
      case Strategy::kLine:
        return move_by_line(m_.private_input, run.bytes, m_.private_output, run.bytes);
      case Strategy::kReadv:
      case Strategy::kCooperate:
      case Strategy::kDirect:
        signal_ready();
        wait_ready();
        if (run.strategy == Strategy::kDirect) {
          std::memcpy(m_.private_output, m_.shared_input[peer_], run.bytes);
        } else {
          read_pieces(run, m_.private_output, m_.private_input, run.bytes);
        }
        signal_done();
        return wait_done();
    }
  }

  // ---- all-reduce ----

  void add(std::initializer_list<const void*> sources, std::initializer_list<void*> destinations,
           std::size_t bytes) {
    executor::CombineArgs args;
    args.sources = {sources.begin(), sources.size()};
    args.destinations = {destinations.begin(), destinations.size()};
    args.count = bytes / sizeof(float);
    executor::combine(args);
  }

  void all_reduce(const Run& run) {
    const std::size_t bytes = run.bytes;
    const std::size_t half = bytes / 8 * 4;  // whole floats
    const std::size_t begin = me_ == 0 ? 0 : half;
    const std::size_t mine = me_ == 0 ? half : bytes - half;
    const std::size_t others = bytes - mine;
    const std::size_t peer_begin = me_ == 0 ? half : 0;
    std::byte* const output = m_.private_output;
    const std::byte* const input = m_.private_input;
    switch (run.strategy) {
      case Strategy::kOneShotSlots: {
        std::size_t sent = 0;
        std::size_t done = 0;
        return wait_until([&] {
          if (sent < bytes && can_push(run)) {
            const std::size_t part = std::min(run.piece, bytes - sent);
            std::memcpy(push_slot(run), input + sent, part);
            raise(c_.head[me_]);
            sent += part;
          }
          if (done < bytes && can_pop()) {
            const std::size_t part = std::min(run.piece, bytes - done);
            const void* theirs = pop_slot(run);
            const void* first = me_ == 0 ? input + done : theirs;
            const void* second = me_ == 0 ? theirs : input + done;
            add({first, second}, {output + done}, part);
            raise(c_.tail[me_]);
            done += part;
          }
          return sent == bytes && done == bytes;
        });
      }
      case Strategy::kSlots: {
        // Two-shot as a pipeline: push raw pieces of the peer's half, combine arriving pieces into
        // the output and a slot, copy arriving results into the output. Raw pieces and results
        // share the FIFO in turn.
        std::size_t raw = 0;
        std::size_t combined = 0;
        std::size_t results = 0;
        bool expect_raw = true;  // pieces alternate: raw, result, raw, result ...
        bool push_raw = true;
        return wait_until([&] {
          if (raw >= others) push_raw = false;
          if (push_raw && can_push(run)) {
            const std::size_t part = std::min(run.piece, others - raw);
            std::memcpy(push_slot(run), input + peer_begin + raw, part);
            raise(c_.head[me_]);
            raw += part;
            push_raw = false;
          }
          const bool pops_raw = expect_raw && combined < mine;
          if (pops_raw ? can_pop() && !push_raw && can_push(run) : results < others && can_pop()) {
            if (pops_raw) {
              const std::size_t part = std::min(run.piece, mine - combined);
              add({pop_slot(run), input + begin + combined},
                  {output + begin + combined, push_slot(run)}, part);
              raise(c_.tail[me_]);
              raise(c_.head[me_]);
              combined += part;
              push_raw = true;
              expect_raw = false;
            } else {
              const std::size_t part = std::min(run.piece, others - results);
              std::memcpy(output + peer_begin + results, pop_slot(run), part);
              raise(c_.tail[me_]);
              results += part;
              expect_raw = true;
            }
          }
          return raw == others && combined == mine && results == others;
        });
      }
      case Strategy::kReadv:
      case Strategy::kCooperate:
        signal_ready();
        wait_ready();
        for (std::size_t i = 0; i < mine; i += run.piece) {
          const std::size_t part = std::min(run.piece, mine - i);
          readv_from(m_.pid[peer_], m_.scratch, input + begin + i, part);
          add({m_.scratch, input + begin + i}, {output + begin + i}, part);
          if (run.strategy == Strategy::kCooperate) {
            readv_from(m_.pid[peer_], output + begin + i, output + begin + i, part, true);
          }
        }
        signal_done();
        wait_done();
        if (run.strategy == Strategy::kCooperate) return;
        read_pieces(run, output + peer_begin, output + peer_begin, others);
        signal_done();
        return wait_done();
      case Strategy::kDirect:
        signal_ready();
        wait_ready();
        add({m_.shared_input[peer_] + begin, m_.shared_input[me_] + begin},
            {m_.shared_output[me_] + begin, m_.shared_output[peer_] + begin}, mine);
        signal_done();
        return wait_done();
      case Strategy::kLine: {
        std::byte theirs[56];
        move_by_line(input, bytes, theirs, bytes);
        return add({input, theirs}, {output}, bytes);
      }
    }
  }

  const Memory& m_;
  Control& c_;
  std::size_t me_;
  std::size_t peer_;
  std::uint64_t known_tail_ = 0;
  std::uint64_t known_head_ = 0;
  std::uint64_t line_seen_ = 0;
  std::uint64_t ready_seen_ = 0;
  std::uint64_t done_seen_ = 0;
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) throw system_error(errno, "sched_setaffinity");
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) throw system_error(errno, "sched_getaffinity");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void fill(std::byte* place, std::size_t bytes) {
  auto* values = reinterpret_cast<float*>(place);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) values[i] = static_cast<float>(i % 64);
}

struct Named {
  Strategy strategy;
  const char* name;
};

/// Seconds of one operation: minimum and median of several runs.
std::pair<double, double> measure(Rank& rank, Control& control, Run run) {
  const auto go = [&](int iterations) {
    run.iterations = iterations;
    control.run = run;
    rank.barrier();  // the peer reads control.run after this
    return rank.timed(run);
  };
  // Many short batches: the smallest time is that of the machine when nothing else runs.
  const double guess = go(2);
  const int iterations = std::clamp(static_cast<int>(0.0005 / guess), 1, 20000);
  std::vector<double> seconds;
  const auto end = Clock::now() + std::chrono::milliseconds(60);
  do {
    seconds.push_back(go(iterations));
  } while (seconds.size() < 5 || (seconds.size() < 40 && Clock::now() < end));
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

void measure_all(Rank& rank, Control& control, const std::string& filter, std::size_t max_bytes) {
  const std::vector<std::size_t> sizes = {8,         1 << 10, 4 << 10, 16 << 10, 64 << 10,
                                          256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  const auto show = [&](const char* pattern, const std::string& label, Run run) {
    const std::string full = fmt::format("{:10} {:24}", pattern, label);
    if (full.find(filter) == std::string::npos) return;
    fmt::print("{}", full);
    for (const std::size_t bytes : sizes) {
      if (bytes > max_bytes) break;
      run.bytes = bytes;
      const bool fits = run.strategy != Strategy::kLine || bytes <= sizeof(Line::data);
      if (!fits) {
        fmt::print(" {:>15}", "-");
        continue;
      }
      const auto [least, median] = measure(rank, control, run);
      const double rate = static_cast<double>(bytes) / least / 1e9;
      if (bytes < 16 << 10) {
        fmt::print(" {:6.2f} ({:5.2f})us", least * 1e6, median * 1e6);
      } else {
        fmt::print(" {:6.2f} ({:5.2f})  ", rate, static_cast<double>(bytes) / median / 1e9);
      }
      std::fflush(stdout);
    }
    fmt::print("\n");
  };
  fmt::print("best (median): us below 16 KiB, then GB/s = bytes of one rank's buffer / time\n{:35}",
             "");
  for (const std::size_t bytes : sizes) {
    if (bytes <= max_bytes) fmt::print(" {:>15}", format_bytes(bytes));
  }
  fmt::print("\n");
  const std::pair<Pattern, const char*> patterns[] = {{Pattern::kOneWay, "one_way"},
                                                      {Pattern::kExchange, "exchange"},
                                                      {Pattern::kAllReduce, "all_reduce"}};
  for (const auto& [pattern, pattern_name] : patterns) {
    Run run;
    run.pattern = pattern;
    run.strategy = Strategy::kLine;
    show(pattern_name, "line", run);
    for (const std::size_t slot : {8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10}) {
      for (const int slots : {2, 4, 8, 16}) {
        run.strategy = Strategy::kSlots;
        run.piece = slot;
        run.slots = slots;
        const std::string label = fmt::format("{} x {}", slots, format_bytes(slot));
        show(pattern_name, "slots " + label, run);
        if (pattern != Pattern::kAllReduce) continue;
        run.strategy = Strategy::kOneShotSlots;
        show(pattern_name, "one_shot " + label, run);
      }
    }
    for (const std::size_t piece : {32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 64 << 20}) {
      run.piece = piece;
      run.strategy = Strategy::kReadv;
      if (pattern == Pattern::kAllReduce && piece > 1 << 20) continue;  // scratch
      show(pattern_name, "readv " + format_bytes(piece), run);
      if (pattern == Pattern::kExchange) continue;
      run.strategy = Strategy::kCooperate;
      show(pattern_name, "cooperate " + format_bytes(piece), run);
    }
    run.strategy = Strategy::kDirect;
    show(pattern_name, "direct", run);
  }
}

int main_with(const std::vector<std::string>& arguments) {
  bool same_core = false;
  std::string filter;
  std::size_t max_bytes = kMaxBytes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto value = [&]() -> const std::string& {
      if (++i == arguments.size()) {
        throw Error(Errc::kInvalidArgument, "{} needs a value", arguments[i - 1]);
      }
      return arguments[i];
    };
    if (arguments[i] == "--same-core") {
      same_core = true;
    } else if (arguments[i] == "--wait") {
      const std::string& wait = value();
      wait_kind = wait == "yield" ? Wait::kYield : wait == "mixed" ? Wait::kMixed : Wait::kSpin;
    } else if (arguments[i] == "--filter") {
      filter = value();
    } else if (arguments[i] == "--max") {
      max_bytes = std::min(parse_bytes(value()), kMaxBytes);
    } else {
      throw Error(Errc::kInvalidArgument, "unknown argument {}", arguments[i]);
    }
  }
  const std::vector<int> cpus = allowed_cpus();
  const int second = same_core || cpus.size() < 2 ? cpus[0] : cpus[1];
  fmt::print("cores {} and {}, kernels {}\n", cpus[0], second, executor::vector_target());
  std::fflush(stdout);

  Memory memory;
  memory.control = new (map_memory(sizeof(Control), MAP_SHARED)) Control;
  for (std::size_t r = 0; r < 2; ++r) {
    memory.slots[r] = map_memory(kSlotArea, MAP_SHARED);
    memory.shared_input[r] = map_memory(kMaxBytes, MAP_SHARED);
    memory.shared_output[r] = map_memory(kMaxBytes, MAP_SHARED);
  }
  memory.private_input = map_memory(kMaxBytes, MAP_PRIVATE);
  memory.private_output = map_memory(kMaxBytes, MAP_PRIVATE);
  memory.scratch = map_memory(std::size_t{1} << 20, MAP_PRIVATE);
  memory.pid[0] = getpid();
  const pid_t child = fork();
  if (child < 0) throw system_error(errno, "fork");
  const bool is_child = child == 0;
  const std::size_t me = is_child ? 1 : 0;
  memory.pid[1] = is_child ? getpid() : child;
  if (is_child) prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // lets the sibling read where Yama asks for it
  pin(is_child ? second : cpus[0]);
  fill(memory.private_input, kMaxBytes);
  fill(memory.private_output, kMaxBytes);
  fill(memory.scratch, std::size_t{1} << 20);
  fill(memory.shared_input[me], kMaxBytes);
  fill(memory.shared_output[me], kMaxBytes);
  fill(memory.slots[me], kSlotArea);
  Rank rank(memory, static_cast<int>(me));
  if (is_child) {
    while (true) {
      rank.barrier();
      const Run run = memory.control->run;
      if (run.iterations == 0) _exit(0);
      rank.timed(run);
    }
  }
  measure_all(rank, *memory.control, filter, max_bytes);
  memory.control->run.iterations = 0;
  rank.barrier();
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ropewalk

int main(int argc, char** argv) {
  try {
    return ropewalk::main_with({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_path: {}\n", error.what());
    return 1;
  }
}
