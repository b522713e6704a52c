// Moves messages between two processes by a transport that takes GPU memory: verified, then latency
// and bandwidth for each size. Needs a machine with GPUs, and no CUDA to build.
//
//   gpu_messages [--transport cuda_ipc|sisci|ofi|psm2] [--gpus A,B] [--memory LIST] [--max BYTES]
//                [--connections N] [--rounds N] [--library NAME]
//
// Over sisci (settings SISCI_LIBRARY, and SOFTWARE_SISCI_SETTINGS of the software library) the
// processes are hosts 0 and 1 of the software bridges. A and B are the processes' GPUs (0,1; both
// the same where there is one). LIST is of FROM-TO with alloc (cuMemAlloc), virtual (cuMemCreate)
// and host. --rounds (500) is the most round trips and messages that a time is taken over. Before
// each table, kernels that are already running at the receiver look at what came as soon as they
// are told that it came. Exit status: 0 when all was right, 1 when not, 77 without a GPU.
#include <dlfcn.h>
#include <fmt/format.h>
#include <getopt.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "core/units.h"
#include "transport/registry.h"
#include "transport/transport.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNoGpu = 77;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr std::size_t kInFlight = 8;  // as NCCL

struct Options {
  std::array<int, 2> gpus = {0, -1};
  std::vector<std::string> memory = {"alloc-alloc", "virtual-virtual", "host-virtual",
                                     "virtual-host", "host-host"};
  std::size_t max_bytes = std::size_t{512} << 20;
  std::size_t connections = 1;
  std::size_t rounds = 500;  // round trips, and messages of a bandwidth, at most
  std::string library = "libcuda.so.1";
  std::string transport = "cuda_ipc";
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The other process.
class Other {
 public:
  explicit Other(int socket) : socket_(socket) {}
  template <typename T>
  T swap(const T& mine) const {
    T theirs{};
    if (write(socket_, &mine, sizeof mine) != static_cast<ssize_t>(sizeof mine) ||
        recv(socket_, &theirs, sizeof theirs, MSG_WAITALL) != static_cast<ssize_t>(sizeof theirs)) {
      throw Error(Errc::kPeerLost, "{}", "the other process is gone");
    }
    return theirs;
  }
  void meet() const { (void)swap('m'); }

 private:
  int socket_;
};

std::uint32_t word_at(std::size_t index, std::uint32_t seed) {
  return static_cast<std::uint32_t>(index) * 2654435761U + seed;
}

std::vector<std::uint32_t> words(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::uint32_t> made((bytes + 3) / 4);
  std::uint32_t* const at = made.data();
  for (std::size_t i = 0; i < (bytes + 3) / 4; ++i) at[i] = word_at(i, seed);
  return made;
}

/// Memory for one end's messages, registered.
class Buffer {
 public:
  template <typename Connection>
  Buffer(const std::string& kind, Gpu& gpu, std::size_t bytes, Connection& connection) : gpu_(gpu) {
    if (kind == "host") {
      host_.resize(bytes);
      data_ = host_.data();
      registration_ = connection.register_memory(data_, bytes, MemoryKind::kHost);
      return;
    }
    device_ = std::make_unique<DeviceBuffer>(
        gpu, bytes,
        kind == "virtual" ? DeviceBuffer::From::kVirtualMemory : DeviceBuffer::From::kAllocator);
    data_ = static_cast<std::byte*>(device_->pointer());
    registration_ = connection.register_memory(data_, bytes, MemoryKind::kCuda);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] CuPointer device() const { return device_ ? device_->data() : 0; }
  [[nodiscard]] Registration* registration() const { return registration_.get(); }
  void fill(const void* from, std::size_t bytes) {
    if (device_) {
      gpu_.fill(device_->data(), from, bytes);
    } else {
      std::memcpy(data_, from, bytes);
    }
  }
  void fetch(void* to, std::size_t bytes) {
    if (device_) {
      gpu_.fetch(to, device_->data(), bytes);
    } else {
      std::memcpy(to, data_, bytes);
    }
  }

 private:
  Gpu& gpu_;
  std::vector<std::byte> host_;
  std::unique_ptr<DeviceBuffer> device_;
  std::byte* data_ = nullptr;
  std::unique_ptr<Registration> registration_;
};

/// Connections both ways, and their buffers.
struct Ends {
  std::vector<std::unique_ptr<SendConnection>> senders;
  std::vector<std::unique_ptr<ReceiveConnection>> receivers;
  std::vector<std::unique_ptr<Buffer>> out;
  std::vector<std::unique_ptr<Buffer>> in;
};

Ends connect(Transport& transport, const Other& other, Gpu& gpu, const std::string& from,
             const std::string& to, const Options& options) {
  Ends ends;
  for (std::size_t i = 0; i < options.connections; ++i) {
    const auto listener = transport.listen(0);
    const auto connector = transport.connect(0, other.swap(listener->handle()));
    std::unique_ptr<SendConnection> sender;
    std::unique_ptr<ReceiveConnection> receiver;
    const Clock::time_point start = Clock::now();
    while (!sender || !receiver) {
      if (!sender) sender = connector->poll();
      if (!receiver) receiver = listener->accept();
      if (Clock::now() - start > kPatience) throw Error(Errc::kTimeout, "{}", "connecting");
    }
    ends.out.push_back(std::make_unique<Buffer>(from, gpu, options.max_bytes, *sender));
    ends.in.push_back(std::make_unique<Buffer>(to, gpu, options.max_bytes, *receiver));
    ends.senders.push_back(std::move(sender));
    ends.receivers.push_back(std::move(receiver));
  }
  return ends;
}

/// Sends and receives so many messages of `bytes` on each connection, several in flight.
void stream(Ends& ends, std::size_t bytes, std::size_t sends, std::size_t receives,
            std::size_t max_bytes, std::size_t in_flight = kInFlight) {
  struct Side {
    std::deque<std::unique_ptr<Request>> flying;
    std::size_t started = 0;
    std::size_t finished = 0;
  };
  std::vector<Side> out(ends.senders.size());
  std::vector<Side> in(ends.receivers.size());
  // Messages in flight have places of their own, as far as there is room.
  const std::size_t places = std::clamp<std::size_t>(max_bytes / bytes, 1, in_flight);
  const Clock::time_point start = Clock::now();
  const auto finish = [](Side& side) {
    while (!side.flying.empty() && side.flying.front()->test()) {
      side.flying.pop_front();
      ++side.finished;
    }
  };
  for (std::size_t round = 0;; ++round) {
    bool all = true;
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (Side& side = in[i]; side.started < receives && side.flying.size() < in_flight;) {
        const ReceiveBuffer buffer{ends.in[i]->data() + side.started % places * bytes, bytes, 0,
                                   ends.in[i]->registration()};
        auto request = ends.receivers[i]->receive({&buffer, 1});
        if (!request) break;
        side.flying.push_back(std::move(request));
        ++side.started;
      }
      for (Side& side = out[i]; side.started < sends && side.flying.size() < in_flight;) {
        auto request = ends.senders[i]->send(ends.out[i]->data() + side.started % places * bytes,
                                             bytes, 0, ends.out[i]->registration());
        if (!request) break;
        side.flying.push_back(std::move(request));
        ++side.started;
      }
      finish(in[i]);
      finish(out[i]);
      all = all && in[i].finished == receives && out[i].finished == sends;
    }
    if (all) return;
    if (round % 1024 == 1023) {
      if (Clock::now() - start > kPatience) throw Error(Errc::kTimeout, "{}", "moving messages");
      std::this_thread::yield();
    }
  }
}

bool verify(Ends& ends, const Other& other, int rank, std::size_t bytes, std::uint32_t seed) {
  bool right = true;
  for (std::size_t i = 0; i < ends.out.size(); ++i) {
    ends.out[i]->fill(words(bytes, seed + static_cast<std::uint32_t>(rank)).data(), bytes);
    ends.in[i]->fill(std::vector<std::byte>(bytes, std::byte{0xee}).data(), bytes);
  }
  other.meet();
  stream(ends, bytes, 1, 1, bytes);
  for (const auto& in : ends.in) {
    std::vector<std::byte> came(bytes);
    in->fetch(came.data(), bytes);
    const auto expected = words(bytes, seed + static_cast<std::uint32_t>(1 - rank));
    right = right && std::memcmp(came.data(), expected.data(), bytes) == 0;
  }
  return right;
}

// ---- a kernel that runs while messages come ------------------------------------------------

// check(flag, data, words, seed, wrong): waits until *flag is not 0, a few seconds at most, and
// counts the words of data that are not word_at(). Loads are volatile, as those of NCCL's kernels.
constexpr const char* kKernel = R"(
.version 6.0
.target sm_70
.address_size 64
.visible .entry check(.param .u64 flag, .param .u64 data, .param .u64 count, .param .u32 seed,
                      .param .u64 wrong) {
  .reg .pred %p;
  .reg .b32 %r<12>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [flag];
  ld.param.u64 %d2, [data];
  ld.param.u64 %d3, [count];
  ld.param.u32 %r1, [seed];
  ld.param.u64 %d4, [wrong];
  mov.u32 %r2, 0;
WAIT:
  ld.volatile.global.u32 %r3, [%d1];
  setp.ne.u32 %p, %r3, 0;
  @%p bra GO;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p, %r2, 4000000;
  @%p bra WAIT;
GO:
  membar.sys;
  mov.u32 %r4, %ctaid.x;
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %tid.x;
  mad.lo.u32 %r4, %r4, %r5, %r6;
  cvt.u64.u32 %d5, %r4;
  mov.u32 %r7, %nctaid.x;
  mul.lo.u32 %r7, %r7, %r5;
  cvt.u64.u32 %d6, %r7;
NEXT:
  setp.ge.u64 %p, %d5, %d3;
  @%p bra END;
  shl.b64 %d7, %d5, 2;
  add.u64 %d7, %d2, %d7;
  ld.volatile.global.u32 %r8, [%d7];
  cvt.u32.u64 %r9, %d5;
  mad.lo.u32 %r9, %r9, 2654435761, %r1;
  setp.eq.u32 %p, %r8, %r9;
  @%p bra SAME;
  red.global.add.u32 [%d4], 1;
SAME:
  add.u64 %d5, %d5, %d6;
  bra NEXT;
END:
  ret;
}
)";

/// That kernel on a GPU.
class RunningCheck {
 public:
  RunningCheck(Gpu& gpu, const std::string& library) : gpu_(gpu) {
    void* cuda = dlopen(library.c_str(), RTLD_NOW);
    const auto load = [&](auto*& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(cuda, name));
      return function != nullptr;
    };
    CuResult (*load_module)(void**, const void*) = nullptr;
    CuResult (*get_function)(void**, void*, const char*) = nullptr;
    if (!load(load_module, "cuModuleLoadData") || !load(get_function, "cuModuleGetFunction") ||
        !load(launch_, "cuLaunchKernel")) {
      launch_ = nullptr;
      return;
    }
    const CurrentContext current(gpu.cuda(), gpu.context());
    void* module = nullptr;
    gpu.cuda().check(load_module(&module, kKernel), "cuModuleLoadData");
    gpu.cuda().check(get_function(&kernel_, module, "check"), "cuModuleGetFunction");
    void* page = nullptr;
    gpu.cuda().check(gpu.cuda().host_allocate(&page, 4096, kCuHostPortable | kCuHostDeviceMap),
                     "cuMemHostAlloc");
    flags_ = static_cast<std::atomic<std::uint32_t>*>(page);
    gpu.cuda().check(gpu.cuda().host_pointer(&device_flags_, page, 0), "pinned memory's address");
    gpu.cuda().check(gpu.cuda().stream_create(&stream_, kCuStreamNonBlocking, 0),
                     "making a stream");
  }
  [[nodiscard]] bool possible() const { return launch_ != nullptr; }
  void start(CuPointer data, std::size_t count, std::uint32_t seed) {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    flags_[0] = 0;
    flags_[16] = 0;
    CuPointer flag = device_flags_;
    CuPointer wrong = device_flags_ + 64;
    std::uint64_t length = count;
    std::array<void*, 5> arguments = {&flag, &data, &length, &seed, &wrong};
    gpu_.cuda().check(launch_(kernel_, 16, 1, 1, 256, 1, 1, 0, stream_, arguments.data(), nullptr),
                      "cuLaunchKernel");
  }
  /// To be called the moment that the data is there. @return wrong words
  std::uint32_t tell() {
    flags_[0].store(1, std::memory_order_release);
    for (;;) {
      const CuResult result = gpu_.cuda().stream_query(stream_);
      if (result == kCuSuccess) return flags_[16];
      if (result != kCuNotReady) gpu_.cuda().check(result, "the kernel");
    }
  }

 private:
  Gpu& gpu_;
  void* kernel_ = nullptr;
  CuResult (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      CuStream, void**, void**) = nullptr;
  std::atomic<std::uint32_t>* flags_ = nullptr;
  CuPointer device_flags_ = 0;
  CuStream stream_ = nullptr;
};

// @return wrong words in messages that a running kernel looked at when they were reported
std::optional<std::size_t> check_visibility(Ends& ends, const Other& other, int rank, Gpu& gpu,
                                            const Options& options) {
  RunningCheck check(gpu, options.library);
  if (!check.possible()) return std::nullopt;
  std::size_t wrong = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    const std::size_t bytes = std::min(
        std::array<std::size_t, 3>{64 << 10, 1 << 20, 8 << 20}[round % 3], options.max_bytes);
    const std::uint32_t theirs = round * 2 + static_cast<std::uint32_t>(1 - rank);
    ends.out[0]->fill(words(bytes, round * 2 + static_cast<std::uint32_t>(rank)).data(), bytes);
    if (ends.in[0]->device() != 0) check.start(ends.in[0]->device(), bytes / 4, theirs);
    other.meet();
    stream(ends, bytes, 1, 1, bytes);
    if (ends.in[0]->device() != 0) wrong += check.tell();
    other.meet();
  }
  return wrong;
}

// ---- the tables ----------------------------------------------------------------------------

std::vector<std::size_t> sizes_up_to(std::size_t max_bytes) {
  std::vector<std::size_t> sizes;
  for (const std::size_t size :
       {std::size_t{8}, std::size_t{512}, std::size_t{4} << 10, std::size_t{16} << 10,
        std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{512} << 10, std::size_t{1} << 20,
        std::size_t{2} << 20, std::size_t{4} << 20, std::size_t{8} << 20, std::size_t{32} << 20,
        std::size_t{128} << 20, std::size_t{512} << 20}) {
    if (size <= max_bytes) sizes.push_back(size);
  }
  return sizes;
}

double half_round_trip_us(Ends& ends, const Other& other, int rank, std::size_t bytes,
                          const Options& options) {
  const std::size_t rounds =
      std::clamp<std::size_t>((std::size_t{64} << 20) / bytes, 3, options.rounds);
  double seconds = 0;
  for (const bool timed : {false, true}) {
    other.meet();
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < (timed ? rounds : std::size_t{3}); ++i) {
      stream(ends, bytes, rank == 0 ? 1 : 0, rank == 0 ? 0 : 1, options.max_bytes);
      stream(ends, bytes, rank == 0 ? 0 : 1, rank == 0 ? 1 : 0, options.max_bytes);
    }
    seconds = seconds_since(start);
  }
  return seconds / static_cast<double>(2 * rounds) * 1e6;
}

// GB/s that arrive at one process, best of three.
double bandwidth(Ends& ends, const Other& other, bool sends, bool receives, std::size_t bytes,
                 const Options& options) {
  const std::size_t volume = std::min(options.max_bytes * 4, std::size_t{2} << 30);
  const std::size_t messages =
      std::clamp<std::size_t>(volume / bytes, 4, std::min<std::size_t>(options.rounds, 400));
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    other.meet();
    const Clock::time_point start = Clock::now();
    stream(ends, bytes, sends ? messages : 0, receives ? messages : 0, options.max_bytes);
    const double mine = seconds_since(start);
    const double slower = std::max(mine, other.swap(mine));
    best =
        std::max(best, static_cast<double>(messages * bytes * ends.senders.size()) / slower / 1e9);
  }
  return best;
}

bool measure(Transport& transport, const Other& other, int rank, Gpu& gpu, const std::string& kinds,
             const Options& options) {
  const std::size_t dash = kinds.find('-');
  Ends ends =
      connect(transport, other, gpu, kinds.substr(0, dash), kinds.substr(dash + 1), options);
  const Clock::time_point start = Clock::now();
  bool right = verify(ends, other, rank, 8, 1);
  const double first_ms = seconds_since(start) * 1e3;
  const std::optional<std::size_t> wrong = check_visibility(ends, other, rank, gpu, options);
  const std::size_t both_wrong = wrong.value_or(0) + other.swap(wrong.value_or(0));
  right = right && both_wrong == 0;
  if (rank == 0) {
    fmt::print("\n{}, {} connection(s); first message {:.1f} ms; {}\n", kinds, options.connections,
               first_ms,
               wrong ? fmt::format("{} wrong words seen by running kernels", both_wrong)
                     : "no kernel can be run here");
    fmt::print("{:>12} {:>14} {:>14} {:>14} {:>9}\n", "bytes", "half trip us", "one way GB/s",
               "both ways GB/s", "verified");
  }
  for (const std::size_t bytes : sizes_up_to(options.max_bytes)) {
    const double latency = half_round_trip_us(ends, other, rank, bytes, options);
    const double one = bandwidth(ends, other, rank == 0, rank == 1, bytes, options);
    const double both = bandwidth(ends, other, true, true, bytes, options);
    const bool mine = verify(ends, other, rank, bytes, static_cast<std::uint32_t>(bytes));
    const bool theirs = other.swap(mine);
    right = right && mine && theirs;
    if (rank == 0) {
      fmt::print("{:>12} {:>14.2f} {:>14.2f} {:>14.2f} {:>9}\n", bytes, latency, one, both,
                 mine && theirs ? "yes" : "NO");
      std::fflush(stdout);
    }
  }
  other.meet();
  return right;
}

int process(int rank, int socket, const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("SOFTWARE_SISCI_HOST", std::to_string(rank).c_str(), 1);
  const Other other(socket);
  try {
    const CudaApi cuda(options.library);
    Gpus gpus(cuda);
    if (gpus.count() == 0) throw Error(Errc::kCuda, "{}", "there is no GPU");
    const std::array<int, 2> chosen = {
        options.gpus[0], options.gpus[1] >= 0 ? options.gpus[1] : std::min(1, gpus.count() - 1)};
    Gpu& gpu = gpus.at(chosen.at(static_cast<std::size_t>(rank)));
    if (rank == 0) {
      fmt::print("{} and {}; {} bytes in flight at most, {} messages\n", gpu.name(),
                 gpus.at(chosen[1]).name(), options.max_bytes, kInFlight);
    }
    Config config = Config::load();
    config.set("CUDA_LIBRARY", options.library, "command line");
    log::configure(config.text(Setting::kDebug), config.text(Setting::kDebugSubsys),
                   config.text(Setting::kDebugFile));
    const auto transport = make_transport(options.transport, config);
    if (transport->num_devices() == 0) {
      throw Error(Errc::kSystem, "{} has no device", options.transport);
    }
    bool right = true;
    for (const std::string& kinds : options.memory) {
      right = measure(*transport, other, rank, gpu, kinds, options) && right;
    }
    return right ? 0 : 1;
  } catch (const Error& error) {
    const bool no_cuda = error.code() == Errc::kCuda &&
                         std::string_view(error.what()).find("no CUDA") != std::string_view::npos;
    fmt::print(stderr, "process {}: {}\n", rank, error.what());
    return no_cuda ? kNoGpu : 1;
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

int run(int argc, char** argv) {
  Options options;
  const std::array<option, 8> known = {option{"transport", required_argument, nullptr, 't'},
                                       option{"gpus", required_argument, nullptr, 'g'},
                                       option{"memory", required_argument, nullptr, 'm'},
                                       option{"max", required_argument, nullptr, 'x'},
                                       option{"connections", required_argument, nullptr, 'c'},
                                       option{"rounds", required_argument, nullptr, 'r'},
                                       option{"library", required_argument, nullptr, 'l'},
                                       option{nullptr, 0, nullptr, 0}};
  for (int found = 0; (found = getopt_long(argc, argv, "", known.data(), nullptr)) != -1;) {
    switch (found) {
      case 'g': {
        const std::vector<std::string> both = split(optarg);
        options.gpus = {std::stoi(both.at(0)), std::stoi(both.at(1))};
        break;
      }
      case 't': options.transport = optarg; break;
      case 'm': options.memory = split(optarg); break;
      case 'x': options.max_bytes = parse_bytes(optarg); break;
      case 'c': options.connections = static_cast<std::size_t>(std::stoi(optarg)); break;
      case 'r': options.rounds = std::max<std::size_t>(4, std::stoul(optarg)); break;
      case 'l': options.library = optarg; break;
      default: return 2;
    }
  }
  // CUDA does not survive a fork: only the children use it.
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) return 1;
  std::array<pid_t, 2> children{};
  for (int rank = 0; rank < 2; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    children.at(place) = fork();
    if (children.at(place) == 0) {
      close(sockets.at(1 - place));
      const int status = process(rank, sockets.at(place), options);
      std::fflush(stdout);
      _exit(status);
    }
  }
  close(sockets[0]);
  close(sockets[1]);
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return worst;
}

}  // namespace
}  // namespace ropewalk::transport::window

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // or no GPU memory is taken
  return ropewalk::transport::window::run(argc, argv);
}
