// For the tests of the bootstrap: ranks as processes, which report by lines and can be killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/test_support.h"

namespace ropewalk::bootstrap {

/// A rank's process' end of its pipes to the test.
class Reporter : public Observer {
 public:
  Reporter(int in, int out) : in_(in), out_(out) {}

  void say(const std::string& text) const {
    const std::string line = text + "\n";
    (void)!::write(out_, line.data(), line.size());
  }
  /// Waits for the next command; 0 if the test has ended.
  [[nodiscard]] char command() const {
    char letter = 0;
    return ::read(in_, &letter, 1) == 1 ? letter : '\0';
  }

  void on_lost(int rank, const std::string&) override { say("lost " + std::to_string(rank)); }
  void on_suspect(int rank, bool suspected) override {
    say((suspected ? "suspect " : "clear ") + std::to_string(rank));
  }
  void on_left(int rank) override { say("left " + std::to_string(rank)); }
  void on_abort(int rank, const std::string& reason) override {
    say("abort " + std::to_string(rank) + " " + reason);
  }

  int in_;
  int out_;
};

/// `size` forked processes that run `body` as ranks of one communicator.
///
/// They are forked before the test has a thread, and get the unique id through their pipe.
class Processes {
 public:
  using Body = std::function<void(Bootstrap&, Reporter&)>;

  Processes(int size, const Config& config, const Body& body) {
    for (int rank = 0; rank < size; ++rank) start(rank, size, config, body);
    context_ = std::make_unique<Context>();
    const UniqueId id = make_unique_id(config, *context_);
    for (const Process& process : all_) {
      EXPECT_EQ(::write(process.to, id.data(), id.size()), static_cast<ssize_t>(id.size()));
    }
  }

  ~Processes() {
    for (const Process& process : all_) {
      if (process.pid > 0) kill(process.pid, SIGKILL);
    }
    for (const Process& process : all_) {
      if (process.pid > 0) waitpid(process.pid, nullptr, 0);
      close(process.to);
      close(process.from);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) { kill(at(rank).pid, number); }
  void command(int rank, char letter) { EXPECT_EQ(::write(at(rank).to, &letter, 1), 1); }

  /// The next line of a rank; "" when it ended or is silent for a minute.
  std::string line(int rank) {
    Process& process = at(rank);
    for (;;) {
      const std::size_t end = process.text.find('\n');
      if (end != std::string::npos) {
        std::string line = process.text.substr(0, end);
        process.text.erase(0, end + 1);
        return line;
      }
      pollfd waiting{process.from, POLLIN, 0};
      if (poll(&waiting, 1, 60'000) != 1) return "";
      char buffer[512];
      const ssize_t got = ::read(process.from, buffer, sizeof buffer);
      if (got <= 0) return "";
      process.text.append(buffer, static_cast<std::size_t>(got));
    }
  }

  /// Reads lines until one begins with `wanted`. Fails on the end, and on one that begins with any
  /// of `refused`.
  std::string expect(int rank, const std::string& wanted,
                     const std::vector<std::string>& refused = {}) {
    std::string seen;
    for (;;) {
      std::string next = line(rank);
      if (next.starts_with(wanted)) return next;
      seen += " \"" + next + "\"";
      bool bad = next.empty();
      for (const std::string& word : refused) bad |= next.starts_with(word);
      if (bad) {
        ADD_FAILURE() << "rank " << rank << " should have said \"" << wanted << "\"; it said"
                      << seen;
        return next;
      }
    }
  }

  /// Expects all of `wanted`, in any order, and none of `refused` in between.
  void expect_all(int rank, std::vector<std::string> wanted,
                  const std::vector<std::string>& refused = {}) {
    std::string seen;
    while (!wanted.empty()) {
      const std::string next = line(rank);
      seen += " \"" + next + "\"";
      if (std::erase(wanted, next) != 0) continue;
      bool bad = next.empty();
      for (const std::string& word : refused) bad |= next.starts_with(word);
      if (bad) {
        ADD_FAILURE() << "rank " << rank << " should have said \"" << wanted.front()
                      << "\"; it said" << seen;
        return;
      }
    }
  }

  /// Waits until the process ended by itself.
  /// @return its exit status
  int wait(int rank) {
    int status = 0;
    EXPECT_EQ(waitpid(at(rank).pid, &status, 0), at(rank).pid);
    at(rank).pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  struct Process {
    pid_t pid = -1;
    int to = -1;
    int from = -1;
    std::string text;
  };
  Process& at(int rank) { return all_[static_cast<std::size_t>(rank)]; }

  void start(int rank, int size, const Config& config, const Body& body) {
    int down[2];
    int up[2];
    ASSERT_EQ(pipe2(down, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(up, O_CLOEXEC), 0);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (const Process& sibling : all_) {
        close(sibling.to);
        close(sibling.from);
      }
      close(down[1]);
      close(up[0]);
      alarm(110);  // whatever happens, it does not outlive the test
      Reporter reporter(down[0], up[1]);
      int status = 0;
      try {
        UniqueId id{};
        for (std::size_t got = 0; got < id.size();) {
          const ssize_t part = ::read(down[0], id.data() + got, id.size() - got);
          if (part <= 0) _exit(3);
          got += static_cast<std::size_t>(part);
        }
        Context context;
        const auto self = Bootstrap::join(id, rank, size, config, soon(), context);
        self->watch(&reporter);
        reporter.say("joined");
        body(*self, reporter);
      } catch (const std::exception& error) {
        reporter.say(std::string("error ") + error.what());
        status = 2;
      }
      _exit(status);
    }
    close(down[0]);
    close(up[1]);
    Process process;
    process.pid = pid;
    process.to = down[1];
    process.from = up[0];
    all_.push_back(std::move(process));
  }

  std::vector<Process> all_;
  std::unique_ptr<Context> context_;
};

}  // namespace ropewalk::bootstrap
