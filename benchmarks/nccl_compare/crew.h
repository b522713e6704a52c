// The processes of a measurement: one that reads commands, and workers that carry each one out
// together. They share a page of memory, which exists before the fork.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <stdexcept>

constexpr int kMaxWorkers = 16;

struct Command {
  char operation[24];
  std::size_t bytes;
  bool graph;
  int iterations;
};

struct Outcome {
  double seconds;  // of one operation
  unsigned long long wrong;
  char error[400];
};

struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> turn;
  std::atomic<int> number;  // of the command; workers wait for the next one
  std::atomic<int> done;
  std::atomic<bool> failed;
  char unique_id[128];
  Command command;
  Outcome outcomes[kMaxWorkers];
};

class Crew {
 public:
  explicit Crew(int workers)
      : workers_(workers),
        shared_(static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (shared_ == MAP_FAILED) throw std::runtime_error("no shared memory");
    new (shared_) Shared{};
  }

  Shared& shared() { return *shared_; }
  int workers() const { return workers_; }

  /// Returns in the calling process; `work` runs in each worker, which then ends.
  void start(const std::function<void(int)>& work) {
    for (int w = 0; w < workers_; ++w) {
      if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives the measurement
        work(w);
        _exit(0);
      }
    }
  }

  /// A barrier of all workers. It spins, since the timed part follows.
  void barrier() {
    const int turn = shared_->turn.load();
    if (shared_->arrived.fetch_add(1) + 1 == workers_) {
      shared_->arrived.store(0);
      shared_->turn.store(turn + 1);
      return;
    }
    while (shared_->turn.load() == turn) {
      if (shared_->failed.load()) throw std::runtime_error("another worker failed");
      sched_yield();
    }
  }

  /// The leading process: lets the workers execute a command, during which `losses` workers end.
  /// @return false when more have ended
  bool carry_out(const Command& command, int losses = 0) {
    shared_->command = command;
    for (Outcome& outcome : shared_->outcomes) outcome = Outcome{};
    shared_->done.store(0);
    shared_->number.fetch_add(1);
    int left = losses;
    while (shared_->done.load() < workers_ - losses) {
      if (waitpid(-1, nullptr, WNOHANG) > 0 && --left < 0) return false;
      usleep(100);
    }
    return true;
  }

  /// A worker: waits for the next command.
  void next(int& number) {
    while (shared_->number.load() == number) usleep(50);
    ++number;
  }

 private:
  int workers_;
  Shared* shared_;
};
