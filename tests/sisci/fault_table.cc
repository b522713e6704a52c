// The table of faults: how each transport reacts to each injected fault.
//
// fault_table --write FILE     runs all cases and writes the page
// fault_table --check FILE     runs all cases and compares the results with the page
//
// A case is two processes on two hosts of a software fabric: the receiver listens, the sender
// connects, and messages of several sizes go over registered memory. Each process reports how it
// ended; a process that hangs is killed and reported as hanging.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "transport/registry.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::transport {
namespace {

using Clock = std::chrono::steady_clock;
using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr auto kPatience = std::chrono::seconds(40);
constexpr std::array<std::size_t, 4> kSizes = {8, 5'000, 100'000, 1'500'000};
constexpr int kRounds = 4;
constexpr std::chrono::milliseconds kNoticed{300};

// The moment of a fault in a case.
enum class Step { kNever, kBeforeAccept, kConnected, kTransfer };

struct Fault {
  std::string title{};
  std::string fabric{};  // settings of the software bridges
  std::string gpus{};    // of the stand-in for CUDA
  Settings settings{};   // of both ends
  std::string driver{};  // empty: every transport
  Step receiver_killed = Step::kNever;
  Step sender_killed = Step::kNever;
  std::string fabric_later{};  // set while messages are sent
  int senders = 1;
  std::function<void(Handle&)> handle{};  // changes the handle on its way
  bool quoted = false;                    // the errors' texts are the same in every run
  bool too_long = false;                  // messages are longer than their receives
  bool gpu_memory = false;                // over `sisci` too, messages are in GPU memory
};

std::vector<Fault> faults() {
  const std::string sisci = "sisci";
  std::vector<Fault> all;
  const auto add = [&](Fault fault) { all.push_back(std::move(fault)); };
  add({.title = "nothing"});
  add({.title = "the library is missing",
       .settings = {{"SISCI_LIBRARY", "libno-such-sisci.so"}},
       .driver = sisci});
  add({.title = "the library is installed, its driver is not loaded",
       .fabric = "driver no\n",
       .driver = sisci});
  add({.title = "the adapter has no link",
       .fabric = "link_down 0 0\nlink_down 1 0\n",
       .driver = sisci});
  add({.title = "no IOMMU: registering memory is refused",
       .fabric = "iommu absent\n",
       .driver = sisci});
  add({.title = "broken IOMMU: registering succeeds, DMA moves nothing",
       .fabric = "iommu broken\n",
       .driver = sisci});
  add({.title = "DMA from plain memory is not supported",
       .fabric = "transfer_from_memory no\n",
       .driver = sisci});
  add({.title = "DMA reports success and never moves anything",
       .fabric = "lose_transfer 1\nlose_all_transfers yes\n",
       .driver = sisci});
  add({.title = "one transfer is lost later, VERIFY=connect",
       .fabric = "lose_transfer 5\n",
       .driver = sisci});
  add({.title = "one transfer is lost later, VERIFY=all",
       .fabric = "lose_transfer 5\n",
       .settings = {{"VERIFY", "all"}},
       .driver = sisci,
       .quoted = true});
  add({.title = "one transfer into a window ends in an error",
       .fabric = "iommu absent\nfail_transfer 3\n",
       .driver = sisci});
  add({.title = "one transfer into registered memory ends in an error",
       .fabric = "fail_transfer 6\n",
       .driver = sisci,
       .quoted = true});
  add({.title = "stores are late and torn",
       .fabric = "delayed_stores yes\ntorn_flush 3\n",
       .driver = sisci});
  add({.title = "stores are lost, VERIFY=all",
       .fabric = "delayed_stores yes\nlost_flush 25\n",
       .settings = {{"VERIFY", "all"}},
       .driver = sisci});
  add({.title = "slow link: 300 MB/s, 200 us",
       .fabric = "megabytes_per_second 300\nlatency_us 200\n",
       .driver = sisci});
  add({.title = "the link goes down during a transfer",
       .settings = {{"PEER_LOSS_TIME", "200ms"}},
       .driver = sisci,
       .fabric_later = "link_down 0 0\n"});
  add({.title = "each host can make only one segment",
       .fabric = "max_segments 1\n",
       .driver = sisci});
  add({.title = "no contiguous memory",
       .fabric = "max_contiguous 1\n",
       .driver = sisci,
       .quoted = true});
  add({.title = "no large piece of contiguous memory",
       .fabric = "max_contiguous 100000\n",
       .driver = sisci});
  add({.title = "no room to map the other end's window",
       .fabric = "max_mapped 10000\n",
       .driver = sisci,
       .quoted = true});
  add({.title = "no DMA queue left",
       .fabric = "max_dma_queues 1\n",
       .settings = {{"SISCI_QUEUES", "3"}},
       .driver = sisci});
  const auto add_gpu = [&](Fault fault) {
    fault.driver = sisci;
    fault.gpu_memory = true;
    add(std::move(fault));
  };
  add_gpu({.title = "nothing"});
  add_gpu({.title = "CUDA's library is missing: messages in host memory",
           .settings = {{"CUDA_LIBRARY", "libno-such-cuda.so"}}});
  add_gpu({.title = "kernels are loaded at their first launch: messages in host memory",
           .gpus = "lazy"});
  add_gpu({.title = "no peer-memory interface: attaching GPU memory is refused",
           .fabric = "gpu_memory no\n"});
  add_gpu({.title = "no IOMMU: attaching GPU memory is refused", .fabric = "iommu absent\n"});
  add_gpu(
      {.title = "broken IOMMU: attaching succeeds, DMA moves nothing", .fabric = "iommu broken\n"});
  add_gpu({.title = "broken IOMMU: attaching succeeds, DMA on GPU memory cannot be started",
           .fabric = "attach_error yes\n"});
  add_gpu({.title = "DMA moves nothing between GPUs, and works elsewhere",
           .fabric = "lose_gpu_to_gpu yes\n"});
  add_gpu({.title = "SYNC_MEMOPS cannot be set", .gpus = "refuse=cuPointerSetAttribute:801"});
  add_gpu({.title = "one transfer is lost later, VERIFY=all",
           .fabric = "lose_transfer 12\n",
           .settings = {{"VERIFY", "all"}},
           .quoted = true});
  add_gpu({.title = "one transfer into GPU memory ends in an error",
           .fabric = "fail_transfer 12\n",
           .quoted = true});
  add_gpu({.title = "no DMA queue left",
           .fabric = "max_dma_queues 1\n",
           .settings = {{"SISCI_QUEUES", "3"}}});
  add_gpu({.title = "the sender is killed in a transfer", .sender_killed = Step::kTransfer});
  add_gpu({.title = "the receiver is killed in a transfer", .receiver_killed = Step::kTransfer});
  const std::string cuda = "cuda_ipc";
  add({.title = "CUDA's library is missing: messages in host memory",
       .settings = {{"CUDA_LIBRARY", "libno-such-cuda.so"}},
       .driver = cuda});
  add({.title = "kernels are loaded at their first launch: messages in host memory",
       .gpus = "lazy",
       .driver = cuda});
  add({.title = "copies between GPUs report success and move nothing",
       .gpus = "lose=dtod",
       .driver = cuda});
  add({.title = "a GPU's memory cannot be exported",
       .gpus = "refuse=cuMemExportToShareableHandle:800",
       .driver = cuda});
  add({.title = "a GPU's memory cannot be imported",
       .gpus = "refuse=cuMemImportFromShareableHandle:801",
       .driver = cuda});
  add({.title = "no GPU can access another's memory", .gpus = "no_peer", .driver = cuda});
  add({.title = "the window cannot be pinned, GPUs can access each other's memory",
       .gpus = "refuse=cuMemHostRegister_v2:800",
       .driver = cuda});
  add({.title = "the window cannot be pinned, and no GPU reaches another's memory",
       .gpus = "no_peer,refuse=cuMemHostRegister_v2:800",
       .driver = cuda});
  add({.title = "streams cannot write flags to memory", .gpus = "no_marks", .driver = cuda});
  add({.title = "the sender is killed before it is accepted",
       .sender_killed = Step::kBeforeAccept});
  add({.title = "the sender is killed when it is connected", .sender_killed = Step::kConnected});
  add({.title = "the sender is killed in a transfer", .sender_killed = Step::kTransfer});
  add({.title = "the receiver is killed before it accepts",
       .receiver_killed = Step::kBeforeAccept});
  add({.title = "the receiver is killed when it is connected",
       .receiver_killed = Step::kConnected});
  add({.title = "the receiver is killed in a transfer", .receiver_killed = Step::kTransfer});
  add({.title = "two senders for one handle", .senders = 2});
  add({.title = "a handle of zeros", .handle = [](Handle& handle) { handle = {}; }});
  add({.title = "a handle with other contents",
       .handle = [](Handle& handle) { handle.fill(std::byte{0xa5}); }});
  // Handles of both: 4 bytes of magic number, 8 public bytes, 16 bytes of secret.
  const auto change_secret = [](Handle& handle) { handle[20] ^= std::byte{1}; };
  add({.title = "a handle whose secret was changed",
       .driver = sisci,
       .handle = change_secret,
       .quoted = true});
  add({.title = "a handle whose secret was changed",
       .driver = "shm",
       .handle = change_secret,
       .quoted = true});
  add({.title = "a message that is longer than its receive", .quoted = true, .too_long = true});
  return all;
}

std::string_view words(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument: return "refuses it (invalid argument)";
    case Errc::kInvalidUsage: return "fails: invalid usage";
    case Errc::kSystem: return "fails: system error";
    case Errc::kCuda: return "fails: CUDA error";
    case Errc::kPeerLost: return "fails: peer lost";
    case Errc::kTimeout: return "fails: timeout";
    case Errc::kAborted: return "fails: aborted";
    case Errc::kInterrupted: return "fails: interrupted";
    case Errc::kInternal: return "fails: internal error";
  }
  return "";
}

struct NoDevice {};

template <typename Try>
auto until(Try attempt) {
  const Clock::time_point end = Clock::now() + kPatience;
  for (;;) {
    auto result = attempt();
    if (result) return result;
    if (Clock::now() > end) throw std::runtime_error("hangs");
  }
}

// The work of one process, with a deadline that is reached only if the other one does not answer.
class Actor {
 public:
  Actor(const Fault& fault, const std::string& provider, const std::string& log) : fault_(fault) {
    log::configure("INFO", "NET", log);
    Config config;
    config.set("SISCI_LIBRARY", RW_SOFTWARE_SISCI, "test");
    const bool gpus = provider != "sisci" || fault.gpu_memory;
    config.set("CUDA_LIBRARY", gpus ? RW_STAND_IN_CUDA : "libnone.so", "test");
    config.set("SOCKET_IFNAME", "=lo", "test");
    config.set("SISCI_PIO_BYTES", "8K", "test");  // transfers are counted
    for (const auto& [name, value] : fault.settings) config.set(name, value, "test");
    transport_ = make_transport(provider, config);
    if (transport_->num_devices() == 0) throw NoDevice();
    if ((transport_->properties(0).memory_kinds & static_cast<unsigned>(MemoryKind::kCuda)) != 0) {
      transport_ = std::make_unique<window::testing::OnDevice>(
          std::move(transport_), config.text(Setting::kCudaLibrary),
          window::testing::Memory::kVirtual, window::testing::Memory::kAllocator);
    }
  }

  void receive(int socket) {
    const auto listener = transport_->listen(0);
    Handle handle = listener->handle();
    if (fault_.handle) fault_.handle(handle);
    for (int i = 0; i < fault_.senders; ++i) write_all(socket, handle.data(), handle.size());
    if (fault_.sender_killed == Step::kBeforeAccept) {
      read_all(socket, handle.data(), 1);
      read_all(socket, handle.data(), 1);                           // until its end is closed
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the bridges noticed
    }
    if (fault_.receiver_killed == Step::kBeforeAccept) raise(SIGKILL);
    std::vector<std::unique_ptr<ReceiveConnection>> connections;
    const Clock::time_point end =
        Clock::now() + (fault_.handle || fault_.sender_killed == Step::kBeforeAccept
                            ? std::chrono::seconds(1)
                            : kPatience);
    while (connections.size() < static_cast<std::size_t>(fault_.senders)) {
      if (auto connection = listener->accept()) connections.push_back(std::move(connection));
      if (Clock::now() > end) throw std::runtime_error("gets no connection");
      char refused = 0;
      if (recv(socket, &refused, 1, MSG_DONTWAIT | MSG_PEEK) == 1) {
        throw std::runtime_error("gets no connection");
      }
      std::this_thread::yield();
    }
    if (fault_.receiver_killed == Step::kConnected) raise(SIGKILL);
    std::vector<std::string> in(connections.size(), std::string(kSizes.back(), 0));
    std::vector<std::unique_ptr<Registration>> memory;
    for (std::size_t c = 0; c < connections.size(); ++c) {
      memory.push_back(
          connections[c]->register_memory(in[c].data(), in[c].size(), MemoryKind::kHost));
    }
    int turn = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const std::size_t bytes : kSizes) {
        if (fault_.receiver_killed == Step::kTransfer && round == kRounds - 1) raise(SIGKILL);
        for (std::size_t c = 0; c < connections.size(); ++c) {
          std::fill(in[c].begin(), in[c].end(), 0);
          const std::size_t room = fault_.too_long ? bytes - 1 : bytes;
          const ReceiveBuffer buffer{in[c].data(), room, 0, memory[c].get()};
          auto request = until([&] { return connections[c]->receive({&buffer, 1}); });
          until([&] { return request->test().has_value(); });
          if (std::string_view(in[c]).substr(0, bytes) != text(turn, bytes)) {
            throw std::runtime_error("gets wrong data and does not notice");
          }
        }
        ++turn;
      }
    }
    write_all(socket, "d", 1);
  }

  void send(int socket, const SoftwareFabric& fabric) {
    Handle handle{};
    read_all(socket, handle.data(), handle.size());
    std::unique_ptr<SendConnection> connection;
    try {
      const auto connector = transport_->connect(0, handle);
      connection = until([&] { return connector->poll(); });
    } catch (const Error&) {
      write_all(socket, "r", 1);
      throw;
    }
    if (fault_.sender_killed == Step::kBeforeAccept) {
      write_all(socket, "k", 1);
      raise(SIGKILL);
    }
    std::string out(kSizes.back(), 0);
    const auto memory = connection->register_memory(out.data(), out.size(), MemoryKind::kHost);
    int turn = 0;
    try {
      for (int round = 0; round < kRounds; ++round) {
        for (const std::size_t bytes : kSizes) {
          if (fault_.sender_killed == Step::kTransfer && round == kRounds - 1) raise(SIGKILL);
          if (!fault_.fabric_later.empty() && round == 2 && bytes == kSizes.front()) {
            fabric.write(fault_.fabric_later);
            // The library reads its settings now and then: what is left to send on a fast machine
            // would be through before.
            std::this_thread::sleep_for(kNoticed);
          }
          const std::string message = text(turn++, bytes);
          std::copy(message.begin(), message.end(), out.begin());
          auto request =
              until([&] { return connection->send(out.data(), bytes, 0, memory.get()); });
          if (fault_.sender_killed == Step::kConnected) raise(SIGKILL);
          until([&] { return request->test().has_value(); });
        }
      }
    } catch (const Error&) {
      write_all(socket, "r", 1);
      throw;
    }
    char done = 0;
    read_all(socket, &done, 1);
  }

 private:
  static std::string text(int turn, std::size_t bytes) {
    std::string made(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) {
      made[i] = static_cast<char>(i * 31 + i / 251 + static_cast<std::size_t>(turn) * 7 + 1);
    }
    return made;
  }
  static void write_all(int socket, const void* data, std::size_t bytes) {
    (void)::send(socket, data, bytes, MSG_NOSIGNAL);
  }
  static void read_all(int socket, void* data, std::size_t bytes) {
    (void)recv(socket, data, bytes, MSG_WAITALL);
  }

  const Fault& fault_;
  std::unique_ptr<Transport> transport_;
};

std::string outcome(bool quoted, const std::function<void()>& body) {
  try {
    body();
    return "works";
  } catch (const NoDevice&) {
    return "has no device";
  } catch (const Error& error) {
    const std::string_view code = words(error.code());
    return quoted ? fmt::format("{}: `{}`", code, error.what()) : std::string(code);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A process that reports one line through a pipe.
struct Process {
  pid_t pid = -1;
  int report = -1;
};

Process start(bool quoted, const std::function<void()>& before, const std::function<void()>& body) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe() failed");
  Process process{fork(), ends[0]};
  if (process.pid == 0) {
    close(ends[0]);
    before();
    const std::string line = outcome(quoted, body);
    (void)!write(ends[1], line.data(), line.size());
    _exit(0);
  }
  close(ends[1]);
  return process;
}

std::string finish(Process process, Clock::time_point end) {
  std::string line;
  std::array<char, 256> part{};
  for (;;) {
    pollfd entry{process.report, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0) {
      kill(process.pid, SIGKILL);
      line = "hangs";
      break;
    }
    const ssize_t got = read(process.report, part.data(), part.size());
    if (got <= 0) break;
    line.append(part.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  waitpid(process.pid, &status, 0);
  close(process.report);
  if (line.empty() && WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGKILL ? "is killed"
                                       : fmt::format("crashes ({})", WTERMSIG(status));
  }
  return line;
}

// Without what differs from run to run, and from machine to machine.
std::string steady(std::string text) {
  const std::array<std::pair<const char*, const char*>, 5> replaced = {{
      {"process [0-9]+", "process N"},
      {" \\(libno[^)]*\\)", ""},
      {"/[^ ]*/libsisci", "libsisci"},
      {"[^ ]*libno-such-cuda[^;]*", "its library was not found"},
      {"127\\.0\\.0\\.1:[0-9]+", "127.0.0.1"},
  }};
  for (const auto& [from, to] : replaced) text = std::regex_replace(text, std::regex(from), to);
  return text;
}

// The lines of the log that name the fault.
std::string log_lines(const std::string& path) {
  std::ifstream file(path);
  std::set<std::string> lines;
  std::string line;
  while (std::getline(file, line)) {
    std::size_t at = line.find(" WARN ");
    const bool warning = at != std::string::npos;
    if (!warning) at = line.find(" INFO ");
    if (at == std::string::npos) continue;
    const std::string text = line.substr(at + 6);
    if (!warning && text.find("no devices") == std::string::npos &&
        text.find(" segments") == std::string::npos) {
      continue;
    }
    lines.insert(steady(text));
  }
  std::string all;
  for (const std::string& one : lines) all += (all.empty() ? "`" : "<br>`") + one + "`";
  return all;
}

std::string row(const Fault& fault, const std::string& provider) {
  const std::string gpus = fmt::format("cuda_library {}\n", RW_STAND_IN_CUDA);
  const SoftwareFabric fabric(gpus + fault.fabric);
  const std::string log = (fabric.folder() / "log").string();
  // All senders share the receiver's socket, which is enough for a handle each.
  setenv("RW_STAND_IN_CUDA", fault.gpus.c_str(), 1);
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) abort();
  const Process receiver = start(
      fault.quoted,
      [&] {
        close(ends[1]);
        setenv("SOFTWARE_SISCI_HOST", "0", 1);
      },
      [&] { Actor(fault, provider, log).receive(ends[0]); });
  std::vector<Process> senders;
  for (int i = 0; i < fault.senders; ++i) {
    senders.push_back(start(
        fault.quoted,
        [&] {
          close(ends[0]);
          setenv("SOFTWARE_SISCI_HOST", "1", 1);
        },
        [&] { Actor(fault, provider, log).send(ends[1], fabric); }));
  }
  close(ends[0]);
  close(ends[1]);
  const Clock::time_point end = Clock::now() + kPatience;
  std::set<std::string> sent;
  for (const Process& sender : senders) sent.insert(steady(finish(sender, end)));
  const std::string received = steady(finish(receiver, end));
  // What a survivor logs about a process killed during a transfer depends on the moment.
  const bool logs = fault.sender_killed <= Step::kBeforeAccept &&
                    fault.receiver_killed == Step::kNever && fault.fabric_later.empty();
  std::string sending;
  for (const std::string& one : sent) sending += (sending.empty() ? "" : "; ") + one;
  return fmt::format("| {} | {}{} | {} | {} | {} |\n", fault.title, provider,
                     fault.gpu_memory ? ", GPU memory" : "", sending, received,
                     logs ? log_lines(log) : "");
}

std::string page() {
  std::string text =
      "# Faults\n\n"
      "How each transport reacts to each fault. `tests/sisci/fault_table.cc` injects the faults "
      "and "
      "writes this page;\na test checks that it is current. In each case two processes, on two "
      "hosts of a software fabric, exchange messages\nof 8 bytes to 1.5 MB over registered memory "
      "and compare the data. `works` means that all data arrived and was right;\na case that hangs "
      "would be shown as `hangs`. `cuda_ipc` moves the messages between two GPUs of a stand-in "
      "for CUDA's\nlibrary, as does `sisci` in the rows with GPU memory. No adapter and no GPU was "
      "used.\n\n"
      "| what is wrong | transport | the sender | the receiver | the log |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Fault& fault : faults()) {
    for (const char* provider : {"sisci", "cuda_ipc", "shm", "tcp"}) {
      if (fault.driver.empty() || fault.driver == provider) text += row(fault, provider);
    }
  }
  return text;
}

int compare(const std::string& path, const std::string& made) {
  std::ifstream file(path);
  const std::string there{std::istreambuf_iterator<char>(file), {}};
  if (there == made) return 0;
  std::istringstream a(there);
  std::istringstream b(made);
  std::string page_line;
  std::string made_line;
  for (;;) {
    const bool more_page = static_cast<bool>(std::getline(a, page_line));
    const bool more_made = static_cast<bool>(std::getline(b, made_line));
    if (!more_page && !more_made) break;
    if (more_page && more_made && page_line == made_line) continue;
    if (more_page) fmt::print("- {}\n", page_line);
    if (more_made) fmt::print("+ {}\n", made_line);
  }
  fmt::print("{} is not current: the lines above differ; `make docs` writes it again\n", path);
  return 1;
}

}  // namespace
}  // namespace ropewalk::transport

int main(int argc, char** argv) {
  using namespace ropewalk::transport;
  const std::string_view what = argc == 3 ? argv[1] : "";
  if (what == "--write") {
    std::ofstream(argv[2]) << page();
    return 0;
  }
  if (what == "--check") return compare(argv[2], page());
  fmt::print(stderr, "usage: {} --write|--check FILE\n", argv[0]);
  return 2;
}
