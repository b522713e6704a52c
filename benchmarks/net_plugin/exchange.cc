// Rate of a NCCL network plugin between two processes, in both directions at once.
//
// exchange PLUGIN MESSAGE_BYTES ITERATIONS SIZE...
//
// Each process sends SIZE bytes to the other one and receives as many, as messages of MESSAGE_BYTES
// with up to eight in flight in each direction, over registered memory: as much as an all-reduce of
// SIZE bytes between two hosts. Prints for each size the median of the slower process' rates, a
// JSON object a line. On software PCIe bridges the processes are hosts 0 and 1.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "netplugin/abi/common.h"
#include "netplugin/abi/tables.h"

namespace {

using Clock = std::chrono::steady_clock;
using ropewalk::netplugin::abi::NetV8;

constexpr int kHostMemory = 1;
constexpr std::size_t kInFlight = 8;

void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

void need(int result, const char* call) {
  if (result != 0) throw std::runtime_error(std::string(call) + " fails");
}

void swap(int socket, const void* out, void* in, std::size_t bytes) {
  if (write(socket, out, bytes) != static_cast<ssize_t>(bytes) ||
      recv(socket, in, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
    throw std::runtime_error("the other process is gone");
  }
}

class Peer {
 public:
  Peer(const char* path, std::size_t bytes, int socket) : out_(bytes, 'o'), in_(bytes, 'i') {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    net_ = static_cast<const NetV8*>(dlsym(library, "ncclNetPlugin_v8"));
    if (net_ == nullptr) throw std::runtime_error("no ncclNetPlugin_v8");
    need(net_->init(reinterpret_cast<ropewalk::netplugin::abi::Logger>(log_nothing)), "init");
    std::array<char, 128> mine{};
    std::array<char, 128> theirs{};
    void* listener = nullptr;
    need(net_->listen(0, mine.data(), &listener), "listen");
    swap(socket, mine.data(), theirs.data(), mine.size());
    while (send_ == nullptr || receive_ == nullptr) {
      if (send_ == nullptr) need(net_->connect(0, theirs.data(), &send_, nullptr), "connect");
      if (receive_ == nullptr) need(net_->accept(listener, &receive_, nullptr), "accept");
    }
    need(net_->close_listen(listener), "closeListen");
    need(net_->reg_mr(send_, out_.data(), bytes, kHostMemory, &out_memory_), "regMr");
    need(net_->reg_mr(receive_, in_.data(), bytes, kHostMemory, &in_memory_), "regMr");
  }

  void exchange(std::size_t bytes, std::size_t message) {
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::deque<void*> sends;
    std::deque<void*> receives;
    const auto length = [&](std::size_t at) {
      return static_cast<int>(std::min(message, bytes - at));
    };
    const auto test = [&](std::deque<void*>& flying) {
      if (flying.empty()) return;
      int done = 0;
      int size = 0;
      need(net_->test(flying.front(), &done, &size), "test");
      if (done != 0) flying.pop_front();
    };
    while (sent < bytes || posted < bytes || !sends.empty() || !receives.empty()) {
      if (posted < bytes && receives.size() < kInFlight) {
        void* at = in_.data() + posted;
        int size = length(posted);
        int tag = 7;
        void* request = nullptr;
        need(net_->irecv(receive_, 1, &at, &size, &tag, &in_memory_, &request), "irecv");
        if (request != nullptr) {
          receives.push_back(request);
          posted += static_cast<std::size_t>(size);
        }
      }
      if (sent < bytes && sends.size() < kInFlight) {
        void* request = nullptr;
        need(net_->isend(send_, out_.data() + sent, length(sent), 7, out_memory_, &request),
             "isend");
        if (request != nullptr) {
          sent += static_cast<std::size_t>(length(sent));
          sends.push_back(request);
        }
      }
      test(sends);
      test(receives);
    }
  }

 private:
  const NetV8* net_ = nullptr;
  std::vector<char> out_;
  std::vector<char> in_;
  void* send_ = nullptr;
  void* receive_ = nullptr;
  void* out_memory_ = nullptr;
  void* in_memory_ = nullptr;
};

void run(int rank, int socket, int argc, char** argv) {
  const std::size_t message = std::strtoull(argv[2], nullptr, 10);
  const int iterations = std::atoi(argv[3]);
  std::size_t largest = 0;
  for (int i = 4; i < argc; ++i)
    largest = std::max<std::size_t>(largest, std::strtoull(argv[i], nullptr, 10));
  setenv("SOFTWARE_SISCI_HOST", rank == 0 ? "0" : "1", 1);
  Peer peer(argv[1], largest, socket);
  for (int i = 4; i < argc; ++i) {
    const std::size_t bytes = std::strtoull(argv[i], nullptr, 10);
    std::vector<double> rates;
    for (int turn = -2; turn < iterations; ++turn) {  // the first ones warm up
      double mine = 0;
      double theirs = 0;
      swap(socket, &mine, &theirs, sizeof mine);
      const Clock::time_point begin = Clock::now();
      peer.exchange(bytes, message);
      mine = std::chrono::duration<double>(Clock::now() - begin).count();
      swap(socket, &mine, &theirs, sizeof mine);
      if (turn >= 0) rates.push_back(static_cast<double>(bytes) / std::max(mine, theirs) / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    if (rank == 0) {
      std::printf("{\"bytes\": %zu, \"gbps\": %.4f}\n", bytes, rates[rates.size() / 2]);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: exchange PLUGIN MESSAGE_BYTES ITERATIONS SIZE...\n");
    return 2;
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 2;
  const pid_t child = fork();
  const int rank = child == 0 ? 1 : 0;
  close(sockets[1 - rank]);  // so that an end of the other one is noticed
  try {
    run(rank, sockets[rank], argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange: %s\n", error.what());
    return 1;
  }
  if (rank == 1) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
