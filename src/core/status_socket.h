// The socket at which this process answers who asks from outside what its communicators do
// (`ropewalk status`).
//
// A Unix socket in the abstract name space, "ropewalk-status-UID-PID-RANDOM" (16 hexadecimal
// digits): a killed process leaves nothing behind. Only this process's user and root get an answer
// (SO_PEERCRED). Who connects sends "calls N\n" and reads to the end. Who cannot connect sends a
// signal (core/trace_signal.h), at which the process writes the same to files.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/event_loop.h"
#include "core/file_descriptor.h"

namespace ropewalk {

/// Made by any thread; everything else on the loop thread. It is a shared_ptr's.
class StatusSocket : public std::enable_shared_from_this<StatusSocket> {
 public:
  /// What is told of the last so many calls of each communicator: a line of JSON for each.
  using Answer = std::function<std::string(std::size_t calls)>;

  /// It listens from now on; who connects waits until start().
  /// @param signal  as the setting TRACE_SIGNAL has it: when it comes `write` is called
  /// @throws Error kSystem
  StatusSocket(EventLoop& loop, Answer answer, std::string_view signal = "none",
               std::function<void()> write = {});
  ~StatusSocket() { stop(); }
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

  void start();
  /// After this neither `answer` nor `write` is called any more.
  void stop() noexcept;

 private:
  struct Asker {
    FileDescriptor socket;
    std::uint64_t key = 0;
    EventLoop::TimerKey timer;
    std::string question;
    std::string answer;
    std::size_t sent = 0;
    bool asked = false;
  };
  using Number = std::uint64_t;
  enum class Question : std::uint8_t { kIncomplete, kNone, kAnswered };

  void accept();
  void expired(Number number);
  void drop(Number number);
  void go_on(Number number);
  Question read_question(Asker& asker);

  EventLoop& loop_;
  const Answer answer_;
  FileDescriptor socket_;
  std::uint64_t key_ = 0;
  const int signal_fd_;
  const std::function<void()> write_;
  std::uint64_t signal_key_ = 0;
  Number last_ = 0;
  std::map<Number, Asker> askers_;
};

}  // namespace ropewalk
